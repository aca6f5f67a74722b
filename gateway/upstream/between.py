"""Answers that are not the engine's: a proxy before it speaks for itself.

An engine answers in JSON. A proxy between it and the gate (nginx, a balancer, a tunnel) has answers of its
own: 502, where it was refused or its connection broke; 504, where it waited no longer; 3xx, where it wants
clients to go elsewhere. Passed on, the first would be an answer to a request that a dead engine took with
it, the second would free memory that the engine still uses, the third would lead clients past the gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.upstream.errors import Failure, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterable

_ELSEWHERE = frozenset({301, 302, 303, 307, 308})
"""Who follows is at a server in nobody's ledger, or has its inner address."""
_NO_ANSWER, _NO_LONGER = 502, 504


def not_the_engines(status: int, headers: Iterable[tuple[str, str]]) -> UpstreamError | None:
    """What has really happened, where this answer is not of the engine."""
    if status in _ELSEWHERE:
        kind = Failure.PROTOCOL
        words = (
            f"The server answered {status} and sends clients elsewhere; its address here is wrong."
        )
    elif status == _NO_ANSWER and not _is_json(headers):
        kind = Failure.RESET
        words = "A proxy before the engine got no answer from it (status 502)."
    elif status == _NO_LONGER and not _is_json(headers):
        kind = Failure.FIRST_BYTE_TIMEOUT
        words = "A proxy before the engine waited no longer for it (status 504)."
    else:
        return None
    return UpstreamError(kind, words, sent=True, answered=kind is Failure.PROTOCOL)


def _is_json(headers: Iterable[tuple[str, str]]) -> bool:
    return any(
        name.lower() == "content-type" and "json" in value.lower() for name, value in headers
    )
