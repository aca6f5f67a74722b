"""Which headers go through a proxy. Pure; used in both directions.

A proxy speaks for itself on each hop: framing, connection handling and compression belong to the
hop and are written anew (RFC 9110 7.6.1); passing a client's framing on is how requests are
smuggled.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

OURS_TO_WRITE = frozenset({"host", "content-length", "accept-encoding"})
"""End-to-end headers that are nevertheless written anew towards a server: its address, the length
of the body we made, and `identity`, since what is compressed can not be read on its way."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSAFE = re.compile(r"[\r\n\0]")


def end_to_end(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without hop-by-hop headers and those that `Connection` names."""
    headers = list(headers)
    named = {
        word.strip().lower()
        for name, value in headers
        if name.lower() == "connection"
        for word in value.split(",")
    }
    drop = HOP_BY_HOP | named
    return [(name, value) for name, value in headers if name.lower() not in drop]


def request_head(
    method: str, target: str, host: str, headers: Iterable[tuple[str, str]], length: int
) -> bytes:
    """The head of a request. Raises ValueError for names or values that would break it."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", "accept-encoding: identity"]
    for name, value in end_to_end(headers):
        if name.lower() in OURS_TO_WRITE:
            continue
        if not _TOKEN.fullmatch(name) or _UNSAFE.search(value):
            msg = "a header holds characters that are not allowed"
            raise ValueError(msg)
        lines.append(f"{name}: {value}")
    if length or method not in {"GET", "HEAD"}:
        lines.append(f"content-length: {length}")
    if _UNSAFE.search(target) or " " in target:
        msg = "the request target holds characters that are not allowed"
        raise ValueError(msg)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")
