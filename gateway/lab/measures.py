"""From a run to numbers. Definitions:

- *good*: served with TTFT and TPOT within the objectives. `goodput_rps` is good requests per second
  of the measured part, `goodput_share` is good over offered.
- The measured part leaves out the first WARM of the run, while the pool fills and windows are
  empty, and the arrivals so late that they could hardly have been served before it ended.
- `jain` and `service_gap` are about the clients that were backlogged throughout: see `fairness`.
- `ttft_mape` and `ttft_q95_coverage` are about gates that predict TTFT: see `gates.Predicts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gateway.lab.fairness import sharing
from gateway.lab.flights import Fate, Flight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.lab.simulate import Run

WARM = 0.15  # share of the run that is not measured at its start
TAIL = 0.1  # share that is not measured at its end, besides the TTFT objective


@dataclass(frozen=True, slots=True)
class Objectives:
    """What counts as good, seconds."""

    ttft: float = 5.0
    tpot: float = 0.1

    def met(self, flight: Flight) -> bool:
        """Was `flight` served in time?"""
        ttft, tpot = flight.ttft, flight.tpot
        if flight.fate is not Fate.SERVED or ttft is None or tpot is None:
            return False
        return ttft <= self.ttft and tpot <= self.tpot


def span(run: Run, objectives: Objectives) -> tuple[float, float]:
    """The measured part, seconds from the start."""
    return WARM * run.seconds, (1 - TAIL) * run.seconds - objectives.ttft


def measured(run: Run, objectives: Objectives) -> list[Flight]:
    """The flights that count."""
    start, stop = span(run, objectives)
    return [flight for flight in run.flights if start <= flight.arrival.at <= stop]


def measure(run: Run, objectives: Objectives) -> dict[str, float]:
    """Every metric of one run. Raises ValueError for a run too short to measure anything."""
    flights = measured(run, objectives)
    start, stop = span(run, objectives)
    seconds = stop - start
    if seconds <= 0:
        message = (
            f"a run of {run.seconds:g} s has no measured part with a TTFT objective of "
            f"{objectives.ttft:g} s; it takes more than {objectives.ttft / (1 - WARM - TAIL):g} s"
        )
        raise ValueError(message)
    good = sum(objectives.met(flight) for flight in flights)
    offered = max(1, len(flights))
    values = {
        "goodput_rps": good / seconds,
        "goodput_share": good / offered,
        "served_rps": _count(flights, Fate.SERVED) / seconds,
        "kv_utilisation": run.used_share,
        "retractions_per_1000": 1000 * run.retractions / max(1, len(run.flights)),
        "crashes": float(run.crashes),
        "lost": float(_count(run.flights, Fate.LOST)),
        "refused_share": _count(flights, Fate.REFUSED) / offered,
        "ttft_p50": ttft_quantile(flights, 0.5, run.seconds),
        "ttft_p99": ttft_quantile(flights, 0.99, run.seconds),
        "wasted_prefill_share": _wasted(run),
    }
    asked = sum(each.prompt_tokens for each in run.counters)
    if cached := sum(each.cached_tokens for each in run.counters):
        values["cache_hit_share"] = cached / asked
    values |= predictions(flights)
    if (shared := sharing(run.flights, start, stop, clock=run.seconds)) is not None:
        values |= {"jain": shared.jain, "service_gap": shared.gap}
    return values


def ttft_quantile(flights: Sequence[Flight], level: float, seconds: float) -> float:
    """A quantile of the TTFT of what was not refused, in a run of `seconds`.

    A request that never saw a token counts with the time it waited, a lower bound.
    """
    waits = [
        (flight.ended or seconds) - flight.arrival.at if flight.ttft is None else flight.ttft
        for flight in flights
        if flight.fate is not Fate.REFUSED
    ]
    return float(np.quantile(np.array(waits), level)) if waits else 0.0


def predictions(flights: Sequence[Flight]) -> dict[str, float]:
    """How well a gate predicted TTFT: the mean absolute percentage error, and the share that came
    before the predicted 95th percentile. Of requests that saw a first token; empty without any."""
    pairs = [
        (flight.predicted, flight.ttft)
        for flight in flights
        if flight.predicted is not None and flight.ttft is not None and flight.ttft > 0
    ]
    if not pairs:
        return {}
    errors = [abs(told[0] - came) / came for told, came in pairs]
    return {
        "ttft_mape": float(np.mean(errors)),
        "ttft_q95_coverage": sum(came <= told[1] for told, came in pairs) / len(pairs),
    }


def retractions_after(run: Run, at: float) -> float:
    """Retractions from `at` (seconds) on, per 1000 requests that arrived from then on."""
    arrived = sum(flight.arrival.at >= at for flight in run.flights)
    return 1000 * sum(moment >= at for moment in run.retracted_at) / max(1, arrived)


def served_tokens_per_second(flights: Sequence[Flight], run: Run, objectives: Objectives) -> float:
    """Prompt and output tokens of those of `flights` that were served, per second measured."""
    start, stop = span(run, objectives)
    tokens = sum(flight.held for flight in flights if flight.fate is Fate.SERVED)
    return tokens / (stop - start)


def first_retries(run: Run) -> float | None:
    """Share of the first retries that were let through, of those decided; None without any."""
    decided = [flight for flight in run.retries if flight.sight is not None]
    if not decided:
        return None
    return sum(flight.granted is not None for flight in decided) / len(decided)


def _count(flights: Sequence[Flight], fate: Fate) -> int:
    return sum(flight.fate is fate for flight in flights)


def _wasted(run: Run) -> float:
    computed = sum(each.prefill_tokens for each in run.counters)
    asked = sum(each.prompt_tokens - each.cached_tokens for each in run.counters)
    return max(0.0, computed / asked - 1) if asked else 0.0
