"""Several servers behind what people put before them: a balancer that knows no budgets.

`Spread` chooses a server at the door and hands the request to the gate before that server. Round
robin and least connections are what nginx, HAProxy and Kubernetes do; a static split gives each
client one server for good, as people do by hand.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.lab.flights import Start

if TYPE_CHECKING:
    from gateway.lab.flights import Decision, Flight
    from gateway.lab.gates import Engines, Gate

Route = Callable[["Flight", Sequence[int]], int]
"""(the request, requests now at each server) -> the server."""


def round_robin() -> Route:
    """One after the other."""
    turn = -1

    def route(flight: Flight, busy: Sequence[int]) -> int:  # noqa: ARG001
        nonlocal turn
        turn = (turn + 1) % len(busy)
        return turn

    return route


def least_connections(flight: Flight, busy: Sequence[int]) -> int:  # noqa: ARG001
    """Where fewest requests are; the first among equals."""
    return min(range(len(busy)), key=busy.__getitem__)


def static_split(flight: Flight, busy: Sequence[int]) -> int:
    """By the client's name."""
    return zlib.crc32(flight.arrival.client.encode()) % len(busy)


class Spread:
    """A gate for each server, and a rule which of them a request meets."""

    def __init__(self, route: Route, gates: Sequence[Gate]) -> None:
        self._route, self._gates = route, gates
        self._busy = [0] * len(gates)

    def meet(self, engines: Engines) -> None:
        """Hand it on."""
        for gate in self._gates:
            gate.meet(engines)

    def arrive(self, flight: Flight, now: float) -> list[Decision]:
        """Choose, for good."""
        flight.server = self._route(flight, self._busy)
        self._busy[flight.server] += 1
        return self._heard(self._gates[flight.server].arrive(flight, now))

    def first_token(self, flight: Flight, now: float) -> list[Decision]:
        """At its own gate."""
        return self._heard(self._gates[flight.server].first_token(flight, now))

    def ended(self, flight: Flight, now: float) -> list[Decision]:
        """At its own gate."""
        self._busy[flight.server] -= 1
        return self._heard(self._gates[flight.server].ended(flight, now))

    def died(self, server: int, now: float) -> list[Decision]:
        """The gate before it hears."""
        self._busy[server] = 0
        return self._heard(self._gates[server].died(server, now))

    def returned(self, server: int, now: float) -> list[Decision]:
        """The gate before it hears."""
        return self._heard(self._gates[server].returned(server, now))

    def advance(self, now: float) -> list[Decision]:
        """Those that are due."""
        due = [gate for gate in self._gates if (at := gate.next_wakeup()) is not None and at <= now]
        return [decision for gate in due for decision in self._heard(gate.advance(now))]

    def next_wakeup(self) -> float | None:
        """The earliest of them."""
        times = [at for gate in self._gates if (at := gate.next_wakeup()) is not None]
        return min(times, default=None)

    def _heard(self, decisions: list[Decision]) -> list[Decision]:
        for decision in decisions:
            if not isinstance(decision, Start):
                self._busy[decision.flight.server] -= 1
        return decisions
