"""The life of one server process around an engine: it dies, is silent, refuses, and returns.

Measured on a genuine server whose scheduler was killed: for about 5.4 s connections are accepted
and nothing is answered; then the process is gone, streams are cut without an error and connections
are refused, until the supervisor has started it again, with whatever pool fits that day. After
SIGTERM it says 503 on /health, still takes requests, and leaves when nothing is in flight.

Pure like the engine: `now` is passed in.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from gateway.twin.engine import Engine
from gateway.twin.jobs import Counters, Died, Event, Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.twin.profiles import Profile
    from gateway.twin.versions import Traits

SILENCE_S = 5.4  # measured: 5.42 s on 0.5.17, 5.50 s on 0.5.23, from SIGKILL to connection reset
EXIT_S = 5.0  # measured after SIGTERM: 5 to 8.5 s from the last answer to the exit


class Life(StrEnum):
    """What a client of the port meets."""

    READY = "ready"
    SILENT = "silent"  # accepts, never answers
    GONE = "gone"  # refuses


class Process:
    """One server process: the engine of the day, and what became of those before it."""

    def __init__(
        self,
        profile: Profile,
        traits: Traits,
        *,
        restart_s: float | None = None,
        pools: Sequence[int] = (),
        coarse: bool = False,
    ) -> None:
        self.profile = profile
        self.traits = traits
        self.restart_s = profile.restart_s if restart_s is None else restart_s
        self._pools = list(pools) or list(profile.pools_after_restart)
        self._starts = 0
        self._coarse = coarse
        self.engine = Engine(profile, traits, coarse=coarse)
        self.past: list[Counters] = []  # of the engines that died
        self.life = Life.READY
        self.deaths: list[Died] = []
        self.terminating = False
        self.leaked = 0  # refusals that 0.5.12 forgot to forget: a drain waits for them for ever
        self._frozen_at: float | None = None
        self._next: float | None = None  # when `life` changes
        self._leaving: float | None = None

    @property
    def frozen(self) -> bool:
        """The scheduler is stopped (SIGSTOP); the HTTP process is not."""
        return self._frozen_at is not None

    @property
    def starts(self) -> int:
        """How often it was started again."""
        return self._starts

    def submit(self, job: Job, now: float) -> None:
        """Hand a job to the engine; a dead one loses it."""
        self.engine.submit(job, now, start=not self.frozen)

    def abort(self, prefix: str, now: float) -> None:
        """End every job whose rid starts with `prefix`."""
        self.engine.abort(prefix, now, start=not self.frozen)

    def kill(self, now: float, reason: str = "the scheduler was killed") -> None:
        """SIGKILL of the scheduler."""
        self.engine.kill(now, reason)

    def freeze(self, now: float) -> None:
        """SIGSTOP of the scheduler: no step ends until `thaw`."""
        if self._frozen_at is None:
            self._frozen_at = now

    def thaw(self, now: float) -> None:
        """SIGCONT: the step in progress goes on where it stood."""
        if self._frozen_at is not None:
            self.engine.postpone(now - self._frozen_at, now)
            self._frozen_at = None

    def terminate(self, now: float) -> None:
        """SIGTERM: drain, then leave for good."""
        self.terminating = True
        self._drain(now)

    def next_wakeup(self) -> float | None:
        """When something will have happened."""
        engine = None if self.frozen else self.engine.next_wakeup()
        times = [time for time in (engine, self._next, self._leaving) if time is not None]
        return min(times, default=None)

    def advance(self, now: float) -> list[Event]:
        """Play until `now`; what the engine reported."""
        events = [] if self.frozen and self.engine.dead is None else self.engine.advance(now)
        for event in events:
            if isinstance(event, Died):
                self.deaths.append(event)
                self.life, self._next = Life.SILENT, event.at + SILENCE_S
        while self._next is not None and self._next <= now:
            self._turn(self._next)
        self._drain(now)
        if self._leaving is not None and self._leaving <= now:
            self.life, self._leaving, self._next = Life.GONE, None, None
        return events

    def _turn(self, at: float) -> None:
        if self.life is Life.SILENT:
            self.life = Life.GONE
            left = max(0.0, self.restart_s - SILENCE_S)
            self._next = None if self.terminating else at + left
        else:
            pool = self._pools[self._starts % len(self._pools)] if self._pools else None
            self._starts += 1
            self.past.append(self.engine.counters)
            self.engine = Engine(self.profile, self.traits, pool=pool, coarse=self._coarse)
            self._frozen_at = None
            self.life, self._next = Life.READY, None

    def _drain(self, now: float) -> None:
        if not self.terminating or self.life is not Life.READY:
            return
        if self.leaked or not self.engine.idle:
            self._leaving = None
        elif self._leaving is None:
            self._leaving = now + EXIT_S
