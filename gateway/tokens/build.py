"""Builds the counter of one model: the only place where its files are read and its parts wired."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from gateway.tokens.counter import Counter
from gateway.tokens.images import rules_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


async def build_counter(
    *,
    tokenizer_dir: Path | None,
    engine_version: str | None,  # noqa: ARG001 - for the template profile, which follows
    remote: Callable[[dict[str, Any]], Awaitable[int]] | None,
    model_type: str | None = None,
) -> Counter:
    """A counter for the model whose files are in `tokenizer_dir`, as `engine_version` counts.

    `remote` posts a body to the server's own /v1/tokenize and returns its `count`. Never raises:
    what is missing or broken becomes a note, and the next best way of counting is used. The files
    are read in a thread: seconds the first time, less from the cache.
    """
    notes: list[str] = []
    processor = await asyncio.to_thread(_read_json, tokenizer_dir, "preprocessor_config.json")
    if tokenizer_dir is None:
        notes.append(
            "No tokenizer files here: counting by " + ("/v1/tokenize." if remote else "bytes.")
        )
    return Counter(remote=remote, media=rules_for(model_type, processor), notes=tuple(notes))


def _read_json(directory: Path | None, name: str) -> dict[str, Any] | None:
    if directory is None:
        return None
    try:
        value = json.loads((directory / name).read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
