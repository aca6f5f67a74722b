"""When may a request go to the engine? The baselines and the oracles, as predicates.

Each policy answers for one candidate against what is in flight. `room` is the pool less a page a
running request. The two oracles know true lengths; nothing else may look at `arrival.output`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gateway.lab.history import LEAST, History, peak
from gateway.twin.budget import CLIP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.lab.flights import Flight
    from gateway.twin.engine import Engine


class Policy(Protocol):
    """A rule of admission."""

    name: str

    def cap(self, flight: Flight) -> int | None:
        """The cap to forward; None: none."""

    def fits(self, candidate: Flight, flying: Sequence[Flight], engine: Engine) -> bool:
        """May `candidate` join `flying` now?"""

    def served(self, flight: Flight) -> None:
        """`flight` has finished: a length to learn from."""


@dataclass
class Base:
    """What policies share: the client's cap goes through, lengths are remembered."""

    name: str
    history: History = field(default_factory=History)

    def cap(self, flight: Flight) -> int | None:
        """The client's own."""
        return flight.arrival.cap

    def served(self, flight: Flight) -> None:
        """Remember its length."""
        self.history.add(flight.arrival.client, flight.out)


def promised(flight: Flight, engine: Engine) -> int:
    """Tokens `flight` may come to hold: prompt and cap in force."""
    if flight.limit is not None:
        return flight.arrival.prompt + flight.limit
    return flight.arrival.prompt + engine.limits.cap(flight.arrival.prompt, flight.arrival.cap)


@dataclass
class Nothing(Base):
    """No gate: everything goes straight to the engine."""

    def fits(self, candidate: Flight, flying: Sequence[Flight], engine: Engine) -> bool:  # noqa: ARG002
        """Always."""
        return True


@dataclass
class FixedConcurrency(Base):
    """At most `most` requests in flight, as a reverse proxy would."""

    most: int = 16

    def fits(self, candidate: Flight, flying: Sequence[Flight], engine: Engine) -> bool:  # noqa: ARG002
        """While fewer than `most` fly."""
        return len(flying) < self.most


@dataclass
class WorstCase(Base):
    """Prompts and caps of all in flight fit the pool. With `quantile`, the cap forwarded is lowered
    to 1.25 times that quantile of the lengths seen (which may cut an answer)."""

    quantile: float | None = None

    def cap(self, flight: Flight) -> int | None:
        """The client's, or the lowered one."""
        asked = flight.arrival.cap
        if self.quantile is None:
            return asked
        usual = self.history.quantile(flight.arrival.client, self.quantile)
        if usual is None:
            return asked
        lowered = int(1.25 * usual) + 1
        return lowered if asked is None else min(asked, lowered)

    def fits(self, candidate: Flight, flying: Sequence[Flight], engine: Engine) -> bool:
        """Sum of promises against the pool."""
        prompt = candidate.arrival.prompt
        asked = prompt + engine.limits.cap(prompt, self.cap(candidate))
        held = sum(promised(other, engine) + engine.pool.page for other in flying)
        return held + asked + engine.pool.page < engine.pool.capacity


@dataclass
class PerRequestQuantile(Base):
    """Each request is charged a quantile of its client's lengths, given what it has produced. Sums
    of upper bounds waste the pool: the classic mistake. Behind the engine's own rule, as all
    that predict here are: what the engine would not start yet waits in the gate."""

    level: float = 0.9

    def fits(self, candidate: Flight, flying: Sequence[Flight], engine: Engine) -> bool:
        """Sum of charges against the pool."""
        if not engine_takes(candidate, candidate.arrival.cap, flying, engine):
            return False
        held = sum(self._charge(other, engine) for other in (*flying, candidate))
        return held <= engine.pool.capacity

    def _charge(self, flight: Flight, engine: Engine) -> float:
        most = promised(flight, engine)
        length = self.history.quantile_beyond(flight.arrival.client, flight.out, self.level)
        return most if length is None else min(most, flight.arrival.prompt + length)


def engine_takes(
    candidate: Flight, cap: int | None, flying: Sequence[Flight], engine: Engine
) -> bool:
    """Would the engine's own PrefillAdder start `candidate` with `cap` right now? What it would not
    start waits inside it, first come first served, out of any gate's reach."""
    page, room, ratio = engine.pool.page, float(engine.pool.capacity), engine.ratio.now
    prompt = candidate.arrival.prompt
    need = prompt + min(engine.limits.cap(prompt, cap), CLIP) + page
    for other in flying:
        held = other.held
        growth = min(promised(other, engine) - held, CLIP)
        room -= held + page + (growth * ratio if other.first is not None else growth)
        if need >= room:
            return False
    return need < room


@dataclass
class Mirror(Base):
    """Let go what the engine would start at once: then nothing waits inside it."""

    def fits(self, candidate: Flight, flying: Sequence[Flight], engine: Engine) -> bool:
        """The engine's arithmetic, with the ratio it publishes."""
        return engine_takes(candidate, candidate.arrival.cap, flying, engine)


@dataclass
class PastFuture(Base):
    """LightLLM's: draw each length from the past, given what is produced, and test the exact peak
    (arXiv 2507.10150)."""

    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - a sample, not a secret

    def fits(self, candidate: Flight, flying: Sequence[Flight], engine: Engine) -> bool:
        """One draw of the future."""
        if not engine_takes(candidate, candidate.arrival.cap, flying, engine):
            return False
        flights = (*flying, candidate)
        held = np.array([other.held for other in flights], dtype=np.float64)
        left = np.array([self._left(other, engine) for other in flights], dtype=np.float64)
        return peak(held, left) <= engine.pool.capacity

    def _left(self, flight: Flight, engine: Engine) -> float:
        most = promised(flight, engine) - flight.held
        length = self.history.draw_beyond(flight.arrival.client, flight.out, self._rng)
        return max(1.0, most if length is None else min(most, length - flight.out))


@dataclass
class Oracle(Base):
    """Knows every length: forwards it as the cap, and the exact peak of those in flight fits."""

    def cap(self, flight: Flight) -> int | None:
        """The output it will have."""
        asked = flight.arrival.cap
        return flight.arrival.output if asked is None else min(asked, flight.arrival.output)

    def fits(self, candidate: Flight, flying: Sequence[Flight], engine: Engine) -> bool:
        """The exact peak."""
        if not engine_takes(candidate, self.cap(candidate), flying, engine):
            return False
        flights = (*flying, candidate)
        held = np.array([other.held + engine.pool.page for other in flights], dtype=np.float64)
        left = np.array(
            [max(1, true_length(other, engine) - other.out) for other in flights],
            dtype=np.float64,
        )
        return peak(held, left) <= engine.pool.capacity


def true_length(flight: Flight, engine: Engine) -> int:
    """The output it will have."""
    if flight.limit is not None:
        return min(flight.arrival.output, flight.limit)
    return min(flight.arrival.output, engine.limits.cap(flight.arrival.prompt, flight.arrival.cap))


__all__ = [
    "LEAST",
    "FixedConcurrency",
    "Mirror",
    "Nothing",
    "Oracle",
    "PastFuture",
    "PerRequestQuantile",
    "Policy",
    "WorstCase",
]
