"""One generation on the fake engine: what is seen of the request, and how the answer goes out.

A generation that is aborted ends with finish reason "abort", as on the engine. One whose peer has
left goes on for nobody until the engine notices; what it would have sent is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.fakes import dialects, typed
from tests.fakes.dialects import DONE, GENERATE, Job, sse
from tests.fakes.http1 import Received, Wire, head
from tests.fakes.typed import MESSAGES, TYPED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.behaviour import Behaviour

MAX_UNSCRIPTED = 8
"""Output tokens where neither the behaviour nor the body says how many."""

STREAM_HEAD = {
    "content-type": "text/event-stream; charset=utf-8",
    "transfer-encoding": "chunked",
}


@dataclass(eq=False)
class Seen:
    """One generation request, from the engine's side. Times are the loop's clock, seconds."""

    received: Received
    job: Job
    rank: int
    wire: Wire
    arrived: float
    gone_at: float | None = None
    ended_at: float | None = None
    events: int = 0  # tokens made per sequence
    how: str = "running"  # then finished, aborted, abandoned (peer left), broken or refused
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    abort: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def headers(self) -> dict[str, str]:
        return self.received.headers

    @property
    def body(self) -> Any:
        return self.received.json()

    @property
    def rid(self) -> str:
        return self.job.rid

    @property
    def held(self) -> int:
        """KV tokens: each prompt × n and what was made."""
        return sum(self.job.prompts) * self.job.n + self.events * self.job.sequences


class Play:
    """Carries out a behaviour. `stepping` is clear while the scheduler hangs."""

    def __init__(
        self, seen: Seen, behaviour: Behaviour, stepping: asyncio.Event, moved: Callable[[], None]
    ) -> None:
        self.seen = seen
        self.behaviour = behaviour
        self._stepping = stepping
        self._moved = moved
        wanted = MAX_UNSCRIPTED if behaviour.tokens is None else behaviour.tokens
        self._total = min(wanted, seen.job.cap)
        self._finish = "length" if self._total == seen.job.cap else "stop"

    @property
    def _aborted(self) -> bool:
        return self.seen.abort.is_set()

    async def run(self) -> str:
        """Play it to its end; returns the word for `Seen.how`."""
        behaviour = self.behaviour
        await self._pause(behaviour.head_delay_s)
        if behaviour.never:
            await self.seen.abort.wait()
        if behaviour.hold_at == 0:
            await self._held()
        await self._stepping.wait()
        if self._cut():
            return "broken"
        if behaviour.raw is not None:
            await self._emit(behaviour.raw)
            if behaviour.hold_at:
                await self._held()
            self.seen.wire.close()
            return "finished"
        if behaviour.error is not None and behaviour.error_at is None:
            return await self._refuse(*behaviour.error)
        how = await (self._stream() if self.seen.job.stream else self._whole())
        if behaviour.close_connection:
            self.seen.wire.close()
        return how

    async def _refuse(self, status: int, message: str) -> str:
        if status == 503 and self.seen.job.stream:  # the engine says it inside the stream
            await self._emit(head(200, STREAM_HEAD))
            return await self._error_event(status, message)
        if status == 503 and self.seen.job.path == MESSAGES:
            status, message = 500, "Internal server error"  # whatever the scheduler said
        body = dialects.error_body(status, message, self.seen.job.path)
        await self._emit(head(status, _json_head(body)) + body)
        return "refused"

    async def _error_event(self, status: int, message: str) -> str:
        job = self.seen.job
        if job.path in TYPED and not self.seen.events:
            for event in job.first_events():
                await self._chunk(sse(event))
        await self._chunk(sse(job.error_event(status, message)))
        if job.path == MESSAGES:
            await self._chunk(sse({"type": "message_stop"}))
        await self._end_stream()
        return "refused"

    async def _stream(self) -> str:
        job, seen, behaviour = self.seen.job, self.seen, self.behaviour
        await self._emit(head(200, STREAM_HEAD | self._closing()))
        for event in job.first_events():
            await self._chunk(sse(event))
        for event in typed.opening(job.path) if job.path in TYPED else ():
            await self._chunk(sse(event))
        while seen.events < self._total:
            await self._step()
            if self._aborted:
                break
            seen.events += 1
            await self._token(last=seen.events == self._total)
            if self._cut():
                return "broken"
            if behaviour.error is not None and behaviour.error_at == seen.events:
                return await self._error_event(*behaviour.error)
        await self._last_events()
        await self._end_stream()
        return "aborted" if self._aborted else "finished"

    async def _token(self, *, last: bool) -> None:
        """One token of each sequence. /generate puts the finish reason on the last one."""
        job = self.seen.job
        reason = self._finish if last and job.path == GENERATE else None
        text = " w" + "x" * self.behaviour.pad
        for index in range(job.sequences):
            await self._chunk(sse(job.event(index, self.seen.events, text, reason)))
        self._moved()

    async def _last_events(self) -> None:
        job, made = self.seen.job, self.seen.events
        if job.path in TYPED:
            usage = typed.parts(sum(job.prompts), made)
            text, finish = " w" * made, "abort" if self._aborted else self._finish
            for event in typed.last_events(job.path, job.rid, job.model, usage, text, finish):
                await self._chunk(sse(event))
            return
        if job.path != GENERATE or self._aborted:
            reason = "abort" if self._aborted else self._finish
            for index in range(job.sequences):
                await self._chunk(sse(job.event(index, made, "", reason)))
        if job.usage and job.path != GENERATE:
            await self._chunk(sse(job.usage_event(made)))

    async def _end_stream(self) -> None:
        if self.seen.job.path not in TYPED:
            await self._chunk(DONE)
        await self._chunk(b"")

    async def _whole(self) -> str:
        seen = self.seen
        while seen.events < self._total and not self._aborted:
            await self._step()
            seen.events += 0 if self._aborted else 1
            self._moved()
        how, finish = ("aborted", "abort") if self._aborted else ("finished", self._finish)
        text = " ".join(["w"] * seen.events) + "x" * self.behaviour.pad
        body = json.dumps(seen.job.whole(seen.events, text, finish)).encode()
        headers = self._closing()
        if self.behaviour.gzip:
            body, headers = gzip.compress(body), headers | {"content-encoding": "gzip"}
        half = len(body) // 2
        await self._emit(head(200, _json_head(body) | headers) + body[:half])
        if self._cut():
            return "broken"
        await self._emit(body[half:])
        return how

    def _closing(self) -> dict[str, str]:
        return {"connection": "close"} if self.behaviour.close_connection else {}

    async def _step(self) -> None:
        """The time before the next token."""
        if self.seen.events:
            await self._pause(self.behaviour.gap_s)
            if self.behaviour.hold_at == self.seen.events:
                await self._held()
        await self._stepping.wait()

    async def _held(self) -> None:
        """Wait until the test lets go, or for an abort."""
        if self.behaviour.hold is None:
            return
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(event.wait()) for event in (self.behaviour.hold, self.seen.abort)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _pause(self, seconds: float) -> None:
        """That long, or until the request is aborted."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.seen.abort.wait()

    def _cut(self) -> bool:
        """Break the connection here, if the behaviour says so."""
        at, behaviour = self.seen.events, self.behaviour
        if behaviour.reset_at is not None and at >= behaviour.reset_at:
            self.seen.wire.reset()
            return True
        if behaviour.close_at is not None and at >= behaviour.close_at:
            self.seen.wire.close()
            return True
        return False

    async def _emit(self, data: bytes) -> None:
        if not self.seen.wire.gone:
            with contextlib.suppress(ConnectionError):
                await self.seen.wire.send(data)

    async def _chunk(self, data: bytes) -> None:
        await self._emit(b"%x\r\n%b\r\n" % (len(data), data))


def _json_head(body: bytes) -> dict[str, str]:
    return {"content-type": "application/json", "content-length": str(len(body))}
