"""The answer's way back: bytes in, the same bytes out, as fast as both sides go; for an API that the
engine is not asked in, what a `Teller` makes of each read.

A chunk is forwarded in the step in which it comes, and none is taken while the client's socket is
full, so a slow reader slows the server down and grows nothing here. `begin` looks at the first event
before anything is committed: until then the request can still be put back or answered with a status
of its own. After that a failure is told in-band, once, and the connection ends without the mark of a
complete answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.core.model import Outcome
from gateway.edge import cors, replies
from gateway.edge.dialects import Times
from gateway.edge.pieces import Pieces
from gateway.edge.truncations import CUT
from gateway.edge.voices import retold, wall_time
from gateway.edge.wire import Wire
from gateway.tasks import in_time
from gateway.tokens import Kind
from gateway.upstream.answer import Dialect, Facts, asked_pause, error_status, reply_facts
from gateway.upstream.between import not_the_engines
from gateway.upstream.errors import Failure, UpstreamError
from gateway.upstream.first_event import Verdict, peek
from gateway.upstream.sse import SseTap

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from gateway.edge.backends import Backend
    from gateway.edge.booked import Booked
    from gateway.edge.dialects import Intent, Teller
    from gateway.edge.trip import Trip
    from gateway.tokens import Counted
    from gateway.upstream.reply import Reply

OK = 200
BUSY = frozenset({429, 503})

BAD_REQUEST = 400
SERVER_ERROR = 500
REFUSAL_BYTES = 64 * 1024
"""Largest body read of an answer that says "busy"; SGLang's has 100 bytes."""

FACTS_BYTES = 8 << 20
"""Largest answer that is looked into for its usage: 32,000 tokens with logprobs fit. A larger one
is relayed all the same, and its usage stays unknown."""

REST_S = 2.0
"""How long the end of a stream may take whose first event was an error: its [DONE] is on the way."""

NO_WAIT_BYTES = 32 * 1024
"""Written without a timer where nothing else waits for the client: aiohttp's own writer waits only
above 64 KiB, so this cannot stall."""

STALLED_S = 120.0
"""How long a client may take nothing while bytes wait for it; then it counts as gone. Longer than
any pause of a reader that is alive, shorter than it takes a dozen stalled tabs to add up."""

OTHER_FRAMING = ("content-length", "content-type", "content-encoding")
"""Headers of the engine that say nothing true of an answer in other words."""


class BrokenAnswer(Exception):
    """The server broke in the middle of an answer; the client has been told in-band."""

    def __init__(self, error: UpstreamError, response: web.StreamResponse) -> None:
        super().__init__(str(error))
        self.kind = error.kind
        self.response = response


@dataclass(frozen=True, slots=True)
class Beginning:
    """An answer whose first event is known."""

    verdict: Verdict
    status: int
    data: bytes = b""  # body bytes already read
    pause_s: float = 0.0  # after which a busy server wants to be asked again


async def begin(reply: Reply, *, streamed: bool, as_it_is: bool = False) -> Beginning:
    """Wait until it is clear whether there is an answer. Raises UpstreamError.

    `as_it_is`: whatever comes is the answer, back-pressure and errors too.
    """
    await reply.head()
    if as_it_is:
        return Beginning(Verdict.DATA, reply.status)
    if reply.status in BUSY:
        data = await reply.read_all(REFUSAL_BYTES)
        return Beginning(Verdict.BACKPRESSURE, reply.status, data, asked_pause(reply.headers))
    if (error := not_the_engines(reply.status, reply.headers)) is not None:
        reply.disown()
        raise error
    if reply.status != OK or not (streamed and reply.is_events):
        return Beginning(Verdict.DATA, reply.status)
    data = b""
    while True:
        more = await reply.read()
        data += more
        first = peek(data)
        if first.verdict is not Verdict.INCOMPLETE or not more:
            return Beginning(first.verdict, first.status or reply.status, data)


class Relay:
    """One answer to one client."""

    def __init__(
        self, trip: Trip, lease: Booked, backend: Backend, intent: Intent, counted: Counted | None
    ) -> None:
        self._trip = trip
        self._lease = lease
        self._backend = backend
        self._intent = intent
        self._counted = counted
        self._dialect: Dialect = _DIALECTS[intent.kind]
        self._speaking = False  # the first output has come
        self._teller: Teller | None = None
        if intent.instead is not None:
            times = Times(trip.began, trip.began + trip.waited_s, _now, wall_time)
            self._teller = intent.instead.teller(times)
        self.failed = False  # the server did, and not for what was asked
        self.cut = False  # it ended at its cap

    async def run(self, reply: Reply, first: Beginning) -> web.StreamResponse:
        """Relay to the end. Raises BrokenAnswer, and ConnectionError when the client is gone."""
        if first.verdict is Verdict.ERROR:
            return await self._instead_of_an_answer(reply, first)
        if reply.status == OK and reply.is_events:
            return await self._stream(reply, first.data)
        if self._teller is not None:
            return await self._told(self._teller, reply, first.data)
        return await self._whole(reply, first.data)

    # ---- streams ---------------------------------------------------------------------------------

    async def _stream(self, reply: Reply, data: bytes) -> web.StreamResponse:
        out = await self._open(reply, streamed=True)
        tap = SseTap(self._dialect, strip_usage=self._intent.strip_usage)
        self._trip.heart.carries(tap if self._teller is None else None)
        pieces = Pieces(
            tap,
            reply,
            backend=self._backend,
            lease=self._lease,
            teller=self._teller,
            wire=Wire(self._trip.request),
            on_first=self._first_output,
            on_end=lambda: self._engine_is_done(tap, reply),
        )
        try:
            if data and (forward := pieces.look(data)):  # with the head
                await self._write(out, forward)
            else:
                self._trip.request.writer.send_headers()
            with self._trip.heart.between(pieces):
                while not await reply.pour(pieces.pass_on):
                    await self._patiently(self._trip.request.writer.drain())
            rest = tap.finish()
            if self._teller is not None:
                rest = self._teller.finish()
            if rest:
                await self._write(out, rest)
        except UpstreamError as error:
            self._learn(tap, reply)
            await self._break(out, error)
        self._engine_is_done(tap, reply)
        # Else the server closed in good order, but the mark of a complete answer never came.
        last = self._trip.heart.after(tap) if self._complete(tap) else self._in_band(_INCOMPLETE)
        if last:
            await self._write(out, last)
        await out.write_eof()
        return out

    def _first_output(self) -> None:
        self._speaking = True
        self._trip.first_output(_now())
        self._lease.first_token()
        self._backend.prefilled()

    def _engine_is_done(self, facts: Facts, reply: Reply) -> None:
        """The whole answer has come, read or not by the client: the reservation ends here."""
        if self._lease.ended:
            return
        self._learn(facts, reply)
        self.cut = not CUT.isdisjoint(facts.finish_reasons.values())
        refused = BAD_REQUEST <= reply.status < SERVER_ERROR  # the client's mistake, in any shape
        if facts.error is not None and not refused:
            outcome, reason = Outcome.FAILED, "the engine ended it with an error"
        elif self._shape_is_stream(reply) and not self._complete(facts):
            outcome, reason = Outcome.FAILED, "the answer ended without its end mark"
        elif reply.status >= SERVER_ERROR:
            outcome, reason = Outcome.FAILED, f"the engine answered {reply.status}"
        else:
            outcome, reason = Outcome.COMPLETED, None
            if not self._speaking:
                if reply.status == OK:  # its HTTP process alone says no
                    self._backend.prefilled()
                if facts.tokens:  # what an answer in one piece teaches about lengths
                    self._lease.true_up(facts.tokens)
        asked_badly = facts.error is not None and error_status(facts.error) < SERVER_ERROR
        self.failed = outcome is Outcome.FAILED and not asked_badly
        self._trip.ended(outcome, reason)
        self._lease.end(outcome)

    def _complete(self, facts: Facts) -> bool:
        """Whether an answer was given to its end: by the finish reasons of all its sequences, or by an
        error that the client has seen. The mark [DONE] comes after both."""
        done = isinstance(facts, SseTap) and facts.done
        ended = len(facts.finish_reasons) >= self._intent.prompts * self._intent.n
        return done or ended or facts.error is not None

    def _shape_is_stream(self, reply: Reply) -> bool:
        return reply.status == OK and reply.is_events

    async def _break(self, out: web.StreamResponse, error: UpstreamError) -> None:
        """The server broke mid-stream: say so, end, and let the lease know it was not the engine."""
        fault = replies.Fault(502, "upstream_error", f"the answer broke off: {error}")
        self._trip.ended(Outcome.FAILED, str(error))
        await self._write(out, self._in_band(fault))
        await out.write_eof()
        raise BrokenAnswer(error, out) from error

    # ---- answers in one piece --------------------------------------------------------------------

    async def _whole(self, reply: Reply, data: bytes) -> web.StreamResponse:
        """A body that is not an event stream: relayed as it comes, its usage read from a copy."""
        data = data or await reply.read()
        copy, size = [data], len(data)
        in_one_read = reply.ended
        if not data and reply.status == OK:  # no answer of any route is empty
            msg = "The server answered 200 with nothing in it."
            raise UpstreamError(Failure.PROTOCOL, msg, sent=True, answered=True)
        if in_one_read:  # nearly always: one read, one write
            self._engine_is_done(self._facts(copy, size), reply)
            whole = web.Response(status=reply.status, reason=reply.reason or None, body=data)
            self._head(whole, reply, framed_by=("content-length",))
            return whole
        out = await self._open(reply, streamed=False)
        try:
            while data:
                await self._write(out, data)
                data = await reply.read()
                size += len(data)
                if size <= FACTS_BYTES:
                    copy.append(data)
                if reply.ended:
                    self._engine_is_done(self._facts(copy, size), reply)
        except UpstreamError as error:
            # Half a JSON body must not look like a whole one: break the connection visibly.
            self._trip.ended(Outcome.FAILED, str(error))
            self._hang_up()
            raise BrokenAnswer(error, out) from error
        self._engine_is_done(self._facts(copy, size), reply)
        await out.write_eof()
        return out

    async def _told(self, teller: Teller, reply: Reply, data: bytes) -> web.Response:
        """A body that is told in other words, which takes all of it: nothing is out before."""
        data += await reply.read_all(teller.most_bytes)
        self._engine_is_done(self._facts([data], len(data)), reply)
        told = teller.whole(data) if reply.status == OK else None
        status, body = retold(self._trip.voice, told, data, reply.status)
        out = web.Response(status=status, body=body, content_type=replies.JSON)
        self._head(out, reply, framed_by=OTHER_FRAMING)
        return out

    def _facts(self, copy: list[bytes], size: int) -> Facts:
        return reply_facts(self._dialect, b"".join(copy) if size <= FACTS_BYTES else b"")

    async def _instead_of_an_answer(self, reply: Reply, first: Beginning) -> web.StreamResponse:
        """A 200 whose first event is an error: nothing was committed, so it gets its real status."""
        tap = SseTap(self._dialect, strip_usage=False)
        tap.feed(first.data)
        self.failed = first.status >= SERVER_ERROR
        outcome = Outcome.FAILED if self.failed else Outcome.COMPLETED
        self._trip.ended(outcome, f"the engine refused it: {first.status}")
        self._learn(tap, reply)
        self._trip.record.upstream_status = first.status
        if await _read_out(reply):
            self._lease.end(outcome)
        else:
            self._lease.abandon(outcome)
        status, body = self._trip.voice.upstream(tap.error or {}, first.status)
        return web.Response(
            status=status,
            body=body,
            headers={**self._trip.headers(), replies.SOURCE: "upstream"},
            content_type=replies.JSON,
        )

    # ---- shared ----------------------------------------------------------------------------------

    def _in_band(self, fault: replies.Fault) -> bytes:
        return self._trip.heart.error(replies.error_object(fault), fault.status)

    async def _open(self, reply: Reply, *, streamed: bool) -> web.StreamResponse:
        out = web.StreamResponse(status=reply.status, reason=reply.reason or None)
        framing = ("content-length",) if self._teller is None else OTHER_FRAMING
        self._head(out, reply, framed_by=framing if streamed else ())
        if streamed:
            if self._teller is not None:
                out.content_type = self._trip.voice.stream_type
            out.headers.setdefault("cache-control", "no-cache")
            out.headers.setdefault("x-accel-buffering", "no")
        opened = await self._trip.heart.open(out, streamed=streamed)
        if opened is not out and not streamed:  # too late for an answer of many pieces
            msg = f"The server answered {reply.status} instead of a stream."
            raise UpstreamError(Failure.TOO_LARGE, msg, sent=True, answered=True)
        return opened

    def _head(self, out: web.StreamResponse, reply: Reply, framed_by: tuple[str, ...]) -> None:
        """The server's own headers, less those of a framing that is made anew or that are ours to say."""
        for name, value in reply.headers:
            if (low := name.lower()) not in framed_by and not low.startswith(cors.PREFIX):
                out.headers.add(name, value)
        if reply.status >= 400:
            out.headers[replies.SOURCE] = "upstream"
        for name, value in self._trip.headers().items():
            out.headers[name] = value

    async def _write(self, out: web.StreamResponse, data: bytes) -> None:
        transport = self._trip.request.transport
        idle = transport is not None and not transport.get_write_buffer_size()
        if idle and len(data) <= NO_WAIT_BYTES:
            await out.write(data)
            return
        await self._patiently(out.write(data))

    async def _patiently(self, taken: Awaitable[None]) -> None:
        """Wait until the client has taken what was written."""
        try:
            async with in_time(STALLED_S):
                await taken
        except TimeoutError:
            # Closed in good order, the connection would wait for the client to take the rest.
            self._hang_up()
            msg = f"the client took nothing for {STALLED_S:g} s"
            raise ConnectionResetError(msg) from None

    def _hang_up(self) -> None:
        transport = self._trip.request.transport
        if transport is not None:
            transport.abort()

    def _learn(self, facts: Facts, reply: Reply) -> None:
        self._trip.learned(facts, reply.status, _now())
        told = self._trip.record
        if told.cached_tokens is not None:
            self._lease.cached(told.cached_tokens)
        if told.usage_prompt_tokens is None or self._backend.counter is None:
            return
        if self._counted is None or self._counted.rough or self._intent.kind not in _COMPARED:
            return
        self._backend.counter.observe(self._counted, told.usage_prompt_tokens)


_DIALECTS: dict[Kind, Dialect] = {
    Kind.CHAT: "chat",
    Kind.COMPLETION: "completion",
    Kind.GENERATE: "generate",
    Kind.MESSAGES: "messages",
    Kind.RESPONSES: "responses",
    Kind.INPUT: "chat",
    Kind.SCORE: "chat",
    Kind.RERANK: "chat",
    Kind.TEXT: "chat",
}

_COMPARED = frozenset({Kind.CHAT, Kind.COMPLETION, Kind.GENERATE, Kind.MESSAGES})
"""Whose counts are the engine's own, so that a difference from its usage means something."""

_INCOMPLETE = replies.Fault(
    502, "upstream_error", "the server ended the answer without its end mark: it is not complete"
)


async def _read_out(reply: Reply) -> bool:
    """Drop the rest of an answer that is as good as over. Whether it came to its end."""
    try:
        async with asyncio.timeout(REST_S):
            while await reply.read():
                pass
    except (TimeoutError, UpstreamError):
        return False
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()
