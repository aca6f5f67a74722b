"""What a stream tells while it passes: a pure scanner over its bytes, which changes none of them.

Events are cut at blank lines, across reads of any size. The common event costs a few byte searches;
JSON is parsed only for those that carry usage, an error or a finish reason. The one change the tap
makes is leaving out the usage event that the gate itself asked for, so only an event that could
still become that one is held back until its blank line has come; everything else is forwarded as
it is read. An event larger than `MAX_EVENT` is passed on unread, and no facts are taken from it:
the tap may fail, the relay may not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

MAX_EVENT = 64 * 1024
"""Bytes of an event that is looked into. A usage event has 250; a token event with 20 logprobs
about 4,000."""

MAX_HELD = 16 * 1024
"""Bytes held back at most while an event could still be the usage event to leave out."""

_BLANK = re.compile(rb"\r?\n\r?\n|\r\r")
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*[^n\s]')
_ERROR = re.compile(rb'"error"\s*:\s*[{"]')


class Shape(StrEnum):
    """Whose events these are."""

    OPENAI = "openai"  # chat and completions
    GENERATE = "generate"  # SGLang's own: each event repeats the whole answer so far


@dataclass(slots=True)
class Facts:
    """What was learned of an answer. Tokens; None for what it did not say."""

    events: int = 0
    tokens: int = 0  # generated so far, all choices together
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finished: dict[int, str] = field(default_factory=dict)  # choice → finish reason
    done: bool = False  # [DONE] has come
    error: dict[str, Any] | None = None  # an error event
    blind: bool = False  # something was too large or too odd to look into


class SseTap:
    """Feed it every byte; forward what it returns."""

    def __init__(self, shape: Shape, *, strip_usage: bool = False) -> None:
        self.facts = Facts()
        self._shape = shape
        self._strip = strip_usage and shape is Shape.OPENAI
        self._partial = b""  # of the event not yet complete
        self._out = 0  # how much of `_partial` has been forwarded
        self._skipping = False  # in the middle of an event too large to look into
        self._generated: dict[int, int] = {}

    def feed(self, data: bytes) -> bytes:
        """Take bytes as they came, return those to forward now."""
        buffer = self._partial + data if self._partial else data
        forward: list[bytes] = []
        sent = self._out  # bytes of `buffer` that went out before
        start = 0
        # A blank line may have begun in what was there before: look again at its last 3 bytes.
        search_from = max(0, len(self._partial) - 3)
        while (blank := _BLANK.search(buffer, search_from)) is not None:
            end = blank.end()
            keep = self._skipping or self._event(buffer[start:end])
            self._skipping = False
            if keep or sent > start:
                forward.append(buffer[max(start, sent) : end])
            start = search_from = end
        rest = buffer[start:] if start else buffer
        already = max(0, sent - start)
        hold = self._strip and not already and not self._skipping and len(rest) <= MAX_HELD
        if rest and not (hold and _could_be_usage(rest)):
            forward.append(rest[already:])
            already = len(rest)
        if len(rest) > MAX_EVENT:
            self.facts.blind = True
            self._skipping = True
            rest = rest[-3:]
            already = len(rest)
        self._partial, self._out = rest, already
        return forward[0] if len(forward) == 1 else b"".join(forward)

    def finish(self) -> bytes:
        """The stream is over: what was held back."""
        rest, self._partial = self._partial[self._out :], b""
        self._out = 0
        return rest

    # ---- one event -----------------------------------------------------------------------------

    def _event(self, event: bytes) -> bool:
        """Look into a complete event. False if it is the one to leave out."""
        facts = self.facts
        if b"data:" not in event:
            return True  # a comment
        facts.events += 1
        if self._shape is Shape.OPENAI and not (
            _USAGE.search(event)
            or _FINISH.search(event)
            or b"[DONE]" in event
            or b'"error"' in event
        ):
            facts.tokens += b'"role":"assistant"' not in event or b'"content":""' not in event
            return True
        data = b"\n".join(
            line[5:].lstrip(b" ")
            for line in event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            if line.startswith(b"data:")
        ).strip()
        if data == b"[DONE]":
            facts.done = True
            return True
        try:
            parsed = orjson.loads(data)
        except orjson.JSONDecodeError:
            facts.blind = True
            return True
        if not isinstance(parsed, dict):
            return True
        return self._parsed(parsed)

    def _parsed(self, event: dict[str, Any]) -> bool:
        facts = self.facts
        if isinstance(error := event.get("error"), dict | str) and error:
            facts.error = error if isinstance(error, dict) else {"message": error}
            return True
        if self._shape is Shape.GENERATE:
            self._generate(event)
            return True
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            self._choice(choice)
        usage = event.get("usage")
        if isinstance(usage, dict):
            _take_usage(facts, usage)
            # Only the event that carries nothing else is ours to leave out.
            return not (self._strip and choices == [])
        return True

    def _choice(self, choice: object) -> None:
        if not isinstance(choice, dict):
            return
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            index = choice.get("index")
            self.facts.finished[index if isinstance(index, int) else 0] = reason
        delta = choice.get("delta")
        if choice.get("text") or (isinstance(delta, dict) and any(delta.values())):
            self.facts.tokens += 1

    def _generate(self, event: dict[str, Any]) -> None:
        index = event.get("index")
        key = index if isinstance(index, int) else 0
        take_meta(self.facts, event.get("meta_info"), key, self._generated)


def _could_be_usage(partial: bytes) -> bool:
    """Whether the beginning of an event may still become the usage event.

    `choices` comes before `usage` in SGLang's chunks (0.5.6-0.5.23), so an event that has shown a
    choice is not it.
    """
    at = partial.find(b'"choices"')
    return at < 0 or len(partial) < at + 24 or _NO_CHOICES.match(partial, at) is not None


def _take_usage(facts: Facts, usage: dict[str, Any]) -> None:
    """The last usage that says something; null and zero do not."""
    for name in ("prompt_tokens", "completion_tokens"):
        value = usage.get(name)
        if isinstance(value, int) and value > 0:
            setattr(facts, name, value)
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and isinstance(cached := details.get("cached_tokens"), int):
        facts.cached_tokens = cached
    if facts.completion_tokens is not None:
        facts.tokens = max(facts.tokens, facts.completion_tokens)


def take_meta(facts: Facts, meta: object, key: int, generated: dict[int, int]) -> None:
    """The meta_info of one answer of /generate. `generated` keeps the tokens of each of them."""
    if not isinstance(meta, dict):
        return
    if isinstance(tokens := meta.get("completion_tokens"), int):
        generated[key] = max(tokens, generated.get(key, 0))
        facts.tokens = facts.completion_tokens = sum(generated.values())
    if isinstance(prompt := meta.get("prompt_tokens"), int) and key == 0:
        facts.prompt_tokens = prompt
    if isinstance(cached := meta.get("cached_tokens"), int):
        facts.cached_tokens = cached
    reason = meta.get("finish_reason")
    if isinstance(reason, dict):
        facts.finished[key] = str(reason.get("type"))
        if reason.get("type") == "abort" and reason.get("status_code"):
            facts.error = {"message": reason.get("message"), "code": reason["status_code"]}


def reply_facts(shape: Shape, body: bytes) -> Facts:
    """The facts of an answer that was not streamed. Whatever surprises leaves them unknown."""
    facts = Facts()
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        facts.blind = True
        return facts
    if shape is Shape.GENERATE:
        generated: dict[int, int] = {}
        for key, one in enumerate(parsed if isinstance(parsed, list) else [parsed]):
            take_meta(
                facts, one.get("meta_info") if isinstance(one, dict) else None, key, generated
            )
    elif isinstance(parsed, dict) and isinstance(usage := parsed.get("usage"), dict):
        _take_usage(facts, usage)
    return facts


# ---- the first event decides whether there is an answer at all -----------------------------------


class Verdict(StrEnum):
    """What the beginning of a stream is."""

    MORE = "more"  # not complete yet
    DATA = "data"  # an answer
    FULL = "full"  # the engine had no room: back-pressure, the request never started
    ERROR = "error"  # another error instead of an answer


@dataclass(frozen=True, slots=True)
class FirstEvent:
    """The verdict, and the status the engine meant where it is an error."""

    verdict: Verdict
    status: int = 200


_FULL_WORDS = ("queue is full", "waiting timeout", "higher priority")
SERVICE_UNAVAILABLE = 503


def peek(beginning: bytes) -> FirstEvent:
    """What the first event of a stream says. Since 0.5.12 a refusal by the scheduler comes as a
    200 whose first event is an error, on /generate as a finish_reason `abort`."""
    blank = _BLANK.search(beginning)
    if blank is None:
        more = len(beginning) < MAX_EVENT
        return FirstEvent(Verdict.MORE if more else Verdict.DATA)
    event = beginning[: blank.end()]
    if not (_ERROR.search(event) or b'"abort"' in event):
        return FirstEvent(Verdict.DATA)
    tap = SseTap(Shape.OPENAI)
    tap.feed(event)
    error = tap.facts.error
    if error is None:
        tap = SseTap(Shape.GENERATE)
        tap.feed(event)
        error = tap.facts.error
    if error is None:
        return FirstEvent(Verdict.DATA)
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500  # noqa: PLR2004
    words = str(error.get("message", "")).lower()
    full = status == SERVICE_UNAVAILABLE or any(word in words for word in _FULL_WORDS)
    return FirstEvent(Verdict.FULL if full else Verdict.ERROR, status)
