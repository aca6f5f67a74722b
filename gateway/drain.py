"""Going down in good order: not ready, admit nothing, wait, then say how many were cut.

What waits in the queue is refused at once with 503 and Retry-After, so that another gate can take
it; what runs may finish within the limit. What is left after that is cut: each releases and aborts
like a request whose client vanished, and its client is told so, in a complete answer or in one event of
its stream. Only then are they counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.tasks import spawn

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
    """Drains once, however often it is asked for, and by whom: its limit counts from the first time."""

    def __init__(self, gate: Gate, under_way: UnderWay, limit_s: float) -> None:
        self._gate = gate
        self._under_way = under_way
        self._end: asyncio.Task[Drained] | None = None
        self._patience: asyncio.Timeout | None = None
        self.limit_s = limit_s

    @property
    def begun(self) -> bool:
        """Whether nothing is admitted any more."""
        return self._end is not None

    def begin(self) -> asyncio.Task[Drained]:
        """Admit nothing more, and see to the end of what runs in the background."""
        if self._end is None:
            self._gate.drain()
            self._end = spawn(self._run(), "drain")
        return self._end

    def hurry(self) -> None:
        """Somebody waits for it: cut what still runs now."""
        if self._patience is not None:
            with contextlib.suppress(RuntimeError):  # it is over already
                self._patience.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> Drained:
        """Begin, wait until nothing runs or the limit is over, and cut what is left."""
        return await asyncio.shield(self.begin())

    async def _run(self) -> Drained:
        running = self._under_way.running
        try:
            async with asyncio.timeout(self.limit_s) as self._patience:
                await self._under_way.idle()
        except TimeoutError:
            pass
        cut = await self._under_way.cut(CUT_S)
        return Drained(finished=max(running, cut) - cut, cut=cut)
