"""Every refusal and every failure as an answer: status, headers, error object. Exhaustive by type.

The error is OpenAI's object, which SGLang's own clients read as well: a stable `code` to match on,
and what was needed, what there was and what to do in words. Other APIs say the same in a shape of
their own (`voices`). SDKs retry 408, 409, 429 and 5xx; `x-should-retry: false` stops them where
repeating the request can not help.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.core.model import Code, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "x-kvgate-error-source"
"""Who said no: `gateway` or `upstream`. Without it a 503 of ours and one of the engine's look
alike to whoever counts them."""

LONGEST_RETRY_S = 59
"""Largest Retry-After, seconds: some SDKs come back at once where it is 60 or more (OpenAI's for JavaScript as
Continue 1.5 has it), others sleep however long we say."""

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete reply, before it is put into the words of an API: OpenAI's status and error object."""

    status: int
    error: dict[str, Any]
    headers: dict[str, str]

    @property
    def body(self) -> bytes:
        """As OpenAI says it."""
        return orjson.dumps({"error": self.error})


@dataclass(frozen=True, slots=True)
class Fault:
    """The way to the engine broke. `code` is stable, like those of refusals."""

    status: int
    code: str
    message: str


STATUS: Final = {
    Code.CONTEXT_LENGTH_EXCEEDED: 400,
    Code.INVALID_REQUEST: 400,
    Code.QUARANTINED: 400,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.BODY_TOO_LARGE: 413,
    Code.CLIENT_LIMIT: 429,
    Code.QUOTA_EXCEEDED: 429,
    Code.COOLING_DOWN: 429,
    Code.QUEUE_FULL: 429,
    Code.DEADLINE_UNREACHABLE: 429,
    Code.NO_BACKEND: 503,
    Code.QUEUE_TIMEOUT: 503,
    Code.DRAINING: 503,
}
"""The HTTP status of each refusal. 429: there is capacity and others have it. 503: there is none."""

AFTER: Final = "after the time in Retry-After"
"""When to come back, where that is told in a header."""

ADVICE: Final = {
    Code.CONTEXT_LENGTH_EXCEEDED: (
        "Shorten the prompt, ask for less output, or use a server with a larger pool."
    ),
    Code.INVALID_REQUEST: "Correct the request; sending it again will not help.",
    Code.UNAUTHORIZED: (
        "Send one from this server's operator as 'Authorization: Bearer …', 'x-api-key: …' or 'api-key: …'."
    ),
    Code.FORBIDDEN: "Ask the operator for access.",
    Code.NOT_FOUND: "Only the inference routes of this API pass the gate.",
    Code.BODY_TOO_LARGE: "Send a smaller body; images take most of it.",
    Code.CLIENT_LIMIT: "Wait for your own requests to finish, then try again.",
    Code.QUOTA_EXCEEDED: f"Try again {AFTER}, or ask the operator for more.",
    Code.COOLING_DOWN: (f"Look at the errors those requests got, and try again {AFTER}."),
    Code.QUEUE_FULL: f"Try again {AFTER}.",
    Code.QUEUE_TIMEOUT: f"Try again {AFTER}.",
    Code.DEADLINE_UNREACHABLE: "Try again later, or allow more time.",
    Code.QUARANTINED: "This very request was in flight when the server died twice; change it.",
    Code.NO_BACKEND: f"The server is starting or down; try again {AFTER}.",
    Code.DRAINING: f"Try again {AFTER}; another gate, or its next start, may answer.",
}
"""What the client can do about each refusal."""

PLAIN_HTTP: Final = {"upgrade": "HTTP/1.1", "connection": "upgrade, close"}
"""Of a 426: what is spoken here. Nothing else can be read on a connection that was to change its protocol."""

TOO_LONG: Final = "The prompt is too long: {} tokens > {} maximum."
"""What a client looks for that makes room by itself: few look at the code, most at the words, in just these
letters (LangChain) and with both numbers (Claude Code, Qwen Code). They are Anthropic's own, which all know."""


ONCE_MORE: Final = "This is a server error: try again."
"""Of what broke. In a stream that is open no status tells it, and agents ask again by themselves where they read
these words (pi 0.73, OpenCode 1.18) or OpenAI's type for it (Continue 1.5, see `_type`), and stop where they do not."""


def refused(refusal: Refusal, *, param: str | None = None, status: int | None = None) -> Answer:
    """A refusal as an answer; `status` where HTTP has a closer one than the code's."""
    status = STATUS[refusal.code] if status is None else status
    words = [_sentence(refusal.message, param), ADVICE[refusal.code]]
    if refusal.code is Code.CONTEXT_LENGTH_EXCEEDED:
        words.insert(0, TOO_LONG.format(refusal.needed, refusal.available))
    error: dict[str, Any] = {
        "message": " ".join(words),
        "type": _type(status),
        "param": param,
        "code": refusal.code.value,
    }
    numbers = {
        "needed": refusal.needed,
        "available": refusal.available,
        "position": refusal.position,
        "eta_s": None if refusal.eta_s is None else round(refusal.eta_s, 1),
    }
    error |= {name: value for name, value in numbers.items() if value is not None}
    headers = {SOURCE: "gateway"}
    if status in {429, 503}:
        headers["retry-after"] = str(retry_after(refusal))
    elif status != 401:
        headers["x-should-retry"] = "false"
    return Answer(status, error, headers)


def without_headers(error: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """An error object for a stream that is open: what its headers would tell of time is told in it. The words
    are those that clients look for where they find no header (Codex: "try again in 5 s")."""
    seconds = headers.get("retry-after", "")
    if not (seconds.isascii() and seconds.isdecimal()):
        return error
    told = {**error, "retry_after_s": int(seconds)}
    for name in ("message", "error"):  # the second is Ollama's
        if isinstance(words := error.get(name), str):
            told[name] = words.replace(AFTER, f"in {seconds} s")
    return told


def retry_after(refusal: Refusal) -> int:
    """The time a refused client is told, seconds."""
    wait = math.ceil(refusal.retry_after_s if refusal.retry_after_s is not None else 5.0)
    if refusal.code is Code.QUOTA_EXCEEDED:
        return max(1, wait)  # who comes back before its window ends is refused again
    return min(max(1, wait), LONGEST_RETRY_S)


def invalid(message: str, param: str | None = None, *, status: int | None = None) -> Answer:
    """A body the engine would refuse, refused here."""
    return refused(Refusal(Code.INVALID_REQUEST, message), param=param, status=status)


def too_large(size: int, limit: int) -> Refusal:
    """A body over the limit, bytes: so much was announced, or read so far."""
    words = f"the body has {size} bytes or more; the limit is {limit}"
    return Refusal(Code.BODY_TOO_LARGE, words, size, limit)


def no_websocket(refusal: Refusal) -> Answer:
    """Whoever would rather speak by a websocket is told which protocol is spoken. Codex asks so first, and on
    this status goes on with a POST at once; a 404 it tries seven times (0.171)."""
    answer = refused(refusal, status=426)
    return replace(answer, headers={**answer.headers, **PLAIN_HTTP})


def coded() -> Answer:
    """A body in a coding that is not unpacked here."""
    words = "the body has a content-encoding that is not understood; send it plain, gzip or deflate"
    return _last(invalid(words, "content-encoding", status=415))


def too_slow(message: str) -> Answer:
    """A body that did not come in time. SDKs try a 408 again, which is right."""
    error = {
        "message": f"{_sentence(message)} Send it again.",
        "type": _type(408),
        "param": None,
        "code": Code.INVALID_REQUEST.value,
    }
    headers = {SOURCE: "gateway", "connection": "close"}
    return Answer(408, error, headers)


def garbled(message: str) -> Answer:
    """A body of which nobody knows where it ends."""
    return _last(invalid(message))


def _last(answer: Answer) -> Answer:
    return replace(answer, headers={**answer.headers, "connection": "close"})


def failed(fault: Fault) -> Answer:
    """The engine or the way to it broke before anything reached the client."""
    headers = {SOURCE: "upstream"}
    if fault.status == 503:
        headers["retry-after"] = "5"
    return Answer(fault.status, error_object(fault), headers)


def error_object(fault: Fault) -> dict[str, Any]:
    """OpenAI's error object for a fault."""
    return {
        "message": f"{_sentence(fault.message)} {ONCE_MORE}",
        "type": _type(fault.status),
        "param": None,
        "code": fault.code,
    }


def error_in(body: bytes, status: int) -> dict[str, Any]:
    """The error object of a complete answer. SGLang's has none around it."""
    told: Any = None
    with suppress(orjson.JSONDecodeError):
        told = orjson.loads(body)
    if not isinstance(told, dict):
        told = {
            "message": f"The server answered {status}.",
            "type": _type(status),
            "code": status,
        }
    error = told.get("error")
    return error if isinstance(error, dict) else told


def _type(status: int) -> str:
    return {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        426: "not_found_error",
        429: "rate_limit_error",
    }.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _sentence(text: str, field: str | None = None) -> str:
    """With a capital and a full stop; a name of a field stays as clients write it."""
    if field is None or not text.startswith(field):
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
