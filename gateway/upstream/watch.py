"""Follow the life of one server: when it came, what it holds, when it went.

One background task asks one question at a time. While the server is away it tries `discover` with a
growing pause; once that succeeds the server is READY and the task only polls the loads and, where
those say nothing, /v1/models: neither goes through the scheduler from 0.5.17 on, so a poll can
neither disturb the engine nor hang behind it.

What marks a server DOWN, and what does not:
- **A hint from the data path** (`suspect`: a connection reset, refused or cut short). Believed at
  once, then checked by a new discovery.
- **A door that is shut or strange**: two questions in a row refused, reset or answered with an
  error, and not one byte of a real request (`alive`) since the first.
- **A door that is open and silent**, as a server is for about 5.4 s after its scheduler was killed
  (measured on 0.5.17 and 0.5.23): /v1/models, which needs no scheduler, unanswered for
  `silent_for_s` in several questions, and not one byte of a real request since the first. In that
  window the streams usually break or the door shuts sooner; then one of the rules above speaks.
- **Another process behind the same door**: the pool or the count of prefilled tokens in the loads
  is not what it can have become.
- Not: failing polls while bytes flow. A busy server is not a dead one.

`on_down` means *admit nothing*. It does not mean that what the server held is gone: that is known
when `starts` has grown by the time `on_up` is called, or when each stream ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from gateway.tasks import spawn
from gateway.upstream.ask import AskError, Wrong, ask, bearer
from gateway.upstream.discover import (
    SNAPSHOT_SINCE,
    DiscoveryError,
    discover,
    loads,
)
from gateway.upstream.facts import STARTUP_TIME_SINCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.upstream.ask import Asker
    from gateway.upstream.facts import ServerFacts
    from gateway.upstream.loads import LoadsFacts


EVIDENCE = 2
"""Questions in a row that must fail: one may have met a kept connection that was just closed."""


class Life(StrEnum):
    """Where a server is in its life. The words are part of /status."""

    CONNECTING = "connecting"  # never reached since the gate started
    STARTING = "starting"  # it answers that it is still loading
    READY = "ready"
    DOWN = "down"  # it was ready, and is not


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how long, in seconds."""

    loads_s: float = 1.0
    """Between polls of loads; the ledger decides, loads only confirm."""
    loads_wanted_s: float = 0.2
    """The same while an abandoned request waits to be confirmed gone: a stream is freed within
    0.03 s of its abort, so slower polls would be most of the wait."""
    probe_s: float = 5.0
    """Between questions of any kind at least; and between loads that go through the scheduler."""
    retry_s: float = 0.5
    """After a question failed, before the next."""
    ask_s: float = 3.0
    """Limit for one poll. SGLang tokenizes on its HTTP loop, so seconds of delay are no fault."""
    discover_s: float = 10.0
    """Limit for one request of a discovery, which may wait behind a long prefill step."""
    backoff_s: tuple[float, float] = (0.2, 2.0)
    """Between discoveries that failed: first and longest pause. A model loads for minutes; two
    seconds late is not noticed, and asking a shut door costs nothing."""
    silent_for_s: float = 10.0
    """How long an open door may stay silent. Twice the 5.4 s a dying server takes to shut it."""
    stale_after_s: float = 10.0
    """Age at which loads are called stale."""


@dataclass(frozen=True, slots=True)
class WatchView:
    """What is known now, for people. Times are the loop's clock, seconds."""

    state: Life
    since: float
    error: str | None  # the last thing that went wrong, in words; None once all is well
    facts: ServerFacts | None  # of the last start that was seen
    starts: int  # starts seen by this watch
    loads: LoadsFacts | None
    loads_age_s: float | None  # since they came; how old they were then is in them
    metrics_stale: bool  # loads are offered but old; the gate goes on by its own ledger


class Watch:
    """See the module. Callbacks are called in the loop's thread, `on_down` also inside `suspect`.

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
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._api_key = api_key
        self._on_up = on_up
        self._on_down = on_down
        self._on_loads = on_loads
        self._pace = pace or Pace()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._state = Life.CONNECTING
        self._since = 0.0
        self._error: str | None = None
        self._facts: ServerFacts | None = None
        self._starts = 0
        self._door_was_shut = False
        self._loads: LoadsFacts | None = None
        self._loads_at: float | None = None
        self._offers_loads = True
        self._loads_answer = True
        self._fast_until = 0.0
        self._bytes_at = -math.inf
        self._asked_at = 0.0
        self._failing_since: float | None = None
        self._failures = 0

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

    def suspect(self, reason: str) -> None:
        """A real request failed in a way that a dead server explains: reset, refused, cut short.

        DOWN before this returns; the server is asked anew at once. `reason` is shown to people.
        """
        self._down(reason)
        self._wake.set()

    def want_loads(self, until: float) -> None:
        """Poll fast until then (loop's clock), for somebody who waits to see a request gone."""
        self._fast_until = max(self._fast_until, until)
        self._wake.set()

    @property
    def starts(self) -> int:
        """Starts of the server seen so far. Grown since the last `on_up`: it holds nothing of ours."""
        return self._starts

    def snapshot(self) -> WatchView:
        """What is known now."""
        now = self._now()
        return WatchView(
            state=self._state,
            since=self._since,
            error=self._error,
            facts=self._facts,
            starts=self._starts,
            loads=self._loads,
            loads_age_s=None if self._loads_at is None else now - self._loads_at,
            metrics_stale=self._state is Life.READY and self._stale(now),
        )

    @property
    def _cheap_loads(self) -> bool:
        """Whether loads are read without the scheduler."""
        version = None if self._facts is None else self._facts.version
        return version is None or version >= SNAPSHOT_SINCE

    def _stale(self, now: float) -> bool:
        """Loads are offered, and the last ones are old or describe a standstill.

        An idle scheduler publishes no snapshots, so the age of one that shows no work says nothing.
        """
        if not self._offers_loads:
            return False
        limit = self._pace.stale_after_s
        if self._loads is None or self._loads_at is None:
            return now - self._since > limit
        busy = self._loads.running + self._loads.waiting > 0
        snapshot_age = (self._loads.age_s or 0.0) if busy else 0.0
        return now - self._loads_at + snapshot_age > limit

    # ---- the task ----

    async def _run(self) -> None:
        while True:
            self._up(await self._reach())
            await self._mind()

    async def _reach(self) -> ServerFacts:
        """Try until the server can be used."""
        pause, longest = self._pace.backoff_s
        while True:
            try:
                return await discover(
                    self._client, api_key=self._api_key, timeout_s=self._pace.discover_s
                )
            except DiscoveryError as error:
                self._door_was_shut |= error.kind == "unreachable"
                away = Life.DOWN if self._facts else Life.CONNECTING
                self._enter(Life.STARTING if error.kind == "starting" else away, str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    def _up(self, facts: ServerFacts) -> None:
        if self._is_another_start(facts):
            self._starts += 1
        self._door_was_shut = False
        self._facts, self._loads, self._loads_at = facts, None, None
        self._offers_loads = self._loads_answer = True
        self._asked_at = -math.inf
        self._answered()
        self._enter(Life.READY, None)
        self._on_up(facts)

    def _is_another_start(self, facts: ServerFacts) -> bool:
        """By its key; where two starts may share one (see `started_key`), also by a shut door."""
        if self._facts is None or self._facts.started_key != facts.started_key:
            return True
        telling = facts.version is not None and facts.version >= STARTUP_TIME_SINCE
        return self._door_was_shut and not telling

    async def _mind(self) -> None:
        """Poll while the server is READY; returns once it is DOWN."""
        while self._state is Life.READY:
            if await self._rest(self._asked_at + self._interval()):
                self._asked_at = self._now()
                await self._question()

    def _interval(self) -> float:
        """Seconds from the last question to the next."""
        pace = self._pace
        if self._failures:
            return pace.retry_s
        if not self._offers_loads:
            return pace.probe_s
        if self._now() < self._fast_until:
            return pace.loads_wanted_s
        return pace.loads_s if self._cheap_loads and self._loads_answer else pace.probe_s

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
        if self._offers_loads and not self._failures and await self._ask_loads():
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
            self._loads_answer = False
            return False
        self._loads_answer = self._offers_loads = got is not None
        if got is None:
            return False
        self._answered()
        before, self._loads, self._loads_at = self._loads, got, self._now()
        if self._state is Life.READY:
            self._on_loads(got)
            if before is not None and (sign := _another_process(before, got)):
                self._down(sign)
        return True

    def _answered(self) -> None:
        self._failing_since, self._failures = None, 0
        if self._state is Life.READY:
            self._error = None

    def _failed(self, error: AskError) -> None:
        """Weigh a question that failed; see the module for the rules."""
        if self._state is not Life.READY:
            return
        if self._failing_since is None or self._bytes_at >= self._failing_since:
            self._failing_since, self._failures = self._asked_at, 0
        self._failures += 1
        self._error = str(error)
        if self._failures < EVIDENCE:
            return
        if error.wrong is not Wrong.SILENT:
            self._down(f"{EVIDENCE} questions in a row failed, the last with: {error}")
        elif (silent := self._now() - self._failing_since) >= self._pace.silent_for_s:
            self._down(f"it accepts connections but has been silent for {silent:.0f} s")

    def _down(self, reason: str) -> None:
        if self._state is Life.READY:
            self._enter(Life.DOWN, reason)
            self._on_down(reason)

    def _enter(self, state: Life, error: str | None) -> None:
        self._error = error
        if state is not self._state:
            self._state, self._since = state, self._now()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _another_process(before: LoadsFacts, after: LoadsFacts) -> str:
    """The sign that these loads are not from the process of those; empty without one."""
    for old, new in zip(before.ranks, after.ranks, strict=False):
        if new.pool_tokens != old.pool_tokens:
            return f"its KV pool changed from {old.pool_tokens} to {new.pool_tokens} tokens"
        if (new.prefilled or 0) < (old.prefilled or 0):
            return "its count of prefilled tokens began anew: it has been restarted"
    return ""
