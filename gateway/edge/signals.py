"""What a server's metrics tell beside its loads: that it took memory back, and its own ratio.

A look every few seconds, off the way of requests and of the watch's own questions. What is found
goes to the core; what is not found is no news: a look that fails changes nothing but that the ratio
is reckoned again by the gate itself.

A retraction is a count that has grown between two looks at one start of a server. The first look
only puts down where it stands, and so does the first after a restart.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.tasks import spawn
from gateway.upstream.ask import AskError
from gateway.upstream.discover import metrics

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from gateway.core.model import PoolId
    from gateway.edge.backend import Backend
    from gateway.gate import Gate
    from gateway.upstream.facts import ServerFacts
    from gateway.upstream.scrape import RankSignals

METRICS_S = 5.0
"""Between two looks. The series move every 40 decode steps, 1 to 4 s; and to answer costs the
server's HTTP process some milliseconds, which its tokenizing shares."""

ASK_S = 3.0
"""Limit of one look, as for loads."""

UNSEEN = (
    "Retractions can not be seen: the server was started without --enable-metrics. With it the gate "
    "plans with less of the pool after each."
)


@dataclass(slots=True)
class _Seen:
    """Of one server."""

    at: float = float("-inf")  # loop's clock
    look: asyncio.Task[None] | None = None
    start: int = -1  # of the server, as its watch counts them
    retracted: dict[int, float] = field(default_factory=dict)  # by rank, at the last look


class Signals:
    """One memory for all servers of a fleet. Nothing here raises."""

    def __init__(self, gate: Gate, log: FilteringBoundLogger) -> None:
        self._gate = gate
        self._log = log
        self._of: dict[str, _Seen] = {}

    @staticmethod
    def notes(facts: ServerFacts) -> tuple[str, ...]:
        """What an operator should know."""
        return () if facts.metrics_enabled else (UNSEEN,)

    def due(self, backend: Backend) -> None:
        """Its loads have come: look at its metrics too, if the last look is long enough ago."""
        facts, seen = backend.facts, self._of.setdefault(backend.name, _Seen())
        now = self._gate.now()
        if facts is None or not facts.metrics_enabled or now - seen.at < METRICS_S:
            return
        if seen.look is None or seen.look.done():
            seen.at = now
            seen.look = spawn(self._look(backend, facts, seen), f"metrics {backend.name}")

    async def stop(self) -> None:
        """Look no more."""
        looks = [seen.look for seen in self._of.values() if seen.look is not None]
        for look in looks:
            look.cancel()
        if looks:
            await asyncio.wait(looks)

    async def _look(self, backend: Backend, facts: ServerFacts, seen: _Seen) -> None:
        start, life = _start(backend), backend.life
        try:
            found = await metrics(
                backend.client, facts.version, api_key=backend.api_key, timeout_s=ASK_S
            )
        except AskError:
            found = {}
        if backend.facts is not facts or backend.life != life or _start(backend) != start:
            return  # it may be from the process before, or from the one after
        if seen.start != start:
            seen.start, seen.retracted = start, {}
        backend.said = found
        for pool in backend.pools:
            self._take(pool, seen, found.get(pool.rank))

    def _take(self, pool: PoolId, seen: _Seen, says: RankSignals | None) -> None:
        self._gate.says_ratio(pool, None if says is None else says.ratio)
        if says is None:
            return
        before = seen.retracted.get(pool.rank)
        seen.retracted[pool.rank] = says.retracted
        if before is not None and says.retracted > before:
            self._gate.retracted(pool)
            self._log.warning(
                "retractions",
                backend=pool.backend,
                rank=pool.rank,
                requests=int(says.retracted - before),
                pool_share=round(self._gate.share(pool), 3),
            )


def _start(backend: Backend) -> int:
    return 0 if backend.watch is None else backend.watch.starts
