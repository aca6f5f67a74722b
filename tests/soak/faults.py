"""What goes wrong at the server, at random moments."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING

from gateway.twin.process import Life

if TYPE_CHECKING:
    from gateway.twin.server import TwinServer

EVERY_S = (4.0, 14.0)
"""Between two faults, seconds: a server that comes back is busy for a while before the next one."""


class Faults:
    """Kills (it comes back with another pool), freezes, and cuts single connections."""

    def __init__(self, server: TwinServer, seed: int) -> None:
        self.server = server
        self.dice = random.Random(f"{seed}/faults")
        self.done: Counter[str] = Counter()

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop; leaves the server thawed."""
        while not await self._pause(stop, self.dice.uniform(*EVERY_S)):
            what = self.dice.choices(["kill", "freeze", "cut"], [2, 3, 5])[0]
            if self.server.process.life is not Life.READY:
                continue
            self.done[what] += 1
            if what == "kill":
                self.server.kill()
            elif what == "freeze":
                self.server.freeze()
                await self._pause(stop, self.dice.uniform(0.3, 6.0))
                self.server.thaw()
            else:
                self._cut(self.dice.randrange(1, 4))

    def _cut(self, number: int) -> None:
        """Reset connections on which answers are on their way: truncated streams."""
        runner = self.server._runner
        if runner is None or runner.server is None:
            return
        connections = [one for one in runner.server.connections if one.transport is not None]
        for connection in self.dice.sample(connections, min(number, len(connections))):
            connection.transport.abort()  # type: ignore[union-attr]

    @staticmethod
    async def _pause(stop: asyncio.Event, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()
        return stop.is_set()
