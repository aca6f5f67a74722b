"""Follow the life of one server: when it came, what it holds, when it went.

One background task asks one question at a time. While the server is away it tries `discover` with a
growing pause; once that succeeds the server is READY and the task only polls the loads and, where
those say nothing, /v1/models: neither goes through the scheduler from 0.5.17 on, so a poll can
neither disturb the engine nor hang behind it.

What marks a server DOWN, and what does not:
- **A hint from the data path** (`suspect`: a connection reset, refused or cut short). Believed at
  once, then checked by a new discovery.
- **Questions that fail** while not one byte of a real request comes (`alive`): see `failing`.
- **Another process behind the same door**: the pool or the count of prefilled tokens in the loads
  is not what it can have become. Not where several are known to answer in turn (see `starts`).

`on_down` means *admit nothing*. It does not mean that what the server held is gone. That is known

- when `starts` has grown by the time `on_up` is called: another process is there, or
- when `on_gone` is called: the door of a server that was DOWN was found shut, in `EVIDENCE`
  questions in a row, or no way to it for `cut_off_s` (see `door`).

The opposite is known when `on_up` is called and `starts` is as before: asked after the last hint,
its scheduler answered (/server_info goes through it), and it is the process it was.

**Stalled** is a server whose door answers and whose scheduler shows no sign of life with work of
ours: no byte of an answer, no new snapshot of its loads, for `Pace.stall_s`. /v1/models answers 200
all the while. `/health`, which generates a token, is asked once before that is said, and can only
speak for the server (behind a long prefill it fails on a healthy one). `on_stall` and `on_move` mean
*admit nothing for now* and *go on*; nothing is written off.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.tasks import spawn
from gateway.upstream.ask import AskError, Wrong, ask, bearer
from gateway.upstream.discover import DiscoveryError, discover, generates, loads
from gateway.upstream.door import Door
from gateway.upstream.failing import Failing
from gateway.upstream.life import Life, Pace, WatchView
from gateway.upstream.loads import another_process
from gateway.upstream.polls import Polls
from gateway.upstream.starts import SEVERAL, Starts

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.upstream.ask import Asker
    from gateway.upstream.facts import ServerFacts
    from gateway.upstream.loads import LoadsFacts


__all__ = ["Life", "Pace", "Watch", "WatchView"]


def _ignore(_: str) -> None:
    """For those who need not know."""


class Watch:
    """See the module. Callbacks are called in the loop's thread, `on_down` also inside `suspect`.

    `busy_since` tells since when (loop's clock) the server has had work of ours, None without any.
    `start` begins, `stop` ends; both once.
    """

    def __init__(
        self,
        client: Asker,
        *,
        name: str,
        api_key: str | None,
        on_up: Callable[[ServerFacts], None],
        on_down: Callable[[str], None],
        on_loads: Callable[[LoadsFacts], None],
        on_gone: Callable[[str], None] = _ignore,
        on_stall: Callable[[str], None] = _ignore,
        on_move: Callable[[], None] = lambda: None,
        on_away: Callable[[str], None] = _ignore,
        busy_since: Callable[[], float | None] = lambda: None,
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._api_key = api_key
        self._on_up = on_up
        self._on_down = on_down
        self._on_loads = on_loads
        self._on_gone = on_gone
        self._on_stall = on_stall
        self._on_move = on_move
        self._on_away = on_away  # it can not be used now: once for each kind of reason
        self._why_away: str | None = None
        self._busy_since = busy_since
        self._pace = pace or Pace()
        self._now = asyncio.get_running_loop().time
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._state = Life.CONNECTING
        self._since = 0.0
        self._error: str | None = None
        self._facts: ServerFacts | None = None
        self._starts = Starts()
        self._loads_of_another = False  # why it is asked who it is
        self._door = Door(self._pace.cut_off_s)
        self._doubted = False  # a hint came since the discovery under way began
        self._failing = Failing(self._pace.silent_for_s)
        self._asking: asyncio.Timeout | None = None
        self._stalled = False
        self._scheduler_at = -math.inf  # its last sign of life
        self._health_asked_at = -math.inf
        self.asked = asyncio.Event()  # its loads have been asked for once since it is up
        self._polls = Polls(self._pace)
        self._bytes_at = -math.inf
        self._asked_at = 0.0

    def start(self) -> None:
        """Begin to watch, in the background."""
        self._since = self._now()
        self._task = spawn(self._run(), f"watch {self._name}")

    async def stop(self) -> None:
        """Stop asking. No callback comes after this."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # ---- what the data path tells ----

    def alive(self) -> None:
        """A byte of a real answer has come. Cheap: called for each piece of each stream."""
        self._bytes_at = self._now()
        if self._stalled:
            self._moves()

    @property
    def heard_at(self) -> float:
        """When the last byte of a real answer came; minus infinity before the first."""
        return self._bytes_at

    def suspect(self, reason: str) -> None:
        """A real request failed in a way that a dead server explains: reset, refused, cut short.

        DOWN before this returns; the server is asked anew at once, and where a discovery is under
        way, once more after it. `reason` is shown to people.
        """
        self._doubted = True
        if self._asking is not None:
            with contextlib.suppress(RuntimeError):  # nothing is being asked
                self._asking.reschedule(self._now())
        self._down(reason)
        self._wake.set()

    def want_loads(self, until: float) -> None:
        """Poll fast until then (loop's clock), for somebody who waits to see a request gone."""
        self._polls.want(until)
        self._wake.set()

    @property
    def starts(self) -> int:
        """Starts of the server seen so far. Grown since the last `on_up`: it holds nothing of ours."""
        return self._starts.seen

    def snapshot(self) -> WatchView:
        """What is known now."""
        now = self._now()
        return WatchView(
            state=Life.STALLED if self._stalled else self._state,
            since=self._since,
            error=self._error,
            facts=self._facts,
            starts=self._starts.seen,
            loads=self._polls.last,
            loads_age_s=self._polls.age_s(now),
            metrics_stale=self._state is Life.READY and self._polls.stale(now, self._since),
        )

    async def _run(self) -> None:
        while True:
            self._up(await self._reach())
            await self._mind()

    async def _reach(self) -> ServerFacts:
        """Try until the server can be used."""
        pause, longest = self._pace.backoff_s
        while True:
            self._doubted = False
            try:
                facts = await discover(
                    self._client, api_key=self._api_key, timeout_s=self._pace.discover_s
                )
            except DiscoveryError as error:
                self._away(error)
            else:
                if not self._doubted:
                    return facts
                continue  # some of its answers may be from before the hint
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    def _away(self, error: DiscoveryError) -> None:
        """It can not be used now. Two shut doors in a row, or no way to it for long: what it held is
        gone."""
        away = Life.DOWN if self._facts else Life.CONNECTING
        self._enter(Life.STARTING if error.kind == "starting" else away, str(error))
        if error.kind != self._why_away:
            self._why_away = error.kind
            self._on_away(str(error))
        if self._door.failed(error.kind, self._now()) and self._facts is not None:
            self._on_gone(str(error))

    def _up(self, facts: ServerFacts) -> None:
        now, shut, odd = self._now(), self._door.was_shut, self._loads_of_another
        self._starts.met(facts, now, was_shut=shut, loads_of_another=odd)
        self._loads_of_another = False
        if self._starts.several(now):
            facts = replace(facts, warnings=(SEVERAL, *facts.warnings))
        self._door.opened()
        self._why_away = None
        self._scheduler_at = self._now()  # it has just answered /server_info
        self.asked.clear()
        self._facts = facts
        self._polls.begin(facts.version)
        self._asked_at = -math.inf
        self._answered()
        self._enter(Life.READY, None)
        self._on_up(facts)

    async def _mind(self) -> None:
        """Poll while the server is READY; returns once it is DOWN."""
        while self._state is Life.READY:
            failing = self._failing.in_a_row > 0
            pause_s = self._polls.interval_s(self._now(), failing=failing)
            if await self._rest(self._asked_at + pause_s):
                self._asked_at = self._now()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None) as self._asking:  # until `suspect` ends it
                        await self._question()
                        await self._doubt_the_scheduler()

    async def _rest(self, until: float) -> bool:
        """Wait; False where somebody woke us before `until`."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._wake.wait()
                return False
        return True

    async def _question(self) -> None:
        """Ask for the loads; where they are not to be had, whether anybody is there."""
        if self._polls.offered and not self._failing.in_a_row:
            came = await self._ask_loads()
            self.asked.set()
            if came:
                return
        try:
            await ask(self._client, "/v1/models", bearer(self._api_key), timeout_s=self._pace.ask_s)
        except AskError as error:
            self._failed(error)
        else:
            self._answered()

    async def _ask_loads(self) -> bool:
        """Whether they came. Where they did not, that alone is no evidence against the server."""
        version = None if self._facts is None else self._facts.version
        try:
            got = await loads(
                self._client, version, api_key=self._api_key, timeout_s=self._pace.ask_s
            )
        except AskError:
            self._polls.failed()
            return False
        before = self._polls.came(got, self._now())
        if got is None:
            return False
        self._answered()
        if got.freshest_s is not None:
            self._sign(self._now() - got.freshest_s)
        elif not self._polls.cheap:
            self._sign(self._now())
        if self._state is Life.READY:
            self._on_loads(got)
            if before is None or self._starts.several(self._now()):
                return True
            if sign := another_process(before, got):
                self._loads_of_another = True
                self._down(sign)
        return True

    # ---- a scheduler that does not move ----

    async def _doubt_the_scheduler(self) -> None:
        """Say so where it has work and has shown no sign of life for too long."""
        if self._stalled or self._state is not Life.READY:
            return
        limit, quiet = self._pace.stall_s, self._quiet()
        if quiet < limit / 2:
            return
        if self._health_asked_at < self._now() - quiet:  # not yet in this silence
            self._health_asked_at = self._now()
            if await generates(self._client, api_key=self._api_key, timeout_s=limit / 2):
                self._sign(self._now())
        elif quiet >= limit:
            self._stalled, self._since = True, self._now()
            self._error = f"it answers, but nothing has moved in its scheduler for {quiet:.0f} s"
            self._on_stall(self._error)

    def _quiet(self) -> float:
        """Seconds without a sign of life although it had work of ours; 0 where it has none."""
        busy = self._busy_since()
        if busy is None:
            return 0.0
        return self._now() - max(busy, self._bytes_at, self._scheduler_at)

    def _sign(self, at: float) -> None:
        """The scheduler was at work at `at`."""
        self._scheduler_at = max(self._scheduler_at, at)
        if self._stalled and self._scheduler_at > self._since:
            self._moves()

    def _moves(self) -> None:
        self._stalled, self._since, self._error = False, self._now(), None
        if self._state is Life.READY:
            self._on_move()

    def _answered(self) -> None:
        self._failing.answered()
        if self._state is Life.READY and not self._stalled:
            self._error = None

    def _failed(self, error: AskError) -> None:
        """Weigh a question that failed."""
        if self._state is not Life.READY or error.wrong is Wrong.OURS:
            return
        self._error = str(error)
        gone = self._failing.failed(
            error, asked_at=self._asked_at, heard_at=self._bytes_at, now=self._now()
        )
        if gone is not None:
            self._down(gone)

    def _down(self, reason: str) -> None:
        if self._state is Life.READY:
            self._stalled = False
            self._enter(Life.DOWN, reason)
            self._on_down(reason)

    def _enter(self, state: Life, error: str | None) -> None:
        self._error = error
        if state is not self._state:
            self._state, self._since = state, self._now()
