"""What a performance came to, in numbers. Times are the box's seconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gateway.demo.client import Ending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.demo.acts import Act
    from gateway.demo.crowd import Asked


@dataclass(frozen=True, slots=True)
class Side:
    """One kind of caller. Requests by how they ended for the one who asked."""

    asked: int
    served: int
    cut: int
    refused: int
    failed: int
    open: int
    wait_p50: float
    wait_p99: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Tally:
    """One performance."""

    title: str
    seconds: float
    people: Side
    agents: Side
    crashes: int
    down_s: float
    retractions: int
    queue_inside: int  # longest queue inside an engine
    promised: int  # most tokens promised to one pool at once
    pool: int  # the size of that pool
    deaths: tuple[str, ...]  # in words

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def tally(act: Act) -> Tally:
    """Count a performance that is over."""
    until = act.ended_at
    deaths = act.box.deaths()
    peak = max(act.promises.peaks.values(), key=lambda p: p.promised - p.pool, default=None)
    return Tally(
        title=act.title,
        seconds=until,
        people=_side(act.crowd.people, until),
        agents=_side(act.crowd.agents, until),
        crashes=len(deaths),
        down_s=act.box.down_s(until),
        retractions=act.box.retractions,
        queue_inside=act.box.peak_waiting,
        promised=0 if peak is None else peak.promised,
        pool=0 if peak is None else peak.pool,
        deaths=tuple(
            f"{death.at:4.0f} s: {death.server} died with {death.in_flight} requests in it "
            f"({death.reason}); back after {death.back_at - death.at:.0f} s"
            for death in deaths
        ),
    )


def _side(asked: Sequence[Asked], until: float) -> Side:
    endings = Counter(one.ending for one in asked)
    waits = sorted(one.waited(until) for one in asked)
    return Side(
        asked=len(asked),
        served=endings[Ending.SERVED],
        cut=endings[Ending.CUT],
        refused=endings[Ending.REFUSED],
        failed=endings[Ending.FAILED],
        open=endings[Ending.OPEN],
        wait_p50=_quantile(waits, 0.5),
        wait_p99=_quantile(waits, 0.99),
        tokens=sum(attempt.tokens for one in asked for attempt in one.tries),
    )


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0
