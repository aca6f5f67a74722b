"""How each API says what is no answer: an error, an error inside a stream, and that one has to wait.

Every refusal and failure is made once, as OpenAI's error object (`replies`); a voice puts it into
the shape that the clients of its API raise their own exceptions for. The stable `code`, the numbers
and the words are the same in all of them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from gateway.edge import failed, replies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.edge.failed import About
    from gateway.edge.replies import Answer

Error = dict[str, Any]


EVENTS: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"


class Voice(Protocol):
    """One API's way of saying it. `stream_type` is the content type of its streams."""

    stream_type: str

    def whole(self, answer: Answer) -> tuple[int, bytes]:
        """Status and body of a complete answer."""
        ...

    def upstream(self, error: Error, status: int) -> tuple[int, bytes]:
        """Status and body for an error of the engine that came where an answer was to begin."""
        ...

    def event(self, error: Error, status: int, about: About) -> bytes:
        """An error after the headers are out. The stream ends after it, without the mark of a
        complete answer: SDKs raise on it, and nothing pretends that the answer was complete."""
        ...

    def after(self, error: Error, status: int, about: About) -> bytes:
        """What is missing behind an error that the engine told inside its stream: mostly nothing."""
        ...

    def beat(self, place: int | None, model: str) -> bytes:
        """A sign of life for one that waits in `place` for `model`, or (None) for its first event, or (0)
        for its next one; parsers drop it."""
        ...


class OpenAi:
    """OpenAI's chats and completions, and SGLang's own routes."""

    stream_type = EVENTS

    def whole(self, answer: Answer) -> tuple[int, bytes]:
        """See `Voice.whole`."""
        return answer.status, answer.body

    def upstream(self, error: Error, status: int) -> tuple[int, bytes]:
        """See `Voice.upstream`."""
        return status, orjson.dumps({"error": {"code": status, **error}})

    def event(self, error: Error, status: int, about: About) -> bytes:  # noqa: ARG002 - the object tells it
        """See `Voice.event`."""
        return b"data: " + orjson.dumps({"error": error}) + b"\n\n"

    def after(self, error: Error, status: int, about: About) -> bytes:  # noqa: ARG002 - there is nothing
        """See `Voice.after`."""
        return b""

    def beat(self, place: int | None, model: str) -> bytes:  # noqa: ARG002 - a place says enough
        """See `Voice.beat`: a comment."""
        if not place:
            return b": reading the prompt\n\n" if place is None else b": writing\n\n"
        return f": waiting, position {place}\n\n".encode()


class Responses(OpenAi):
    """OpenAI's responses: an error in a stream has a type of its own, and so has the end that it makes."""

    def event(self, error: Error, status: int, about: About) -> bytes:
        """See `Voice.event`."""
        return failed.both(error, status, about)

    def after(self, error: Error, status: int, about: About) -> bytes:
        """See `Voice.after`."""
        return failed.last(error, status, about)


KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    426: "not_found_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's error types by HTTP status; anything else is an `api_error`."""

OVERLOADED = 529
"""What Anthropic's own API says instead of 503; its SDKs retry it after `retry-after`, as all ≥ 500."""


class Anthropic:
    """Anthropic's messages."""

    stream_type = EVENTS

    def whole(self, answer: Answer) -> tuple[int, bytes]:
        """See `Voice.whole`."""
        return self.upstream(answer.error, answer.status)

    def upstream(self, error: Error, status: int) -> tuple[int, bytes]:
        """See `Voice.upstream`."""
        status = OVERLOADED if status == 503 else status
        return status, orjson.dumps(_anthropic(error, status))

    def event(self, error: Error, status: int, about: About) -> bytes:  # noqa: ARG002 - the type tells it
        """See `Voice.event`."""
        return b"event: error\ndata: " + self.upstream(error, status)[1] + b"\n\n"

    def after(self, error: Error, status: int, about: About) -> bytes:  # noqa: ARG002 - there is nothing
        """See `Voice.after`."""
        return b""

    def beat(self, place: int | None, model: str) -> bytes:  # noqa: ARG002 - its ping carries nothing
        """See `Voice.beat`: the ping that Anthropic's own streams have."""
        return b'event: ping\ndata: {"type": "ping"}\n\n'


def _anthropic(error: Error, status: int) -> dict[str, Any]:
    told = {key: value for key, value in error.items() if key not in {"type", "param"}}
    if error.get("param") is not None:
        told["param"] = error["param"]
    return {"type": "error", "error": {"type": KINDS.get(status, "api_error"), **told}}


class Ollama:
    """Ollama's own API: an error is a text, whole or as a line of its stream.

    Its clients take nothing but objects in a stream, an empty line is an error to the Python one
    (0.6.3). So a sign of life is a piece of an answer without a text, as Ollama's own streams have.
    """

    stream_type = LINES

    def __init__(self, empty: Mapping[str, Any]) -> None:
        """`empty` is what a piece of an answer has where it has no text."""
        self._empty = empty

    def whole(self, answer: Answer) -> tuple[int, bytes]:
        """See `Voice.whole`."""
        return self.upstream(answer.error, answer.status)

    def upstream(self, error: Error, status: int) -> tuple[int, bytes]:
        """See `Voice.upstream`. What stands beside the text is for those who look for it."""
        return status, orjson.dumps(_ollama(error, status))

    def event(self, error: Error, status: int, about: About | None = None) -> bytes:  # noqa: ARG002
        """See `Voice.event`. A line names no answer."""
        return self.upstream(error, status)[1] + b"\n"

    def after(self, error: Error, status: int, about: About) -> bytes:  # noqa: ARG002 - there is nothing
        """See `Voice.after`."""
        return b""

    def beat(self, place: int | None, model: str) -> bytes:  # noqa: ARG002 - no place in the answer's text
        """See `Voice.beat`."""
        piece = {"model": model, "created_at": wall_time(), **self._empty, "done": False}
        return orjson.dumps(piece) + b"\n"


def _ollama(error: Error, status: int) -> dict[str, Any]:
    if isinstance(error.get("error"), str):  # it was said in this voice before
        return error
    message = error.get("message")
    told = {
        key: value
        for key, value in error.items()
        if key not in {"message", "type", "object"} and isinstance(value, str | int | float)
    }
    words = message if isinstance(message, str) and message else f"the server answered {status}"
    return {"error": words, **told}


UNREADABLE: Final = replies.Fault(
    502, "upstream_error", "the server's answer is not what was asked of it"
)


def retold(voice: Voice, told: bytes | None, body: bytes, status: int) -> tuple[int, bytes]:
    """Status and body of a whole answer in other words: `told`, or the error that `body` is."""
    if told is not None:
        return status, told
    if status >= 400:
        return voice.upstream(replies.error_in(body, status), status)
    return voice.upstream(replies.error_object(UNREADABLE), UNREADABLE.status)


def wall_time() -> str:
    """The time of day, UTC, as ISO 8601 writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


OPENAI = OpenAi()
RESPONSES = Responses()
ANTHROPIC = Anthropic()
OLLAMA_CHAT = Ollama({"message": {"role": "assistant", "content": ""}})
OLLAMA = Ollama({"response": ""})
