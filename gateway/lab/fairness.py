"""Was service shared evenly among those who always wanted more?

Service is cost, as VTC counts it: a prompt token is one, an output token two, given when the first
token comes and from then on evenly to the end. Only *backlogged* clients are compared, those that
had a request without its first token at nearly every moment: who asks for less than its share gets
less and is not wronged. Weights are equal throughout the laboratory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gateway.lab.flights import Fate
from gateway.lab.orders import OUTPUT_WEIGHT, PROMPT_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.lab.flights import Flight

MOMENTS = 60  # at which backlogs and service are looked at
NEARLY_ALWAYS = 0.9  # share of the moments at which a backlogged client waits


@dataclass(frozen=True, slots=True)
class Sharing:
    """`jain` is 1 when even and 1/n when one has all; `gap` the largest difference of service
    between two clients since the start, over VTC's bound 2 max(prompt cost, output cost)."""

    jain: float
    gap: float


def sharing(
    flights: Sequence[Flight], start: float, stop: float, *, clock: float
) -> Sharing | None:
    """How evenly the backlogged clients among `flights` were served from `start` to `stop`,
    seconds, in a run that was stopped at `clock`. None where fewer than two were backlogged, or nobody got anything."""
    moments = np.linspace(start, stop, MOMENTS)
    clients: dict[str, list[Flight]] = {}
    for flight in flights:
        clients.setdefault(flight.arrival.client, []).append(flight)
    backlogged = [own for own in clients.values() if _waits(own, moments) >= NEARLY_ALWAYS]
    if len(backlogged) < 2:  # noqa: PLR2004 - sharing takes two
        return None
    service = np.array([[_served(own, at, clock) for at in moments] for own in backlogged])
    service -= service[:, :1]
    total = service[:, -1]
    if not total.any():
        return None
    everybody = [flight for own in backlogged for flight in own]
    largest = [
        max(PROMPT_WEIGHT * flight.arrival.prompt, OUTPUT_WEIGHT * flight.arrival.output)
        for flight in everybody
    ]
    bound = 2 * max(largest)
    return Sharing(
        jain=float(total.sum() ** 2 / (len(total) * (total**2).sum())),
        gap=float((service.max(axis=0) - service.min(axis=0)).max() / bound),
    )


def _waits(
    flights: Sequence[Flight], moments: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> float:
    waiting = np.zeros(len(moments), dtype=bool)
    for flight in flights:
        over = flight.ended if flight.first is None else flight.first
        until = np.inf if over is None else over
        waiting |= (flight.arrival.at <= moments) & (moments < until)
    return float(waiting.mean())


def _served(flights: Sequence[Flight], at: float, clock: float) -> float:
    total = 0.0
    for flight in flights:
        if flight.first is None or flight.first > at or flight.fate is Fate.REFUSED:
            continue
        total += PROMPT_WEIGHT * flight.arrival.prompt
        lasted = (clock if flight.ended is None else flight.ended) - flight.first
        share = min(1.0, (at - flight.first) / lasted) if lasted > 0 else 1.0
        total += OUTPUT_WEIGHT * flight.out * share
    return total
