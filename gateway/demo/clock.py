"""The box's own seconds, which pass faster than ours."""

from __future__ import annotations

import asyncio

SPEED = 30.0
"""How much faster than on the box time runs: ten minutes in twenty seconds. A decode step of 25 ms
then lasts 0.8 ms; twins, gate and clients together take a third of one core (18 s of CPU in 61 s)."""


class BoxClock:
    """Seconds of the box since this was made."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._epoch = asyncio.get_running_loop().time()

    def now(self) -> float:
        """Seconds of the box."""
        return (asyncio.get_running_loop().time() - self._epoch) * self.speed

    async def until(self, at: float) -> None:
        """Sleep until the box's clock shows `at`."""
        await asyncio.sleep(max(0.0, at - self.now()) / self.speed)

    async def sleep(self, seconds: float) -> None:
        """Sleep seconds of the box."""
        await asyncio.sleep(seconds / self.speed)
