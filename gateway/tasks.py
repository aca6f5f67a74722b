"""Background tasks that are named, referenced and never silently lost; limits of time that are fair."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

T = TypeVar("T")

TICK_S = 0.001
"""uvloop's clock counts milliseconds: a timer of a fraction of one, or a rounding error ahead of the clock,
is called at once and too early, again and again until the next one begins."""

LATE_S = 1.0
"""A timer that comes so much later than it was due: this process stood still, or its machine (stopped,
moved, swapped out, asleep), or the loop was held up. What came meanwhile lies unread in the sockets."""

ROOM_S = 0.5
"""How long the loop may then read what lies there before anybody is told that nothing came: one piece of
every connection takes it milliseconds."""

BEAT_S = 1.0
"""How often an alarm that is set for later is looked at: by so much, at most, a time in which nobody was
there is taken for shorter than it was."""

_live: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start `work` as a task that the loop cannot garbage-collect half-way.

    An exception nobody awaits is handed to the loop's exception handler at once, not when the
    task object happens to die.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    _live.add(task)
    task.add_done_callback(_done)
    return task


def _done(task: asyncio.Task[Any]) -> None:
    _live.discard(task)
    if task.cancelled() or (error := task.exception()) is None:
        return
    task.get_loop().call_exception_handler(
        {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
    )


@contextlib.asynccontextmanager
async def in_time(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`; where its end comes late, what came in the meantime counts as in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    async with asyncio.timeout(None) as limit:

        def due(at: float) -> None:
            now = loop.time()
            if now - at > LATE_S:
                timers.append(loop.call_at(now + ROOM_S, due, now + ROOM_S))
            else:
                limit.reschedule(now)

        timers = [loop.call_at(end, due, end)]
        try:
            yield
        finally:
            timers[-1].cancel()


class Alarm:
    """One timer that calls `ring` in time, and by which is seen that nothing was called for a while."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._wake: float | None = None  # uvloop's handles forget theirs once they are done
        self._due = math.inf

    @property
    def is_set(self) -> bool:
        """Whether it will ring."""
        return self._timer is not None

    def set(self, wake: float | None) -> None:
        """Ring at that time, in a millisecond at the soonest; earlier too, and then it is to be set again.

        One that is set for earlier stays.
        """
        if wake is None or (self._wake is not None and self._wake <= wake):
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._wake = min(wake, now + BEAT_S)
        self._due = max(self._wake, now + TICK_S)
        self._timer = loop.call_at(self._due, self._rings)

    def overdue(self, now: float) -> float:
        """For how long nobody was there to hear it, if that has not been told, and until what came
        meanwhile is read; 0 where it is in time."""
        late = now - self._due
        if late <= LATE_S:
            return 0.0
        self._due = math.inf
        return late + ROOM_S

    def _rings(self) -> None:
        self._timer = self._wake = None
        self._ring()
        if self._timer is None:
            self._due = math.inf
