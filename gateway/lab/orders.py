"""Who is next in a queue: by arrival, by true length (for an oracle), or the least served client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.lab.flights import Flight

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0  # VTC's: an output token costs about twice an input token


class Order(Protocol):
    """The order of one queue. It hears of every start and end."""

    fifo: bool
    """Whether a newcomer can never be next while somebody waits."""

    def first(self, waiting: Sequence[Flight]) -> Flight:
        """Who of `waiting` (in order of arrival, not empty) is next."""

    def started(self, flight: Flight) -> None:
        """`flight` left the queue for the engine."""

    def ended(self, flight: Flight) -> None:
        """`flight` left the engine."""


class ByArrival:
    """First come, first served."""

    fifo = True

    def first(self, waiting: Sequence[Flight]) -> Flight:
        """The oldest."""
        return waiting[0]

    def started(self, flight: Flight) -> None:
        """Nothing to note."""

    def ended(self, flight: Flight) -> None:
        """Nothing to note."""


class ShortestFirst(ByArrival):
    """Shortest true output first: MC-SF's order (arXiv 2502.07115), for who knows lengths."""

    fifo = False

    def first(self, waiting: Sequence[Flight]) -> Flight:
        """The shortest."""
        return min(waiting, key=lambda flight: flight.arrival.output)


class LeastServed:
    """VTC (Sheng et al., OSDI 2024, arXiv 2401.00588): the client with the smallest counter.

    A counter grows by the prompt at the start and by each output token; a client that comes back
    from idleness is lifted to the smallest counter of those waiting, so that absence saves nothing.
    """

    fifo = False

    def __init__(self) -> None:
        self._settled: dict[str, float] = {}
        self._flying: dict[str, list[Flight]] = {}
        self._waiting: set[str] = set()

    def first(self, waiting: Sequence[Flight]) -> Flight:
        """The oldest of the least served client."""
        clients = {flight.arrival.client for flight in waiting}
        counters = {client: self._counter(client) for client in clients}
        stayed = [counters[client] for client in clients & self._waiting]
        for client in clients - self._waiting:
            lift = min(stayed, default=0.0) - counters[client]
            if lift > 0:
                self._settled[client] = self._settled.get(client, 0.0) + lift
                counters[client] += lift
        self._waiting = clients
        return min(waiting, key=lambda flight: counters[flight.arrival.client])

    def started(self, flight: Flight) -> None:
        """Its output counts from now on, live."""
        self._flying.setdefault(flight.arrival.client, []).append(flight)

    def ended(self, flight: Flight) -> None:
        """Its cost is settled."""
        client = flight.arrival.client
        self._flying[client].remove(flight)
        self._settled[client] = self._settled.get(client, 0.0) + _cost(flight)

    def _counter(self, client: str) -> float:
        live = sum(_cost(flight) for flight in self._flying.get(client, []))
        return self._settled.get(client, 0.0) + live


def _cost(flight: Flight) -> float:
    return PROMPT_WEIGHT * flight.arrival.prompt + OUTPUT_WEIGHT * flight.out
