"""A worker whose loop does not come round any more is ended, and so started anew.

One gate that hangs is seen from outside, by its probes. Of several the others go on answering, and the
kernel goes on giving a part of all connections to the one that does not.

Where the machine stood still, or swapped, this loop was away as well: such a time counts as one look,
however long it was. Workers are larger than we are and come round later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from gateway.workers.asking import Asking
    from gateway.workers.crew import Crew

EVERY_S = 5.0
"""Between two looks: some questions to a page that costs nothing."""

SILENT_S = 30.0
"""Silent for so long it serves nobody: a loop is away for tenths of a second, on a machine that swaps for
seconds. As long as a server may show no sign (`limits.stall_s`)."""


class Watchdog:
    """`run` it as long as the workers run."""

    def __init__(
        self,
        crew: Crew,
        asking: Asking,
        log: FilteringBoundLogger,
        *,
        every_s: float = EVERY_S,
        silent_s: float = SILENT_S,
    ) -> None:
        self._crew = crew
        self._asking = asking
        self._log = log
        self._every_s = every_s
        self._silent_s = silent_s
        self._told = False
        self._silent: dict[str, float] = {}  # by life: seconds, those that we were there to see

    async def run(self) -> None:
        """Without end."""
        while True:
            await asyncio.sleep(self._every_s)
            await self._look()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        lives = {hand.number: hand.life for hand in self._crew.hands if hand.alive and hand.up}
        said = await self._asking.all(list(lives), "/healthz", within_s=self._every_s)
        seen = self._every_s + min(loop.time() - asked_at, self._every_s)
        before, self._silent = self._silent, {}
        for one in said:
            life = lives[one.number]
            if not self._asking.has_a_way(one.number):
                self._tell()
                continue
            silent = 0.0 if one.status else before.get(life, 0.0) + seen
            self._silent[life] = silent
            if silent >= self._silent_s and self._crew.kill(life):
                self._log.error("worker_silent", worker=one.number, for_s=round(silent, 1))

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            reason = (
                "somebody removed the workers' folder of sockets (a cleaning of temporary files?): they "
                "go on serving, but say nothing any more, and who ends cannot be started anew. Start "
                "the gate again when it suits, with TMPDIR where nobody cleans"
            )
            self._log.error("workers_folder_gone", reason=reason)
