"""What one request's way leaves behind: its ids, its headers, its record.

A `Trip` is filled as the request goes along and knows how to say every number to the client (reply
headers), to the server (forwarded headers, our own request id) and to the record.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.core.model import Code, Outcome, Refusal, RequestId
from gateway.edge import ids, replies
from gateway.edge.body import Coded, Garbled, TooLarge
from gateway.edge.heartbeat import Heart
from gateway.edge.tickets import session
from gateway.observe.record import Record, served_or_other
from gateway.observe.spans import parent_of
from gateway.tokens import Method
from gateway.upstream.headers import strip_hop_by_hop

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.core.model import Grant
    from gateway.edge.body import Unread
    from gateway.edge.dialects import Dialect, Instead, Intent
    from gateway.edge.retries import Try
    from gateway.tokens import Counted
    from gateway.upstream.answer import Facts
    from gateway.upstream.facts import ServerFacts

NOT_FORWARDED = frozenset(
    {
        "authorization",  # the client's key is for us; the server's is added per server
        "cookie",
        "x-api-key",
        "api-key",
        "content-encoding",  # the body that goes on is ours
        "x-body-compressed",  # the engine would decompress what we did not count
        "x-data-parallel-rank",  # the ledger decided the rank
        ids.NAME,
    }
)
OF_ITS_BODY = frozenset({"accept", "content-type"})
"""Headers that say nothing true of a body in other words."""

NOT_FORWARDED_PREFIX = "x-override-"
"""Headers that set engine internals where the engine was started to obey them (>= 0.5.17)."""

CUT_S = 0.5
"""How long a client that is being cut may take to read that: half of what connections get to end when
the gate goes down (`app.CUT_S`)."""

BYTES_A_TOKEN = 4
"""Of English. What is bounded by its bytes and too long by less may be short enough; what is longer than that
is too long whatever else is wrong with it, and agents that are told so shorten it."""

DRAINED = "drained"
"""The reason of what was cut when draining was over."""


class Trip:
    """See the module. Times are the gate's clock, seconds."""

    __slots__ = (
        *("request", "id", "attempts", "refused_connections", "instead", "record", "voice"),
        *("heart", "began", "read", "tried", "cut", "_fault", "_late", "_first", "_last"),
        "__weakref__",
    )

    def __init__(self, request: web.BaseRequest, dialect: Dialect, now: float) -> None:
        self.request = request
        # Four digits for the attempt complete a rid of fixed length, so that no rid is the beginning
        # of another one: one attempt a second lasts for 18 hours in the queue.
        self.id = RequestId(ids.drawn())
        self.attempts = 0
        self.refused_connections = 0
        self.instead: Instead | None = None
        self.record = Record(id=self.id, dialect=type(dialect).__name__.lower())
        self.record.client_request_id = ids.clean(request.headers)
        self.record.session = session(request.headers)
        self.record.traceparent = parent_of(request.headers.getall("traceparent", ()))
        retry = request.headers.get("x-stainless-retry-count", "")
        if retry.isascii() and retry.isdigit() and len(retry) < 4:
            self.record.client_retry = int(retry)
        self.voice = dialect.voice
        self.heart = Heart(request, self.voice, self.id)
        self.began = now
        self.read = False  # its body is here
        self.tried: Try | None = None  # until it is admitted: see `retries`
        self.cut = False  # it is to end now: the gate is going down
        self._fault = ""  # what is wrong with a body whose length is only bounded
        self._late = False  # it is, as the server gave no count in time
        self._first: float | None = None
        self._last: float | None = None

    # ---- along the way ---------------------------------------------------------------------------

    def asks(self, intent: Intent, client: str, facts: Iterable[ServerFacts | None]) -> None:
        """What the body wants."""
        self.instead = intent.instead
        served = {model for one in facts if one is not None for model in one.names}
        record = self.record
        record.client = client
        record.model = served_or_other(intent.model, served)
        record.streamed = intent.stream
        record.n = intent.n
        record.cap_asked = intent.cap

    def counted(self, counted: Counted) -> None:
        """How long its prompts are."""
        self.record.prompts = len(counted.prompts)
        self.record.prompt_tokens = counted.total
        self.record.count_method = counted.method.value
        self._fault, self._late = counted.fault, counted.late

    def trimmed(self, turns: int, tokens: int) -> None:
        """So much of the conversation was left out, see `trimming`."""
        self.record.trimmed_turns, self.record.trimmed_tokens = turns, tokens

    @property
    def stretch(self) -> float:
        """How many times the usual time it is told where it is refused."""
        again = None if self.tried is None else self.tried.again
        return 1.0 if again is None else 2.0**again.level

    @property
    def target(self) -> str:
        """The engine's route."""
        return self.request.rel_url.raw_path_qs if self.instead is None else self.instead.target

    @property
    def waited_s(self) -> float:
        """How long it was here before a server had it, seconds."""
        return ((self.record.door_ms or 0.0) + (self.record.queue_ms or 0.0)) / 1000

    def next_rid(self) -> str:
        """An id for one more try: the engine takes each once, and matches ids by prefix."""
        rid = f"{self.id}{self.attempts:04x}"
        self.attempts += 1
        self.record.attempts = self.attempts
        return rid

    def granted(self, grant: Grant, free: int) -> str:
        """A reservation: the id to send upstream. `free` is what was free before it, KV tokens."""
        rid = self.next_rid()
        record = self.record
        record.backend, record.rank = grant.pool.backend, grant.pool.rank
        record.kv_reserved, record.kv_free_at_grant = grant.demand.kv, free
        record.cap_forwarded = grant.demand.cap
        record.cap_source = "asked"
        if grant.injected:
            record.cap_source = "injected"
        elif grant.clamped_from is not None:
            record.cap_source = "clamped"
        record.queue_ms = grant.queued_s * 1000
        if grant.ttft_s is not None and grant.ttft_high_s is not None:
            record.ttft_expected_ms = grant.ttft_s * 1000
            record.ttft_bound_ms = grant.ttft_high_s * 1000
        record.compile_ms = None if grant.compile_s is None else grant.compile_s * 1000
        return rid

    def first_output(self, now: float) -> None:
        """The first output of the answer came."""
        if self._first is None:
            self._first = now

    def learned(self, facts: Facts, status: int, now: float) -> None:
        """What the answer said of itself."""
        self._last = now
        record = self.record
        record.upstream_status = status
        prompt, cached = facts.prompts(record.prompts, record.n)
        record.usage_prompt_tokens, record.cached_tokens = prompt, cached
        record.output_tokens = facts.completion_tokens or facts.tokens

    def ended(self, outcome: Outcome, reason: str | None = None) -> None:
        """How it ended, as far as the client is concerned. The first word stands."""
        if self.record.outcome is None:
            self.record.outcome = outcome
            self.record.reason = reason

    def left(self) -> None:
        """The client is gone."""
        self.ended(Outcome.CANCELLED, "the client left")

    @property
    def was_cut(self) -> bool:
        """Whether it ended because the gate went down."""
        return self.record.reason == DRAINED

    @property
    def gone(self) -> bool:
        """Whether its connection is closed."""
        return self.request.transport is None or self.request.transport.is_closing()

    async def cut_short(self) -> web.StreamResponse:
        """The end of a request that still ran when the time for that was over: a complete answer, or
        one event in its stream. Its task was cancelled for that, and goes on."""
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        self.ended(Outcome.FAILED, DRAINED)
        # Agents that read this in a stream ask again by themselves at "terminated" (pi 0.73, OpenCode 1.18).
        words = "the gate is shutting down, and this answer was terminated before it was complete"
        answer = self._answer(replies.refused(Refusal(Code.DRAINING, words)))
        try:
            async with asyncio.timeout(CUT_S):
                return await self.heart.deliver(answer)
        except TimeoutError:  # it reads nothing
            self.heart.hang_up()
        except ConnectionError:
            pass
        return answer

    def done(self, now: float) -> Record:
        """The finished record."""
        record = self.record
        self.ended(Outcome.FAILED, "unexpected")
        record.e2e_ms = (now - self.began) * 1000
        if self._first is not None:
            record.ttft_ms = (self._first - self.began) * 1000
            tokens = (record.output_tokens or 0) / max(1, record.n * record.prompts)
            if self._last is not None and tokens > 1:
                record.tpot_ms = (self._last - self._first) * 1000 / (tokens - 1)
        return record

    # ---- answers ---------------------------------------------------------------------------------

    def refused(self, refusal: Refusal, queued_s: float | None = None) -> web.Response:
        """The answer to a request that was not admitted."""
        if self._fault and _may_be_short(refusal):
            why = f"{self._fault}. Counted by its bytes, for that reason, it {refusal.message}"
            return self.refuse(replies.invalid(why), Code.INVALID_REQUEST)
        if self._late and _may_be_short(refusal):
            # Told that it is too long, an agent would throw away a history that may well fit.
            why = "the server is too busy to count this prompt: by its bytes it may be too long"
            refusal = replace(refusal, code=Code.QUEUE_TIMEOUT, message=why)
        elif (
            refusal.code is Code.CONTEXT_LENGTH_EXCEEDED
            and self.record.count_method == Method.BOUND
        ):
            why = f"{refusal.message}. The first is the most it can be: not all of it was counted"
            refusal = replace(refusal, message=why)
        self.refuse(replies.refused(refusal), refusal.code)
        record = self.record
        if queued_s is not None:
            record.outcome, record.queue_ms = Outcome.EVICTED, queued_s * 1000
        record.needed, record.available = refusal.needed, refusal.available
        record.position, record.eta_s = refusal.position, refusal.eta_s
        record.retry_after_s = refusal.retry_after_s
        return self._answer(replies.refused(refusal))

    def refuse(self, answer: replies.Answer, code: Code) -> web.Response:
        """The answer to a request that is not even asked well."""
        self.ended(Outcome.REJECTED, code.value)
        self.record.code = code
        return self._answer(answer)

    def unread(self, error: Unread) -> web.Response:
        """The answer to a request whose body was too large, slow, strange or broken to be read."""
        if isinstance(error, TooLarge):
            return self.refused(replies.too_large(error.size, error.limit))
        if isinstance(error, Garbled):
            return self.refuse(replies.garbled(str(error)), Code.INVALID_REQUEST)
        if isinstance(error, Coded):
            return self.refuse(replies.coded(), Code.INVALID_REQUEST)
        return self.refuse(replies.too_slow(str(error)), Code.INVALID_REQUEST)

    def known(self, body: bytes) -> web.Response:
        """An answer that needed no server."""
        self.ended(Outcome.COMPLETED)
        return web.Response(body=body, headers=self.headers(), content_type=replies.JSON)

    def failed(self, fault: replies.Fault) -> web.Response:
        """The answer to a request whose server broke before anything reached the client."""
        self.ended(Outcome.FAILED, fault.message)
        return self._answer(replies.failed(fault))

    def _answer(self, answer: replies.Answer) -> web.Response:
        status, body = self.voice.whole(answer)
        return web.Response(
            status=status,
            body=body,
            headers={**self.headers(), **answer.headers},
            content_type=replies.JSON,
        )

    # ---- headers ---------------------------------------------------------------------------------

    def headers(self) -> dict[str, str]:
        """What every answer tells of the decision."""
        record = self.record
        told = {ids.NAME: record.client_request_id or self.id}
        if record.prompt_tokens is not None:
            told["x-kvgate-prompt-tokens"] = str(record.prompt_tokens)
        if record.trimmed_turns is not None:
            told["x-kvgate-trimmed"] = (
                f"turns={record.trimmed_turns} tokens={record.trimmed_tokens}"
            )
        if record.tools_left_out is not None:
            told["x-kvgate-tools-left-out"] = record.tools_left_out
        if record.queue_ms is not None:
            told["x-kvgate-queue-ms"] = f"{record.queue_ms:.0f}"
        if record.backend is not None:
            told["x-kvgate-backend"] = record.backend
            if record.cap_forwarded is not None:  # None: it went through as it came
                told["x-kvgate-max-tokens"] = str(record.cap_forwarded)
            if record.cap_source == "clamped":
                told["x-kvgate-clamped-from"] = str(record.cap_asked)
            elif record.cap_source == "injected":
                told["x-kvgate-clamped-from"] = "none"
        return told

    def forwarded_headers(self) -> list[tuple[str, str]]:
        """The client's own headers, less what is not for the server."""
        kept = [
            (name, value)
            for name, value in strip_hop_by_hop(self.request.headers.items())
            if (low := name.lower()) not in NOT_FORWARDED
            and not low.startswith(NOT_FORWARDED_PREFIX)
        ]
        if self.instead is None:
            return kept
        # It may have come as anything (curl calls it a form); the engine wants to be told.
        other = [(name, value) for name, value in kept if name.lower() not in OF_ITS_BODY]
        return [*other, ("content-type", replies.JSON)]


def _may_be_short(refusal: Refusal) -> bool:
    """Whether a refusal for a length that its bytes bound says little of the length."""
    if refusal.code is not Code.CONTEXT_LENGTH_EXCEEDED:
        return False
    return (refusal.needed or 0) <= BYTES_A_TOKEN * (refusal.available or 0)
