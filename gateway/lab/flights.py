"""One request on its way through a simulation, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.lab.traces import Arrival
    from gateway.twin.jobs import Job


class Fate(StrEnum):
    """How a request ended in a simulation."""

    PENDING = "pending"  # still waiting or running when the clock stopped
    SERVED = "served"
    REFUSED = "refused"  # by the gate: its queue, its bounds
    LOST = "lost"  # in flight when the engine died, or aborted by it


@dataclass(frozen=True, slots=True)
class Sight:
    """What stood in and before the engine at the moment of a decision: the signals policies read.

    Shares are of the pool; `promised` counts prompt and cap in force of everything in flight, so it
    passes 1 where the pool is over-committed.
    """

    at: float
    pool_used: float
    promised: float
    new_token_ratio: float
    running: int
    waiting_inside: int
    in_flight: int
    cache_hits: (
        float | None
    )  # share of prompt tokens found in the prefix cache; None: no prompt yet


@dataclass(eq=False, slots=True)
class Flight:
    """An arrival with its times (seconds) and, once granted, its job in the engine."""

    rid: str
    arrival: Arrival
    fate: Fate = Fate.PENDING
    cap: int | None = None  # what was forwarded
    limit: int | None = None  # the cap in force: the engine clips silently
    granted: float | None = None
    first: float | None = None
    ended: float | None = None
    job: Job | None = None
    sight: Sight | None = None  # at the decision, grant or refusal
    code: str | None = None  # of a refusal
    retry_after_s: float | None = None  # of a refusal that says when to come back
    predicted: tuple[float, float] | None = None  # TTFT and its 95th percentile, at the door
    server: int = 0  # where it goes, or went
    again: bool = False  # the first retry of a refused request, at the time it was told

    @property
    def out(self) -> int:
        """Tokens generated so far."""
        return self.job.out if self.job is not None else 0

    @property
    def held(self) -> int:
        """KV tokens it occupies or is about to: prompt and what was generated."""
        return self.arrival.prompt + self.out

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to first token."""
        return None if self.first is None else self.first - self.arrival.at

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first."""
        if self.ended is None or self.first is None:
            return None
        return (self.ended - self.first) / max(1, self.out - 1)


@dataclass(frozen=True, slots=True)
class Start:
    """The gate lets a flight go, with the cap to forward."""

    flight: Flight
    cap: int | None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The gate refuses a flight."""

    flight: Flight
    code: str
    retry_after_s: float | None = None


Decision = Start | Refuse
