"""Going down in good order: not ready, admit nothing, wait, then say how many were cut.

What waits in the queue is refused at once with 503 and Retry-After, so that another gate can take
it; what runs may finish within the limit. What is left after that is cut: each releases and aborts
like a request whose client vanished, and its client is told so, in a complete answer or in one event of
its stream. Only then are they counted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.edge.underway import UnderWay
    from gateway.gate import Gate

CUT_S = 1.0
"""How long what is cut may take to end: its clients read one event, or do not."""


@dataclass(frozen=True, slots=True)
class Drained:
    """How it went, in requests."""

    finished: int
    cut: int


class Drain:
    """Drains once, however often it is asked for."""

    def __init__(self, gate: Gate, under_way: UnderWay, limit_s: float) -> None:
        self._gate = gate
        self._under_way = under_way
        self.limit_s = limit_s
        self.begun = False

    def begin(self) -> None:
        """Admit nothing more. The process goes on until `run` is over."""
        if not self.begun:
            self.begun = True
            self._gate.drain()

    async def run(self) -> Drained:
        """Begin, wait until nothing runs or the limit is over, and cut what is left."""
        running = self._under_way.running
        self.begin()
        try:
            async with asyncio.timeout(self.limit_s):
                await self._under_way.idle()
        except TimeoutError:
            pass
        cut = await self._under_way.cut(CUT_S)
        return Drained(finished=max(running, cut) - cut, cut=cut)
