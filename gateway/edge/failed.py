"""How a stream of OpenAI's responses is told that it failed: by `error`, then by `response.failed`.

OpenAI's own API sends both, and its clients look at one of them each: the SDKs raise on an `error` object and read
no further (Python 3.57, JavaScript 7.25), Codex passes `error` by and reads `code` and `message` of the response
that failed (codex-rs, codex-api). Without it Codex knows of a stream that broke off, asks again at once, and shows
none of our words.

The response is the one that the stream began with, and the numbers go on from the stream's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from gateway.upstream.sse import SseTap

QUEUED: Final = frozenset({429, 503})
"""Statuses of what may come again after a time. The client that fits to both waits as long as it is told."""


@dataclass(frozen=True, slots=True)
class About:
    """What is known of the answer that failed: our id of it, the model that was asked for, and, once there is
    something of it, how far it came."""

    ident: str
    model: str
    tap: SseTap | None = None


def both(error: dict[str, Any], status: int, about: About) -> bytes:
    """The two events. In the first `code` and `message` stand beside the type, as they are specified, and in an
    object, as the SDKs read them; the stable code is there."""
    number = _next(about)
    code = error.get("code")
    told = {
        "type": "error",
        "sequence_number": number,
        "code": None if code is None else str(code),
        "message": _words(error, status),
        "param": error.get("param"),
        "error": error,
    }
    return _event(told) + _failed(error, status, about, number + 1)


def last(error: dict[str, Any], status: int, about: About) -> bytes:
    """The second of them alone: the server itself told the first."""
    return _failed(error, status, about, _next(about))


def _failed(error: dict[str, Any], status: int, about: About, number: int) -> bytes:
    response: dict[str, Any] = {
        "id": about.ident,
        "object": "response",
        "created_at": int(datetime.now(UTC).timestamp()),
        "model": about.model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "incomplete_details": None,
    }
    if about.tap is not None:
        response |= about.tap.opening
    response["status"] = "failed"
    response["error"] = {"code": _code(error, status), "message": _words(error, status)}
    return _event({"type": "response.failed", "sequence_number": number, "response": response})


def _code(error: dict[str, Any], status: int) -> str:
    """One of the codes that OpenAI has for this, and its clients act by: Codex makes room on the first, gives
    up on the second and the fourth, waits as long as the message says on the third, and asks again on others."""
    ours = error.get("code")
    if ours == "context_length_exceeded":
        return "context_length_exceeded"
    if ours == "quota_exceeded":
        return "insufficient_quota"
    if status in QUEUED:
        return "rate_limit_exceeded"
    if 400 <= status < 500 and status != 408:  # the client's mistakes; a timeout is none
        return "invalid_prompt"
    return "server_error"


def _words(error: dict[str, Any], status: int) -> str:
    message = error.get("message")
    return message if isinstance(message, str) and message else f"The server answered {status}."


def _next(about: About) -> int:
    """The number of the next event. The server counts from 0; what was too large to be read has been counted."""
    return 0 if about.tap is None else max(about.tap.numbered + 1, about.tap.events)


def _event(told: dict[str, Any]) -> bytes:
    return f"event: {told['type']}\ndata: ".encode() + orjson.dumps(told) + b"\n\n"
