"""Web pages that may call: origins as browsers send them, which are compared letter by letter."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.policy.types import bad, listed

EVERY: Final = "*"
"""Every page, whatever its origin."""

BESIDE_OTHERS: Final = (
    "has a * beside others, which allows every page",
    'write ["*"] if that is meant, or take the * away',
)

_WHOLE = "write scheme and host, such as https://chat.example or http://localhost:3000"
_HOST = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]")
_PORT = re.compile(r"[0-9]{1,5}")
_USUAL_PORT = {"http": 80, "https": 443}
_LAST_PORT = 65_535

_WRONG: Final = (
    (r"null", "is what local files and pages in a sandbox send, whosever they are",
     'serve the page from an address and write that, or allow every page with "*"'),
    (r".*\*.*", "has a * in it", 'list each origin by itself, or write "*" alone for every page'),
    (r"(?![a-z][a-z0-9+.-]*://).*", "is an origin without a scheme", _WHOLE),
    (r"[^/]*//[^/?#]*/", "ends in a slash, which browsers do not send", "take the slash away"),
    (r"[^/]*//.*[/?#].*", "has a path, and origins have none", f"{_WHOLE}, and nothing behind it"),
    (r".*@.*", "holds credentials, and origins have none", _WHOLE),
    (r".*[^ -~].*", "is not written as browsers send it",
     "write what location.origin shows in the page's console (a host that begins with xn--)"),
)  # fmt: skip
"""Mistakes as people make them; the first that matches is told."""


def _origin(value: str) -> str:
    """As browsers write it: in small letters, without the port that its scheme has anyway."""
    text = value.strip().lower()
    if text == EVERY:
        return EVERY
    for pattern, wrong, remedy in _WRONG:
        if re.fullmatch(pattern, text, re.DOTALL):
            raise bad(wrong, remedy)
    scheme, _, rest = text.partition("://")
    host, port = _split(rest)
    if not _HOST.fullmatch(host) or port == 0 or (port or 0) > _LAST_PORT:
        raise bad("is not an origin", _WHOLE)
    if host.startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(host.strip('[]'))}]"
        except ValueError:
            raise bad("is not an origin", _WHOLE) from None
    usual = port in {None, _USUAL_PORT.get(scheme)}
    return f"{scheme}://{host}" if usual else f"{scheme}://{host}:{port}"


def _split(rest: str) -> tuple[str, int | None]:
    """Host and port; None where none is said, and 0 where it is no number."""
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]"):
        return rest, None
    return host, int(port) if _PORT.fullmatch(port) else 0


def _together(origins: tuple[str, ...]) -> tuple[str, ...]:
    if EVERY in origins and len(origins) > 1:
        raise bad(*BESIDE_OTHERS)
    return origins


Origins = Annotated[
    tuple[Annotated[str, AfterValidator(_origin)], ...],
    BeforeValidator(listed, json_schema_input_type=str | list[str]),
    AfterValidator(_together),
    Field(strict=False),
]
