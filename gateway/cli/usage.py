"""What several commands ask of their arguments, refused in one sentence. Exit code 2 is theirs to give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from gateway.policy.types import ServerUrl
from gateway.upstream.facts import parse_version

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.upstream.facts import Version


class UsageError(Exception):
    """One sentence for the person who called."""


def engine_version(text: str) -> Version:
    """The SGLang version that --engine-version names."""
    version = parse_version(text)
    if version is None:
        raise UsageError("--engine-version takes three numbers, as 0.5.17.")
    return version


def writable(option: str, path: Path | None) -> None:
    """Asked before what takes minutes, and would end with its numbers lost. An absent file is made."""
    if path is None:
        return
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        needed = f"{option} {path} cannot be written: {error.strerror or error}."
        raise UsageError(needed) from None


def server_url(text: str, key: str) -> str:
    """A server's root. `key` says where its key goes instead of into the URL."""
    if "@" in text:
        needed = f"The URL holds credentials; take them out: {key}."
        raise UsageError(needed)
    try:
        return str(TypeAdapter(ServerUrl).validate_python(text))
    except ValidationError as error:
        context = error.errors()[0].get("ctx", {})
        needed = f"The URL {context.get('wrong', 'is none')}; {context.get('remedy', '')}."
        raise UsageError(needed) from None
