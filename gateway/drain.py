"""Going down in good order: not ready, admit nothing, wait, then say how many were cut.

What waits in the queue is refused at once with 503 and Retry-After, so that another gate can take
it; what runs may finish within the limit. Closing the listeners after that cancels what is left,
and each of those releases and aborts like any request whose client vanished.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.gate import Gate


@dataclass(frozen=True, slots=True)
class Drained:
    """How it went, in requests."""

    finished: int
    cut: int


class Drain:
    """Drains once, however often it is asked for."""

    def __init__(self, gate: Gate, limit_s: float) -> None:
        self._gate = gate
        self._limit_s = limit_s
        self.begun = False

    def begin(self) -> None:
        """Admit nothing more. The process goes on until `run` is over."""
        if not self.begun:
            self.begun = True
            self._gate.drain()

    async def run(self) -> Drained:
        """Begin, and wait until nothing runs or the limit is over."""
        self.begin()
        running = self._gate.holding
        try:
            async with asyncio.timeout(self._limit_s):
                await self._gate.idle()
        except TimeoutError:
            pass
        left = self._gate.holding
        return Drained(finished=running - left, cut=left)
