"""How a stream begins: with an answer, or with why there is none.

Since SGLang 0.5.12 a request the scheduler will not take is answered with status 200 and an error in
the first event. So a stream is judged by that before anything of it is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gateway.upstream.answer import error_in, error_status, is_backpressure, type_of
from gateway.upstream.events import BOUNDARY, EVENT_CAP, SOME_CHOICE, parse, payload_of

_PREAMBLE = frozenset(
    {"message_start", "ping", "response.created", "response.queued", "response.in_progress"}
)
"""What comes before it is known whether there is an answer: SGLang begins every stream of messages
and responses with these, also one that it then refuses."""


class Verdict(StrEnum):
    """What a stream begins with."""

    DATA = "data"
    BACKPRESSURE = "backpressure"  # not started, may be tried again later
    ERROR = "error"
    INCOMPLETE = "incomplete"  # more bytes are needed


@dataclass(frozen=True, slots=True)
class FirstEvent:
    """A verdict; with an error, its status and the engine's words (for the client only)."""

    verdict: Verdict
    status: int | None = None
    message: str = field(default="", repr=False)


def peek(data: bytes) -> FirstEvent:
    """Judge a stream by its first event; `data` is all of it that has come."""
    start = 0
    for boundary in BOUNDARY.finditer(data):
        payload = payload_of(data[start : boundary.end()])
        start = boundary.end()
        if payload is not None and not _is_preamble(payload):
            return _judge(payload)
    if len(data) - start > EVENT_CAP or SOME_CHOICE.search(data, start) is not None:
        return FirstEvent(Verdict.DATA)
    return FirstEvent(Verdict.INCOMPLETE)


def _is_preamble(payload: bytes) -> bool:
    typed = b'"message_start"' in payload or b'"ping"' in payload or b'"response.' in payload
    return typed and type_of(parse(payload)) in _PREAMBLE


def _judge(payload: bytes) -> FirstEvent:
    if b'"error"' not in payload and b'"abort"' not in payload:
        return FirstEvent(Verdict.DATA)
    document = parse(payload)
    error = error_in(document) if isinstance(document, dict) else None
    if error is None:
        return FirstEvent(Verdict.DATA)
    verdict = Verdict.BACKPRESSURE if is_backpressure(error) else Verdict.ERROR
    return FirstEvent(verdict, error_status(error), str(error.get("message", "")))
