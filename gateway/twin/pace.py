"""When the step in progress ends, and the plain decode steps planned behind it.

A scheduler that has nothing to admit takes the same decode step again and again, each a little
longer than the last because each reads a little more KV. A coarse engine plans many of them at
once and is woken once; whoever asks in between gets the ones that have passed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.twin.jobs import Job
    from gateway.twin.pool import KvPool


class Pace:
    """The ends of the planned steps, in order; empty when nothing is in progress."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._ends)

    @property
    def until(self) -> float | None:
        """When all that is planned is done."""
        return self._ends[-1] if self._ends else None

    def plan(self, now: float, durations: Iterable[float]) -> None:
        """Steps of these durations (seconds), one after the other from now on."""
        at = now
        self._ends = []
        for seconds in durations:
            at += seconds
            self._ends.append(at)

    def passed(self, now: float) -> tuple[int, float]:
        """Forget the steps that ended by `now`, but never the last one: how many, and when the
        latest of them ended."""
        done = min(bisect_right(self._ends, now), len(self._ends) - 1)
        if done <= 0:
            return 0, now
        at = self._ends[done - 1]
        del self._ends[:done]
        return done, at

    def cut(self) -> None:
        """Keep only the step in progress: something has arrived that the next one must see."""
        del self._ends[1:]

    def finish(self) -> tuple[float, int]:
        """End all that is planned: when, and how many steps that were."""
        steps, at = len(self._ends), self._ends[-1]
        self._ends = []
        return at, steps

    def shift(self, seconds: float) -> None:
        """Everything ends `seconds` later."""
        self._ends = [end + seconds for end in self._ends]

    def stop(self) -> None:
        """Nothing is in progress any more."""
        self._ends = []


def steps_alike(decoding: list[Job], pool: KvPool) -> int:
    """How many decode steps can follow in which nobody ends and no page is lacking, the one in
    progress included: its KV is taken already, each later one may open a page a sequence."""
    count = len(decoding)
    room = 1 + (pool.free - count * pool.page) // count
    ends = min(job.length - job.out for job in decoding)
    return max(1, min(room, ends))
