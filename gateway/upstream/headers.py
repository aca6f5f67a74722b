"""Which headers cross a proxy, and the head of a request. Pure; used in both directions.

Framing is never forwarded: what a client said about its own connection or body encoding means
nothing on ours (RFC 9110 §7.6.1, RFC 9112 §6.3), and passing it on is how requests are smuggled.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "te", "trailer", "trailers", "transfer-encoding", "upgrade")
)
_WRITTEN_HERE = frozenset(("host", "content-length", "accept-encoding", "expect"))
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(r"/[!-~]*")
_FORBIDDEN_IN_VALUE = re.compile(r"[\r\n\0]")


def request_head(
    method: str, target: str, fixed: str, headers: Iterable[tuple[str, str]], length: int
) -> bytes:
    """The head of a request with a body of `length` bytes; `fixed` holds lines written by us.

    Raises:
        ValueError: method, target or a header cannot be written on the wire.
    """
    if not _TOKEN.fullmatch(method):
        raise ValueError("the method is not an HTTP token")
    if not _TARGET.fullmatch(target):
        raise ValueError("the target must start with / and hold printable ASCII only")
    lines = [f"{method} {target} HTTP/1.1\r\n", fixed]
    if length or method not in ("GET", "HEAD"):
        lines.append(f"content-length: {length}\r\n")
    for name, value in strip_hop_by_hop(headers):
        if _lowered(name) in _WRITTEN_HERE:
            continue
        if _FORBIDDEN_IN_VALUE.search(value):
            message = f"the value of header {name} holds a line break or a NUL"
            raise ValueError(message)
        lines.append(f"{name}: {value}\r\n")
    lines.append("connection: keep-alive\r\n\r\n")
    # The edge decodes fields as UTF-8 with escapes; this gives back the very bytes.
    return "".join(lines).encode("utf-8", "surrogateescape")


def strip_hop_by_hop(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The end-to-end headers among `headers`, in order (RFC 9110 §7.6.1).

    Dropped are the connection's own fields, every `proxy-…`, and whatever a Connection field
    names. Content-Length stays: it says something about the message.

    Raises:
        ValueError: a name is not an HTTP token.
    """
    kept = []
    named: set[str] = set()
    for name, value in headers:
        lowered = _lowered(name)
        if lowered == "connection":
            named.update(part.strip().lower() for part in value.split(","))
        elif lowered not in _HOP_BY_HOP and not lowered.startswith("proxy-"):
            kept.append((name, value))
    if named - _HOP_BY_HOP:
        return [(name, value) for name, value in kept if _lowered(name) not in named]
    return kept


@lru_cache(maxsize=1024)  # names repeat on every request; the bound holds against invented ones
def _lowered(name: str) -> str:
    """`name` in lower case, if it is a name: `Transfer-Encoding ` must not slip past a list."""
    if not _TOKEN.fullmatch(name):
        raise ValueError("a header name is not an HTTP token")
    return name.lower()
