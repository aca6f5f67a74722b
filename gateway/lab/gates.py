"""What stands before the engine in a simulation: a queue with a policy, in some order.

`QueueGate` runs the baselines. `coregate.CoreGate` runs the product's own admission. Both speak the
same few words: something arrived, something ended, time passed; decisions come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gateway.lab.flights import Decision, Fate, Flight, Refuse, Start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.lab.orders import Order
    from gateway.lab.policies import Policy
    from gateway.twin.engine import Engine

Engines = Callable[[], "Sequence[Engine]"]
"""The engines of the day, by server."""

RETRY_S = 0.25  # growth and decay change the answer without an event: look again this often


class Gate(Protocol):
    """The gate of a simulation. Times are seconds; every call returns what was decided."""

    def meet(self, engines: Engines) -> None:
        """Before anything else: whom to ask what the servers are like now."""

    def arrive(self, flight: Flight, now: float) -> list[Decision]:
        """A request is at the door."""

    def first_token(self, flight: Flight, now: float) -> list[Decision]:
        """A request is through its prefill."""

    def ended(self, flight: Flight, now: float) -> list[Decision]:
        """A request that was started is over; its fate says how."""

    def died(self, server: int, now: float) -> list[Decision]:
        """A server is gone and everything in it; nothing may start there until `returned`."""

    def returned(self, server: int, now: float) -> list[Decision]:
        """A server is back, maybe with another pool."""

    def advance(self, now: float) -> list[Decision]:
        """Time has passed."""

    def next_wakeup(self) -> float | None:
        """When `advance` should be called."""


@runtime_checkable
class Predicts(Protocol):
    """A gate that says when a request's first token will come."""

    def predicted(self, rid: str) -> tuple[float, float] | None:
        """Seconds from now to the first token of a request just let in or queued: what is
        expected, and what 95 of 100 stay below. None: it cannot say yet."""


class QueueGate:
    """One queue, one policy. The first in order that does not fit blocks the rest."""

    def __init__(self, policy: Policy, order: Order, *, max_wait_s: float, server: int = 0) -> None:
        """`server` is the one it stands before."""
        self.policy = policy
        self._server = server
        self._engines: Engines = list
        self._max_wait_s = max_wait_s
        self._order = order
        self._waiting: list[Flight] = []
        self._flying: list[Flight] = []
        self._open = True
        self._look_at: float | None = None

    def meet(self, engines: Engines) -> None:
        """Remember whom to ask."""
        self._engines = engines

    def arrive(self, flight: Flight, now: float) -> list[Decision]:
        """Queue it, and start what fits."""
        blocked = bool(self._waiting) and self._order.fifo and self._look_at is not None
        self._waiting.append(flight)
        return [] if blocked else self._pump(now)

    def first_token(self, flight: Flight, now: float) -> list[Decision]:  # noqa: ARG002
        """The engine expects less of it from now on: start what fits."""
        return self._pump(now)

    def ended(self, flight: Flight, now: float) -> list[Decision]:
        """Learn from it, and start what fits now."""
        self._flying.remove(flight)
        self._order.ended(flight)
        if flight.fate is Fate.SERVED:
            self.policy.served(flight)
        return self._pump(now)

    def died(self, server: int, now: float) -> list[Decision]:  # noqa: ARG002
        """Hold everything."""
        for flight in self._flying:
            self._order.ended(flight)
        self._flying.clear()
        self._open = False
        return []

    def returned(self, server: int, now: float) -> list[Decision]:  # noqa: ARG002
        """Start again."""
        self._open = True
        return self._pump(now)

    def advance(self, now: float) -> list[Decision]:
        """Expire what waited too long, and look again."""
        return self._pump(now)

    def next_wakeup(self) -> float | None:
        """While anything waits, every RETRY_S."""
        return self._look_at

    def _pump(self, now: float) -> list[Decision]:
        out: list[Decision] = []
        engine = self._engines()[self._server]
        while self._waiting and now - self._waiting[0].arrival.at >= self._max_wait_s:
            out.append(Refuse(self._waiting.pop(0), "queue_timeout"))
        while self._open and self._waiting:
            flight = self._order.first(self._waiting)
            if not self.policy.fits(flight, self._flying, engine):
                break
            self._waiting.remove(flight)
            self._flying.append(flight)
            self._order.started(flight)
            flight.cap = self.policy.cap(flight)
            flight.limit = engine.limits.cap(flight.arrival.prompt, flight.cap)
            out.append(Start(flight, flight.cap))
        self._look_at = now + RETRY_S if self._waiting else None
        return out
