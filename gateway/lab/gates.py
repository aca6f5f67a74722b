"""What stands before the engine in a simulation: a queue with a policy, in some order.

`QueueGate` runs the baselines. `coregate.CoreGate` runs the product's own admission. Both speak the
same few words: something arrived, something ended, time passed; decisions come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.lab.flights import Decision, Fate, Flight, Refuse, Start

if TYPE_CHECKING:
    from gateway.lab.orders import Order
    from gateway.lab.policies import Policy
    from gateway.twin.engine import Engine

RETRY_S = 0.25  # growth and decay change the answer without an event: look again this often


class Gate(Protocol):
    """The gate of a simulation. Times are seconds; every call returns what was decided."""

    def arrive(self, flight: Flight, engine: Engine, now: float) -> list[Decision]:
        """A request is at the door."""

    def first_token(self, flight: Flight, engine: Engine, now: float) -> list[Decision]:
        """A request is through its prefill."""

    def ended(self, flight: Flight, engine: Engine, now: float) -> list[Decision]:
        """A request that was started is over; its fate says how."""

    def died(self, engine: Engine, now: float) -> list[Decision]:
        """The engine is gone and everything in it; nothing may start until `returned`."""

    def returned(self, engine: Engine, now: float) -> list[Decision]:
        """An engine is back, maybe with another pool."""

    def advance(self, engine: Engine, now: float) -> list[Decision]:
        """Time has passed."""

    def next_wakeup(self) -> float | None:
        """When `advance` should be called."""


class QueueGate:
    """One queue, one policy. The first in order that does not fit blocks the rest."""

    def __init__(self, policy: Policy, order: Order, *, max_wait_s: float) -> None:
        self.policy = policy
        self._max_wait_s = max_wait_s
        self._order = order
        self._waiting: list[Flight] = []
        self._flying: list[Flight] = []
        self._open = True
        self._look_at: float | None = None

    def arrive(self, flight: Flight, engine: Engine, now: float) -> list[Decision]:
        """Queue it, and start what fits."""
        self._waiting.append(flight)
        return self._pump(engine, now)

    def first_token(self, flight: Flight, engine: Engine, now: float) -> list[Decision]:  # noqa: ARG002
        """Nothing changes for a queue."""
        return []

    def ended(self, flight: Flight, engine: Engine, now: float) -> list[Decision]:
        """Learn from it, and start what fits now."""
        self._flying.remove(flight)
        self._order.ended(flight)
        if flight.fate is Fate.SERVED:
            self.policy.served(flight)
        return self._pump(engine, now)

    def died(self, engine: Engine, now: float) -> list[Decision]:  # noqa: ARG002
        """Hold everything."""
        for flight in self._flying:
            self._order.ended(flight)
        self._flying.clear()
        self._open = False
        return []

    def returned(self, engine: Engine, now: float) -> list[Decision]:
        """Start again."""
        self._open = True
        return self._pump(engine, now)

    def advance(self, engine: Engine, now: float) -> list[Decision]:
        """Expire what waited too long, and look again."""
        return self._pump(engine, now)

    def next_wakeup(self) -> float | None:
        """While anything waits, every RETRY_S."""
        return self._look_at

    def _pump(self, engine: Engine, now: float) -> list[Decision]:
        out: list[Decision] = []
        for flight in [item for item in self._waiting if now - item.arrival.at >= self._max_wait_s]:
            self._waiting.remove(flight)
            out.append(Refuse(flight, "queue_timeout"))
        while self._open and self._waiting:
            flight = self._order.first(self._waiting)
            if not self.policy.fits(flight, self._flying, engine):
                break
            self._waiting.remove(flight)
            self._flying.append(flight)
            self._order.started(flight)
            flight.cap = self.policy.cap(flight)
            out.append(Start(flight, flight.cap))
        self._look_at = now + RETRY_S if self._waiting else None
        return out
