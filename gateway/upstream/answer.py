"""What an engine's JSON says about a request: usage, ends, errors.

All of it is read fail-open: a missing key, another type or another engine's habit leaves a fact
unknown and never raises, because the relay does not depend on any of them.

Usage: engines send null on most events, some send zeros before the real numbers, and with
continuous statistics each event overrides the last. The last usage that is neither is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

Dialect = Literal["chat", "completion", "generate", "messages", "responses"]
"""/v1/chat/completions, /v1/completions, SGLang's own /generate, Anthropic's /v1/messages, OpenAI's
/v1/responses. Routes that generate nothing report their usage as a chat does."""

_STATUS_OF_TYPE = {
    "BAD_REQUEST": 400,
    "BadRequestError": 400,
    "invalid_request_error": 400,
    "NOT_FOUND": 404,
    "SERVICE_UNAVAILABLE": 503,
    "overloaded_error": 503,
    "not_found_error": 404,
    "rate_limit_error": 429,
}
_UNAVAILABLE = 503

LONGEST_PAUSE_S = 10.0
"""How long a server that is busy is taken at its word, for everybody: many rounds of any engine."""

_MESSAGE_EVENTS = frozenset({"message_start", "message_delta", "message"})
_OVER = frozenset({"completed", "incomplete", "failed"})
_RESPONSE_ENDS = frozenset(f"response.{end}" for end in _OVER)
_CREATED, _FAILED = "response.created", "response.failed"
_NUMBERS = 1 << 53
"""What every reader of JSON can count to."""


@dataclass(slots=True)
class Facts:
    """What is known of one answer. Tokens are summed over its sequences; None is unknown.

    `error` holds the engine's own words, which may quote the request: for the client only.
    """

    tokens: int = 0  # generated so far; exact where the engine said so, else an estimate
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reasons: dict[int, str] = field(default_factory=dict)  # by choice index
    error: dict[str, Any] | None = field(default=None, repr=False)
    opening: dict[str, Any] = field(default_factory=dict, repr=False)
    """Responses only: what their stream says of the answer as it begins, but for lists and objects."""
    numbered: int = -1  # responses only: the number of the last event
    generated: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)
    """/generate only: the last counts of each sequence."""

    def prompts(self, prompts: int, n: int) -> tuple[int | None, int | None]:
        """(Tokens, those of them from the cache) of a request's prompts, each answered `n` times.

        /generate tells a prompt's of each of its sequences: all of them must have told, and n times
        the same is in the sum.
        """
        if not self.generated:
            return self.prompt_tokens, self.cached_tokens
        if len(self.generated) < prompts * n or self.prompt_tokens is None:
            return None, None
        cached = self.cached_tokens
        return self.prompt_tokens // n, None if cached is None else cached // n

    def absorb(self, dialect: Dialect, document: object, *, streamed: bool) -> None:
        """Take in one parsed event or one whole reply (a batch on /generate is a list)."""
        if isinstance(document, dict):
            self._absorb_one(dialect, document, 0, streamed=streamed)
        elif isinstance(document, list):
            for position, item in enumerate(document):
                if isinstance(item, dict):
                    self._absorb_one(dialect, item, position, streamed=streamed)

    def _absorb_one(
        self, dialect: Dialect, item: dict[str, Any], position: int, *, streamed: bool
    ) -> None:
        failing = "error" in item or dialect in {"generate", "responses"}
        if failing and (error := error_in(item)) is not None:
            self.error = error
        match dialect:
            case "generate":
                self._absorb_generated(item, position)
                return
            case "messages":
                self._absorb_message(item)
                return
            case "responses":
                self._absorb_response(item)
                return
            case "chat" | "completion":
                pass
        choices, usage = item.get("choices"), item.get("usage")
        if isinstance(choices, list):
            self._absorb_choices(choices, streamed=streamed)
        if isinstance(usage, dict):
            self._absorb_usage(usage)

    def _absorb_choices(self, choices: list[Any], *, streamed: bool) -> None:
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            reason = choice.get("finish_reason")
            if isinstance(reason, str):
                self.finish_reasons[_count(choice.get("index")) or 0] = reason
            if streamed:
                self.tokens += _bears_content(choice)

    def _absorb_usage(self, usage: dict[str, Any]) -> None:
        prompt = _count(usage.get("prompt_tokens"))
        completion = _count(usage.get("completion_tokens"))
        if not prompt and not completion:
            return
        self.prompt_tokens = prompt
        self.completion_tokens = completion
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _count(details.get("cached_tokens"))
        self.tokens = max(self.tokens, completion or 0)

    def _absorb_message(self, item: dict[str, Any]) -> None:
        """An event of Anthropic's stream, or its whole message."""
        kind = type_of(item)
        if kind == "content_block_delta" or (
            kind == "content_block_start" and _named(item.get("content_block"), "tool_use")
        ):
            self.tokens += not _named(item.get("delta"), "signature_delta")
            return
        message = item.get("message") if kind == "message_start" else item
        if not isinstance(message, dict) or kind not in _MESSAGE_EVENTS:
            return
        told = message.get("delta") if kind == "message_delta" else message
        if isinstance(told, dict) and isinstance(told.get("stop_reason"), str):
            self.finish_reasons[0] = told["stop_reason"]
        if isinstance(usage := message.get("usage"), dict):
            self._absorb_parts(usage)

    def _absorb_parts(self, usage: dict[str, Any]) -> None:
        """Anthropic's usage: what came from the cache is not part of `input_tokens` (since 0.5.17)."""
        fresh = _count(usage.get("input_tokens"))
        cached = _count(usage.get("cache_read_input_tokens"))
        written = _count(usage.get("cache_creation_input_tokens")) or 0
        if fresh is not None and (prompt := fresh + (cached or 0) + written):
            self.prompt_tokens, self.cached_tokens = prompt, cached
        if made := _count(usage.get("output_tokens")):
            self.completion_tokens = made
            self.tokens = max(self.tokens, made)

    def _absorb_response(self, item: dict[str, Any]) -> None:
        """An event of a responses stream, or the whole response."""
        kind = type_of(item)
        if (number := _count(item.get("sequence_number"))) is not None and number < _NUMBERS:
            self.numbered = number
        if kind.endswith(".delta"):
            self.tokens += 1
            return
        if kind == _CREATED and isinstance(begun := item.get("response"), dict):
            self.opening = {key: value for key, value in begun.items() if _is_plain(value)}
        elif kind == _FAILED:
            self.finish_reasons[0] = "failed"
        response = item.get("response") if kind in _RESPONSE_ENDS else item
        if not isinstance(response, dict) or not (response is not item or "type" not in item):
            return
        if isinstance(status := response.get("status"), str) and status in _OVER:
            self.finish_reasons[0] = status
        usage = response.get("usage")
        if isinstance(usage, dict):
            self._absorb_usage(
                {
                    "prompt_tokens": usage.get("input_tokens", usage.get("prompt_tokens")),
                    "completion_tokens": usage.get("output_tokens", usage.get("completion_tokens")),
                    "prompt_tokens_details": usage.get(
                        "input_tokens_details", usage.get("prompt_tokens_details")
                    ),
                }
            )

    def _absorb_generated(self, item: dict[str, Any], position: int) -> None:
        meta = item.get("meta_info")
        if not isinstance(meta, dict):
            return
        index = _count(item.get("index"))
        index = position if index is None else index
        reason = meta.get("finish_reason")
        if isinstance(reason, dict) and isinstance(reason.get("type"), str):
            self.finish_reasons[index] = reason["type"]
        self.generated[index] = meta
        self.sum_generated()

    def sum_generated(self) -> None:
        """Bring the totals up to date with `generated`."""
        self.prompt_tokens = self._sum("prompt_tokens")
        self.completion_tokens = self._sum("completion_tokens")
        self.cached_tokens = self._sum("cached_tokens")
        self.tokens = self.completion_tokens or 0

    def _sum(self, key: str) -> int | None:
        known = [n for meta in self.generated.values() if (n := _count(meta.get(key))) is not None]
        return sum(known) if known else None


def reply_facts(dialect: Dialect, body: bytes) -> Facts:
    """The facts of a whole, non-streamed reply; all unknown where it is not what it should be."""
    facts = Facts()
    try:
        facts.absorb(dialect, orjson.loads(body), streamed=False)
    except orjson.JSONDecodeError:
        return Facts()
    return facts


def type_of(item: object) -> str:
    """The type of an event; empty where it has none, or one that is no text."""
    kind = item.get("type") if isinstance(item, dict) else None
    return kind if isinstance(kind, str) else ""


def error_in(item: dict[str, Any]) -> dict[str, Any] | None:
    """The error an event or reply carries: its `error`, or the abort /generate ends with."""
    error = item.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {"message": error}
    if item.get("type") == "error" and "message" in item:  # OpenAI's responses
        return {"message": item["message"], "code": item.get("code"), "type": "server_error"}
    if item.get("type") == _FAILED:
        response = item.get("response")
        told = response.get("error") if isinstance(response, dict) else None
        said = told if isinstance(told, dict) else {"message": "The server failed."}
        return {**said, "type": "server_error"}
    meta = item.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    # An abort without a status is a cancellation that was asked for.
    if isinstance(reason, dict) and reason.get("type") == "abort" and reason.get("status_code"):
        return {**reason, "code": reason["status_code"], "type": reason.get("err_type")}
    return None


def asked_pause(headers: Iterable[tuple[str, str]]) -> float:
    """What `retry-after` says, in whole seconds; SGLang has none, what stands before it may."""
    said = next((value for name, value in headers if name.lower() == "retry-after"), "")
    short = said.isdecimal() and len(said) <= 9  # noqa: PLR2004 - digits; int() of very many is slow
    return min(int(said), LONGEST_PAUSE_S) if short else 0.0


def error_status(error: dict[str, Any]) -> int:
    """The HTTP status an in-band error stands for.

    SGLang 0.5.12 sends /generate errors with a message alone, and only for requests it will
    not take, hence 400 without any hint.
    """
    code = error.get("code")
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    if isinstance(code, int) and 400 <= code <= 599:  # noqa: PLR2004  # HTTP error statuses
        return code
    kind = error.get("type")
    return _STATUS_OF_TYPE.get(kind, 500) if isinstance(kind, str) else 400


def is_backpressure(error: dict[str, Any]) -> bool:
    """Whether the engine did not start the request and would take it later.

    A request that ran too long is a 503 as well ("running timeout", since 0.5.12), but sending
    it again would only run it again.
    """
    message = str(error.get("message", "")).lower()
    if "running timeout" in message:
        return False
    return (
        error_status(error) == _UNAVAILABLE
        or "queue is full" in message
        or "waiting timeout" in message
    )


def _bears_content(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return bool(
            delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls")
        )
    return bool(choice.get("text"))


def _named(value: object, kind: str) -> bool:
    return isinstance(value, dict) and value.get("type") == kind


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None
