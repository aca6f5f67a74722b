"""A waiting stream is told that it waits, in the queue, for its first event and, where the server is silent
in between, for its next one: SSE comments or pings, which every client's parser drops, or (Ollama) a piece
of an answer without a text.

The first one brings the headers out, so from then on a complete answer (a refusal, an error of the
engine) can only be told as one event in the stream, after which it ends without a [DONE]. Whoever
has its first event within the first interval sees nothing of all this.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway.edge import replies
from gateway.edge.failed import About
from gateway.tasks import spawn
from gateway.upstream.answer import error_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.core.model import RequestId
    from gateway.edge.pieces import Pieces
    from gateway.edge.voices import Voice
    from gateway.gate import Gate
    from gateway.upstream.sse import SseTap

PLACES_S = 1.0
"""How old the places told may be, seconds: thousands that wait do not each count the whole queue."""


class Places:
    """Who waits in which place, by when they came to the queue. Weights and sizes may change it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._at = float("-inf")
        self._places: dict[RequestId, int] = {}

    def of(self, ident: RequestId) -> int:
        """The place of one that waits; 1 is the next."""
        now, waiting = self._gate.now(), self._gate.core.books.waiting
        if now >= self._at + PLACES_S or ident not in self._places:
            self._at = now
            self._places = {one: place for place, one in enumerate(waiting, 1)}
        return self._places.get(ident, 1)


class Heart:
    """The beats of one request. Without `set`, it has none and changes nothing."""

    __slots__ = (
        *("_request", "_voice", "_ident", "_model", "_tap", "_every_s", "_timer", "_task"),
        *("_writing", "_resting", "_granted", "_headers", "_waiting", "_places", "_out"),
        "_takes_events",
    )

    def __init__(self, request: web.BaseRequest, voice: Voice, ident: RequestId) -> None:
        self._request = request
        self._voice = voice
        self._ident = ident
        self._model = ""
        self._tap: SseTap | None = None  # of the stream that the client gets as it comes
        self._every_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None  # of the next beat
        self._task: asyncio.Task[None] | None = None  # in which one is written
        self._writing = False
        self._resting = True
        self._granted = False
        self._headers: Mapping[str, str] = {}
        self._waiting: Mapping[str, str] = {}
        self._out: web.StreamResponse | None = None
        self._takes_events = True  # what is open is a stream, not an answer in one piece

    def set(
        self,
        every_s: float,
        headers: Mapping[str, str],
        places: Places,
        model: str | None,
    ) -> None:
        """From now on it may beat. `headers` are what is known before the grant."""
        self._every_s, self._waiting, self._places = every_s, headers, places
        self._model = model or ""

    def beat(self) -> None:
        """It waits from now on."""
        self._resting = self._granted = False
        self._headers = self._waiting
        beating = self._task is not None and not self._task.done()
        if self._every_s is not None and self._timer is None and not beating:
            self._wait(self._every_s)

    def granted(self, headers: Callable[[], Mapping[str, str]]) -> None:
        """From now on it waits for the server's first event, which a long prompt may take minutes for.
        `headers` tells what is known now, for a stream that is not open yet."""
        self._granted = True
        if self._every_s is not None:
            self._headers = headers()

    def _wait(self, every_s: float) -> None:
        """Until the next beat there is a timer, no task: thousands may wait."""
        self._task = None
        self._timer = asyncio.get_running_loop().call_later(every_s, self._begin, every_s)

    def _begin(self, every_s: float) -> None:
        self._timer = None
        self._task = spawn(self._beat(every_s), f"heartbeat {self._ident}")

    def rest(self) -> None:
        """It waits no more. A beat that is being written is written to its end."""
        self._resting = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None and not self._writing:
            self._task.cancel()
            self._task = None

    @contextmanager
    def between(self, pieces: Pieces) -> Iterator[None]:
        """Beats in the silences of an answer that has begun: while the server's parsers keep the arguments of
        a tool back its client hears nothing for minutes, and gives up."""
        every_s, loop = self._every_s, asyncio.get_running_loop()
        if every_s is None:
            yield
            return

        timer: asyncio.TimerHandle | None = None

        def look(last: int | None) -> None:
            nonlocal timer
            said = pieces.said()
            timer = loop.call_later(every_s, look, said)
            if said is not None and said == last:
                with suppress(ConnectionError):  # it is gone, which the end of its answer finds out
                    pieces.put(self._voice.beat(0, self._model))

        timer = loop.call_later(every_s, look, pieces.said())
        try:
            yield
        finally:
            timer.cancel()

    @property
    def is_open(self) -> bool:
        """Whether the beats have opened a stream: what is told in it has no headers."""
        return self._out is not None

    async def open(self, answer: web.StreamResponse, *, streamed: bool) -> web.StreamResponse:
        """What to write an answer to: `answer`, unless the beats have opened a stream."""
        await self._rested()
        if self._out is None:
            await answer.prepare(self._request)
            self._out, self._takes_events = answer, streamed
        return self._out

    async def deliver(self, answer: web.StreamResponse) -> web.StreamResponse:
        """Whatever the answer is, in the form that is still possible: whole, as an event of an open
        stream, or, where half an answer in one piece is out, as a connection that breaks visibly."""
        await self._rested()
        out = self._out
        if out is None or answer is out:
            return answer
        if not self._takes_events:
            self.hang_up()
            return out
        body = answer.body if isinstance(answer, web.Response) else None
        error = replies.error_in(body if isinstance(body, bytes) else b"", answer.status)
        await out.write(self.error(replies.without_headers(error, answer.headers), answer.status))
        await out.write_eof()
        return out

    def carries(self, tap: SseTap | None) -> None:
        """What the stream is filled with from now on; None where it is told anew, in whole lines."""
        self._tap = tap

    def error(self, error: dict[str, Any], status: int) -> bytes:
        """An error in the stream that is open, apart from half an event that may stand before it."""
        gap = b"" if self._tap is None else self._tap.gap()
        return gap + self._voice.event(error, status, self._about)

    def after(self, tap: SseTap) -> bytes:
        """What is missing behind an error that the engine told in its stream; mostly nothing."""
        if (error := tap.error) is None or tap.finish_reasons:
            return b""
        last = self._voice.after(error, error_status(error), self._about)
        return tap.gap() + last if last else b""

    @property
    def _about(self) -> About:
        return About(self._ident, self._model, self._tap)

    def hang_up(self) -> None:
        """End the connection now, whatever is under way on it."""
        if (transport := self._request.transport) is not None:
            transport.abort()

    async def _rested(self) -> None:
        self.rest()
        if self._task is not None:
            await asyncio.wait([self._task])
            self._task = None

    async def _beat(self, every_s: float) -> None:
        self._writing = True
        try:
            await self._one()
        except ConnectionError:  # the handler is being cancelled for it
            return
        finally:
            self._writing = False
        if not self._resting:
            self._wait(every_s)

    async def _one(self) -> None:
        if self._out is None:
            headers = {"content-type": self._voice.stream_type, "cache-control": "no-cache"}
            headers |= {**self._headers, "x-accel-buffering": "no"}
            out = web.StreamResponse(status=200, headers=headers)
            await out.prepare(self._request)
            self._out = out
        place = None if self._granted else self._places.of(self._ident)
        await self._out.write(self._voice.beat(place, self._model))
