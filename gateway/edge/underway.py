"""Requests that are being answered: waited for when the gate goes down, and in the end cut.

To cut one is to end it the way a broken server would: what it holds is released and aborted like that
of a client that left, and its client is told, in a complete answer or in one event of its stream.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.edge.trip import Trip


class UnderWay:
    """All trips of one data plane, and the tasks that handle them."""

    def __init__(self) -> None:
        self._tasks: dict[Trip, asyncio.Task[object]] = {}
        self._less = asyncio.Event()

    def began(self, trip: Trip) -> None:
        """The task that calls this handles `trip` from now on."""
        if (task := asyncio.current_task()) is not None:
            self._tasks[trip] = task

    def over(self, trip: Trip) -> None:
        """It has ended."""
        self._tasks.pop(trip, None)
        self._less.set()

    @property
    def running(self) -> int:
        """Requests that a server was asked to answer."""
        return sum(trip.attempts > 0 for trip in self._tasks)

    async def idle(self) -> None:
        """Wait until none is left whose body was read: who is still sending one is refused then."""
        while any(trip.read for trip in self._tasks):
            self._less.clear()
            await self._less.wait()

    async def cut(self, limit_s: float) -> int:
        """End what is left, and wait until that is done, for `limit_s` seconds at most. How many of
        those that a server was at work on have ended so."""
        trips = {trip: task for trip, task in self._tasks.items() if trip.attempts > 0}
        for trip, task in self._tasks.items():
            trip.cut = True
            task.cancel()
        try:
            async with asyncio.timeout(limit_s):
                while self._tasks.keys() & trips.keys():
                    self._less.clear()
                    await self._less.wait()
        except TimeoutError:
            pass
        return sum(trip.was_cut or trip in self._tasks for trip in trips)
