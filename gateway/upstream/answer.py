"""What an engine's JSON says about a request: usage, ends, errors.

All of it is read fail-open: a missing key, another type or another engine's habit leaves a fact
unknown and never raises, because the relay does not depend on any of them.

Usage: engines send null on most events, some send zeros before the real numbers, and with
continuous statistics each event overrides the last. The last usage that is neither is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

Dialect = Literal["chat", "completion", "generate"]
"""/v1/chat/completions, /v1/completions, SGLang's own /generate."""

_STATUS_OF_TYPE = {
    "BAD_REQUEST": 400,
    "BadRequestError": 400,
    "invalid_request_error": 400,
    "NOT_FOUND": 404,
    "SERVICE_UNAVAILABLE": 503,
    "overloaded_error": 503,
}
_UNAVAILABLE = 503


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
    generated: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)
    """/generate only: the last counts of each sequence."""

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
        if ("error" in item or dialect == "generate") and (error := error_in(item)) is not None:
            self.error = error
        if dialect == "generate":
            self._absorb_generated(item, position)
            return
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


def error_in(item: dict[str, Any]) -> dict[str, Any] | None:
    """The error an event or reply carries: its `error`, or the abort /generate ends with."""
    error = item.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {"message": error}
    meta = item.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    # An abort without a status is a cancellation that was asked for.
    if isinstance(reason, dict) and reason.get("type") == "abort" and reason.get("status_code"):
        return {**reason, "code": reason["status_code"], "type": reason.get("err_type")}
    return None


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


def _count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None
