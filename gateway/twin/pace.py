"""When the step in progress ends, and the plain decode steps planned behind it.

A scheduler that has nothing to admit takes the same decode step again and again, each a little
longer than the last because each reads a little more KV. A coarse engine plans many of them at
once and is woken once; whoever asks in between gets the ones that have passed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.twin.batch import Batch
    from gateway.twin.memory import Memory

MOST = 1024  # steps planned at once: an arrival throws the plan away, and it costs to make


class Pace:
    """The ends of the planned steps, in order; empty when nothing is in progress."""

    def __init__(self) -> None:
        self._ends: Sequence[float] = ()
        self._done = 0  # of the planned steps
        self._count = 0  # of the planned steps, those that were done included

    def __bool__(self) -> bool:
        return self._done < self._count

    @property
    def until(self) -> float | None:
        """When all that is planned is done."""
        return self._ends[self._count - 1] if self._done < self._count else None

    def plan(self, ends: Sequence[float]) -> None:
        """Steps that end then."""
        self._ends, self._done, self._count = ends, 0, len(ends)

    def passed(self, now: float) -> tuple[int, float]:
        """Forget the steps that ended by `now`, but never the last one: how many, and when the
        latest of them ended."""
        last = self._count - 1
        if self._done >= last or self._ends[self._done] > now:
            return 0, now
        before = self._done
        self._done = bisect_right(self._ends, now, before, last)
        return self._done - before, self._ends[self._done - 1]

    def cut(self) -> None:
        """Keep only the step in progress: something has arrived that the next one must see."""
        self._count = min(self._count, self._done + 1)

    def finish(self) -> tuple[float, int]:
        """End all that is planned: when, and how many steps that were."""
        steps, at = self._count - self._done, self._ends[self._count - 1]
        self.stop()
        return at, steps

    def shift(self, seconds: float) -> None:
        """Everything ends `seconds` later."""
        self.plan([end + seconds for end in self._ends[self._done : self._count]])

    def stop(self) -> None:
        """Nothing is in progress any more."""
        self._ends, self._done, self._count = (), 0, 0


def steps_alike(batch: Batch, memory: Memory) -> int:
    """How many decode steps can follow in which nobody ends and no page is lacking, the one in
    progress included: its KV is taken already, each later one may open a page a sequence."""
    count = len(batch)
    room = 1 + (memory.obtainable - count * memory.pool.page) // count
    return max(1, min(room, batch.until_end(), MOST))
