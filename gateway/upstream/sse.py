"""A tap on a stream of server-sent events: it looks, counts and passes on.

The relay forwards bytes, not events. Each read goes through `SseTap.feed`, which returns what to
forward: the same bytes at once, less the one usage event the client did not ask for. Reads
rarely end inside an event; where one does, the part is kept (and forwarded), so that facts do
not depend on how the network cut the stream.

Cost: an event of a chat or completion that differs from the one before it in its text alone is not
parsed, see `_only_text`; the others are. /generate events are not small, see there. Where bytes are searched
for a key, generated text cannot fool the search: inside a JSON string a quote is escaped, so
`"index":` with both quotes bare is always a key.

Memory: an event over `EVENT_CAP` passes unparsed, with only its last bytes kept; a usage event
is held back for at most `HOLD_CAP`. Both limits look at the event's length alone, never at how
it was cut.
"""

from __future__ import annotations

import re
from typing import Any

from gateway.upstream.answer import Dialect, Facts, type_of
from gateway.upstream.events import BOUNDARY, EVENT_CAP, SOME_CHOICE, is_one_line, parse, payload_of

HOLD_CAP = 16 * 1024
"""Bytes. The usage event of any engine is under 1 KiB."""

_TAIL = 4096
"""Bytes kept of an event over the cap: /generate puts its counts (about 1 KiB) last."""

_GENERATED = re.compile(rb'.*"completion_tokens": ?(\d{1,18})', re.DOTALL)
_INDEX = re.compile(rb'.*"index": ?(\d{1,18})', re.DOTALL)
_LAST = frozenset({"message_stop", "response.completed", "response.incomplete"})
_LAST_SEEN = re.compile(rb'"type": ?"response\.(?:completed|incomplete)"')
_MADE = re.compile(rb'.*"(?:output|completion)_tokens": ?(\d{1,18})', re.DOTALL)
_DIGITS = re.compile(rb"\d{1,18}")
_IN_STRING = re.compile(
    rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
)
"""What stands between the quotes of a JSON string (RFC 8259 §7), halves of surrogate pairs left out."""
_TEXTS = {"chat": ("content", "reasoning_content"), "completion": ("text",)}

_TYPED = frozenset({"messages", "responses"})
"""Dialects whose events have a type, and whose last one is told by it."""


class SseTap(Facts):
    """The facts of one stream as it passes. Pure: bytes in, bytes out."""

    __slots__ = (
        "_after",
        "_before",
        "_dialect",
        "_forwarded",
        "_pending",
        "_scanned",
        "_skipping",
        "_strip",
        "_tail",
        "_unended",
        "done",
        "events",
    )

    def __init__(self, dialect: Dialect, *, strip_usage: bool) -> None:
        """Tap a stream of `dialect`; `strip_usage` takes out the event with only usage in it."""
        super().__init__()
        self.events = 0  # events with data, [DONE] not counted
        self.done = False  # the [DONE] mark was seen
        self._dialect: Dialect = dialect
        self._strip = strip_usage and dialect in {"chat", "completion"}
        self._pending = bytearray()  # the event that is not whole yet
        self._scanned = 0  # bytes of it known to hold no boundary
        self._forwarded = 0  # bytes of it already passed on
        self._skipping = False  # inside an event over the cap
        self._tail = b""  # the last bytes of that event
        self._unended = False  # the stream ended inside an event that was passed on
        self._before = self._after = b""  # of the text in events that hold nothing else of interest

    def feed(self, data: bytes) -> bytes:
        """Look at the next bytes; returns what to forward now."""
        if self._before and not self._pending and not self._skipping and self._only_text(data):
            return data
        if (
            data.endswith(b"}\n\n")
            and not self._pending
            and not self._skipping
            and is_one_line(data)
        ):  # exactly one whole event: nearly always
            return b"" if self._observe(data) else data
        out = self._skip(data) if self._skipping else self._collect(data)
        return out if self._strip else data

    def finish(self) -> bytes:
        """The stream has ended: returns what was held back.

        An event without its blank line counts: engines that die do not send one.
        """
        rest = bytes(self._pending)
        held = rest[self._forwarded :]
        self._pending.clear()
        self._unended = self._skipping or bool(rest)
        if self._skipping:
            self._observe_tail(self._tail)
            self._skipping = False
        elif rest and self._observe(rest + b"\n\n"):
            held, self._unended = b"", self._forwarded > 0
        return held if self._strip else b""

    def gap(self) -> bytes:
        """What ends an event that the client has a part of, before one of ours: the two would be read
        as one, and the error not at all."""
        begun = self._forwarded if self._strip else self._pending
        return b"\n\n" if begun or self._skipping or self._unended else b""

    def _only_text(self, data: bytes) -> bool:
        """Count whole events that differ in their text alone from one that was parsed and told nothing
        else: no end, no usage, no error. Nearly all are like that; where one is not, none is counted.

        A bare quote ends a string, so bytes with quotes, found whole, are never part of a text.
        """
        before, after = self._before, self._after
        least = len(before)
        if (  # one event, nearly always: then all between the two is its text
            data.startswith(before)
            and data.endswith(after)
            and _IN_STRING.fullmatch(data, least, most := len(data) - len(after)) is not None
            and most > least
            and (data.isascii() or _is_utf8(data))
        ):
            self.events += 1
            self.tokens += 1
            return True
        *events, rest = data.split(after)
        if rest or not events:
            return False
        for event in events:
            if (
                len(event) <= least
                or not event.startswith(before)
                or _IN_STRING.fullmatch(event, least) is None
                or not (event.isascii() or _is_utf8(event))
            ):
                return False
        self.events += len(events)
        self.tokens += len(events)
        return True

    def _remember(self, event: bytes, document: dict[str, Any]) -> None:
        """Keep what stands around the text of an event that holds one piece of text and nothing else."""
        self._before = b""
        choices = document.get("choices")
        if (
            not isinstance(choices, list)
            or len(choices) != 1
            or document.get("usage") is not None
            or "error" in document
        ):
            return
        choice = choices[0]
        if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
            return
        delta = choice.get("delta", choice if self._dialect == "completion" else None)
        if not isinstance(delta, dict) or delta.get("tool_calls"):
            return
        for name in _TEXTS[self._dialect]:
            if isinstance(text := delta.get(name), str) and text:
                before, found, rest = event.partition(b'"%b":"' % name.encode())
                said, quote, after = rest.partition(b'"')
                if quote and b"\\" not in said and said.decode("utf-8", "replace") == text:
                    self._before, self._after = before + found, quote + after
                return

    # ---- cutting ----------------------------------------------------------------------------

    def _collect(self, data: bytes) -> bytes:
        """Add to the pending event and look at each event that is now whole."""
        pending, out = self._pending, bytearray()
        pending += data
        start, search = 0, max(self._scanned - 2, 0)
        while (boundary := BOUNDARY.search(pending, search)) is not None:
            search = boundary.end()
            event = bytes(pending[start:search])
            if (
                (self._before and self._only_text(event))
                or not self._observe(event)
                or self._forwarded
            ):
                out += event[self._forwarded :]
            self._forwarded = self._scanned = 0
            start = search
        del pending[:start]
        if self._forwarded or (self._strip and self._must_pass(pending)):
            out += pending[self._forwarded :]
            self._forwarded = len(pending)
        self._scanned = len(pending)
        if len(pending) > EVENT_CAP:
            self._tail = bytes(pending[-_TAIL:])
            self._skipping = True
            pending.clear()
            self._scanned = self._forwarded = 0
        return bytes(out)

    def _must_pass(self, part: bytearray) -> bool:
        """Whether an event that begins like this cannot be the one to strip."""
        fresh = max(self._scanned - 16, 0)  # room for the key that was cut
        return len(part) > HOLD_CAP or SOME_CHOICE.search(part, fresh) is not None

    def _skip(self, data: bytes) -> bytes:
        """Pass on the rest of an event over the cap."""
        joined = self._tail + data
        boundary = BOUNDARY.search(joined, max(len(self._tail) - 2, 0))
        if boundary is None:
            self._tail = joined[-_TAIL:]
            return data
        self._observe_tail(joined[: boundary.end()][-_TAIL:])
        self._skipping = False
        cut = boundary.end() - len(self._tail)
        return data[:cut] + self._collect(data[cut:])

    # ---- looking ----------------------------------------------------------------------------

    def _observe(self, event: bytes) -> bool:
        """Take in one whole event; True where it is the usage event to strip."""
        if len(event) > EVENT_CAP:
            self._observe_tail(event[-_TAIL:])
            return False
        if is_one_line(event):
            payload = event[6:]
        else:
            lines = payload_of(event)
            if lines is None:
                return False
            payload = lines
            if payload.strip() == b"[DONE]":
                self.done = True
                return False
        self.events += 1
        if self._dialect == "generate":
            self._look_at_generated(payload)
            return False
        document = parse(payload)
        self.absorb(self._dialect, document, streamed=True)
        if self._dialect in _TEXTS and isinstance(document, dict) and event.endswith(b"}\n\n"):
            self._remember(event, document)
        if self._dialect in _TYPED:
            self.done = self.done or type_of(document) in _LAST
            return False
        return (
            self._strip
            and isinstance(document, dict)
            and document.get("choices") == []
            and len(event) <= HOLD_CAP
            and isinstance(document.get("usage"), dict)
            and document.get("error") is None
            and SOME_CHOICE.search(event) is None
        )

    def _look_at_generated(self, payload: bytes) -> None:
        """Read the running count off the end of an event, and parse only the first and last.

        Each event repeats all text so far, so parsing them all would be quadratic.
        """
        counts = self.generated.get(0)
        at = payload.rfind(b'"completion_tokens":')
        ended = payload.rfind(b'"finish_reason":')
        if (
            counts is not None
            and at >= 0
            and ended >= 0
            and payload[ended + 16 : ended + 20] == b"null"
            and payload.find(b'"index":', at) < 0  # a batch: the key comes last
            and (digits := _DIGITS.match(payload, at + 20)) is not None
        ):
            counts["completion_tokens"] = self.tokens = self.completion_tokens = int(digits[0])
            return
        self.absorb("generate", parse(payload), streamed=True)

    def _observe_tail(self, tail: bytes) -> None:
        """Take in an event of which only the end was kept."""
        self.events += 1
        if self._dialect in _TYPED and _LAST_SEEN.search(tail) is not None:
            self.done = True  # its text is the whole answer once more
            if (made := _MADE.match(tail)) is not None:
                self.completion_tokens = int(made[1])
            return
        if self._dialect != "generate":
            self.tokens += 1
            return
        if (count := _GENERATED.match(tail)) is not None:
            index = int(match[1]) if (match := _INDEX.match(tail, count.end())) else 0
            self.generated.setdefault(index, {})["completion_tokens"] = int(count[1])
            self.sum_generated()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
