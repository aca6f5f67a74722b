"""SGLang's HTTP face before a twin process, on asyncio, in real time or `speed` times faster.

The server owns one clock (the loop's, times `speed`), one timer that fires when the process says
something will have happened, and one inbox per request in flight. Routes are in `faces`; this module
starts and stops listening as the process lives and dies, and lets tests script its faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.tasks import spawn
from gateway.twin import faces, tokenizer
from gateway.twin.inbox import Inbox
from gateway.twin.jobs import Died, Job
from gateway.twin.process import Life, Process
from gateway.twin.versions import traits_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from gateway.twin.asks import Ask
    from gateway.twin.engine import Engine
    from gateway.twin.lengths import LengthSource
    from gateway.twin.profiles import Profile

ENDLESS = 1 << 30  # tokens a model wants to produce when it may not stop
TURNS = 3  # of asyncio's loop, from accepting a connection to its being known here
POLL_S = 4.0  # SGLANG_REQUEST_STATE_WAIT_TIMEOUT: how often a silent request looks for its client


class TwinServer:
    """One SGLang-like server on 127.0.0.1.

    `speed` makes time run that many times faster; `restart_s` (engine seconds from death to ready,
    default the profile's) and `pool_after_restart` say how it comes back; `lengths` replaces the
    profile's length source. A body may carry `twin_output_tokens` to script its own length.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        version: str = "0.5.17",
        host: str = "127.0.0.1",
        port: int = 0,
        speed: float = 1.0,
        seed: int = 0,
        restart_s: float | None = None,
        pool_after_restart: Sequence[int] = (),
        lengths: LengthSource | None = None,
    ) -> None:
        self.profile = profile
        self.traits = traits_of(version)
        self.process = Process(
            profile, self.traits, restart_s=restart_s, pools=tuple(pool_after_restart)
        )
        self.speed = speed
        self.last_output = 0.0
        self.inboxes: dict[str, Inbox] = {}
        self._lengths = lengths or profile.lengths
        self._random = random.Random(seed)  # noqa: S311 - lengths, not secrets
        self._host = host
        self._port = port
        self._epoch = 0.0
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._life = Life.READY
        self._turning: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[None]] = set()

    # ---- life

    async def start(self) -> None:
        """Listen. `url` is known afterwards."""
        self._epoch = asyncio.get_running_loop().time()
        self._runner = web.AppRunner(
            faces.application(self),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        await self._listen()

    async def stop(self) -> None:
        """Cut every connection and stop listening. The engine keeps its last state."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stopped = True
        for task in (*self._late, *filter(None, [self._turning])):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._cut()
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it listens, or listened before it died."""
        return f"http://{self._host}:{self._port}"

    @property
    def engine(self) -> Engine:
        """The scheduler of the moment: the truth behind the face."""
        return self.process.engine

    @property
    def crashes(self) -> int:
        """How often the scheduler died."""
        return len(self.process.deaths)

    @property
    def retractions(self) -> int:
        """Retractions by all the engines so far."""
        return sum(each.retractions for each in (*self.process.past, self.engine.counters))

    @property
    def peak_used(self) -> int:
        """Most pool tokens in use at once, over all the engines so far."""
        return max(each.peak_used for each in (*self.process.past, self.engine.counters))

    @property
    def peak_waiting(self) -> int:
        """Longest queue inside the engine so far, requests."""
        return max(each.peak_waiting for each in (*self.process.past, self.engine.counters))

    def now(self) -> float:
        """Engine seconds since the start."""
        return (asyncio.get_running_loop().time() - self._epoch) * self.speed

    async def sleep(self, seconds: float) -> None:
        """Sleep engine seconds."""
        await asyncio.sleep(seconds / self.speed)

    # ---- faults

    def kill(self, reason: str = "the scheduler was killed") -> None:
        """SIGKILL of the scheduler: silence, then a reset, then refusal, then a restart."""
        self.process.kill(self.now(), reason)
        self.pump()

    def freeze(self) -> None:
        """SIGSTOP of the scheduler."""
        self.pump()
        self.process.freeze(self.now())
        self.pump()

    def thaw(self) -> None:
        """SIGCONT of the scheduler."""
        self.process.thaw(self.now())
        self.pump()

    def terminate(self) -> None:
        """SIGTERM of the server: it drains and leaves for good."""
        self.process.terminate(self.now())
        self.pump()

    # ---- the engine's side

    def submit(self, ask: Ask) -> Inbox:
        """Hand every sequence of `ask` to the engine. Their events come to one inbox."""
        inbox = Inbox()
        now = self.now()
        for sequence in ask.sequences:
            prompt = tokenizer.count(sequence.prompt)
            want = sequence.want
            if want is None:
                want = self._lengths(self._random, prompt)
            if sequence.ignore_eos:
                want = ENDLESS
            self.inboxes[sequence.rid] = inbox
            if sequence.rid.startswith("HEALTH_CHECK") and not self.engine.idle:
                continue  # SGLang takes it for its own probe and swallows it: no answer ever
            self.process.submit(
                Job(
                    rid=sequence.rid,
                    prompt=prompt,
                    want=want,
                    cap=sequence.cap,
                    blocks=tokenizer.blocks(sequence.prompt, self.profile.block),
                    ignore_eos=sequence.ignore_eos,
                ),
                now,
            )
        self.pump()
        return inbox

    def abort(self, prefix: str) -> None:
        """End what starts with `prefix`, as SGLang's abort does."""
        self.process.abort(prefix, self.now())
        self.pump()

    def forget(self, ask: Ask) -> None:
        """The handler of `ask` is done: drop its inboxes."""
        for sequence in ask.sequences:
            self.inboxes.pop(sequence.rid, None)

    def leave(self, ask: Ask, started: float, *, flowing: bool) -> None:
        """The client of `ask` is gone. A stream that flows is aborted at once; anything else when
        the next poll looks for its client."""
        self.forget(ask)
        rid = ask.rid

        async def later() -> None:
            waited = self.now() - started
            await self.sleep(POLL_S - waited % POLL_S)
            self.abort(rid)

        if ask.stream and len(ask.sequences) > 1 and not self.traits.aborts_streamed_n:
            return  # the rids were made anew, nobody knows them: it runs to its end
        if not rid and not self.traits.empty_rid_aborts_all:
            return  # "" is the beginning of every rid
        if flowing:
            self.abort(rid)
        else:
            self._late.add(task := spawn(later(), "twin-abort"))
            task.add_done_callback(self._late.discard)

    def pump(self) -> None:
        """Play the process up to now, deliver its events, follow its life, set the timer."""
        if self._stopped:
            return
        now = self.now()
        for event in self.process.advance(now):
            if isinstance(event, Died):
                continue
            self.last_output = event.at
            inbox = self.inboxes.get(event.rid)
            if inbox is not None:
                inbox.put(event)
        if self.process.life is not self._life and self._turning is None:
            self._turning = spawn(self._follow(), "twin-life")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake = self.process.next_wakeup()
        if wake is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._epoch + wake / self.speed, self.pump)

    async def _follow(self) -> None:
        """Make the socket say what the process's life says."""
        while self._life is not self.process.life:
            self._life = self.process.life
            match self._life:
                case Life.SILENT:
                    pass
                case Life.GONE:
                    if self._site is not None:
                        await self._site.stop()
                        self._site = None
                    self._cut()
                    # asyncio makes a transport some turns of the loop after it has accepted: one
                    # that was accepted last appears only now.
                    for _ in range(TURNS):
                        await asyncio.sleep(0)
                    self._cut()
                    self.inboxes.clear()
                case Life.READY:
                    if self._site is None:
                        await self._listen()
        self._turning = None

    async def _listen(self) -> None:
        runner = self._runner
        if runner is None:
            raise RuntimeError("the twin was not started")
        self._site = web.TCPSite(runner, self._host, self._port, reuse_address=True)
        await self._site.start()
        if self._port == 0:
            self._port = int(runner.addresses[0][1])

    def _cut(self) -> None:
        if self._runner is None or self._runner.server is None:
            return
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
