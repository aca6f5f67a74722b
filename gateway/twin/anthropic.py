"""What SGLang answers on /v1/messages, 0.5.12 and later: shapes taken from a genuine 0.5.17.

Pure: values in, dictionaries and bytes out.
"""

from __future__ import annotations

from typing import Any

from gateway.twin.bodies import dumps
from gateway.twin.jobs import Ending

Json = dict[str, Any]

# How an abort of the scheduler is told inside a stream, by its status.
_KINDS = {400: "invalid_request_error", 503: "overloaded_error"}


def error(kind: str, message: str) -> Json:
    """An error body."""
    return {"type": "error", "error": {"type": kind, "message": message}}


def failed(status: int, message: str) -> tuple[Json, int]:
    """What a whole answer becomes of an abort by the scheduler: anything but a 400 is a bare 500."""
    if status == 400:  # noqa: PLR2004 - an HTTP status
        return error("BadRequestError", message), 400
    return error("api_error", "Internal server error"), 500


def whole(ident: str, model: str, *, text: str, ending: Ending, prompt: int, out: int) -> Json:
    """A whole answer."""
    return {
        "id": f"msg_{ident}",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "model": model,
        "stop_reason": _reason(ending),
        "usage": {"input_tokens": prompt, "output_tokens": out},
    }


def start(ident: str, model: str, prompt: int) -> bytes:
    """The first event of a stream."""
    message = {
        "id": f"msg_{ident}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": model,
        "usage": {"input_tokens": prompt, "output_tokens": 0},
    }
    return _event({"type": "message_start", "message": message})


def block() -> bytes:
    """The event before the first text."""
    content = {"type": "text", "text": ""}
    return _event({"type": "content_block_start", "index": 0, "content_block": content})


def delta(text: str) -> bytes:
    """Some text."""
    return _event(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    )


def end(ending: Ending, out: int) -> bytes:
    """The last events of a stream."""
    reason = {"stop_reason": _reason(ending)}
    return (
        _event({"type": "content_block_stop", "index": 0})
        + _event({"type": "message_delta", "delta": reason, "usage": {"output_tokens": out}})
        + stop()
    )


def stop() -> bytes:
    """The very last event."""
    return _event({"type": "message_stop"})


def broken(status: int, message: str) -> bytes:
    """An error inside a stream."""
    return _event(error(_KINDS.get(status, "api_error"), message))


def _reason(ending: Ending) -> str:
    return "end_turn" if ending is Ending.STOP else "max_tokens"


def _event(value: Json) -> bytes:
    return f"event: {value['type']}\n".encode() + b"data: " + dumps(value) + b"\n\n"
