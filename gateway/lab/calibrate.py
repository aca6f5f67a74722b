"""What a scenario's box can do, measured before any policy is judged on it.

*Capacity*: the scenario's requests, SURPLUS times as many, wait without limit before a gate that
knows every length, so the box is never idle; what it finishes per second then is what it can serve.
*Capacity in time*: the same crowd, but what has waited half the TTFT objective leaves, and only
answers within the objectives count. A load is told as a multiple of both. *Unloaded latency*: some of the same requests, each alone on
the box; an objective is told as a multiple of that. Both use seed 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gateway.lab import orders, policies
from gateway.lab.fleet import Spread, least_connections
from gateway.lab.flights import Fate
from gateway.lab.gates import QueueGate
from gateway.lab.measures import WARM
from gateway.lab.scenarios import SCENARIOS
from gateway.lab.simulate import simulate
from gateway.twin.profiles import UNBOUNDED

if TYPE_CHECKING:
    from gateway.lab.traces import Trace
    from gateway.twin.profiles import Profile

SURPLUS = 2.0  # times the scenario's load, which is itself near or above what its box can do
ALONE = 40  # requests measured unloaded: enough for a p90, and a second of work
APART_S = 4000.0  # between two of them: longer than the longest answer of any trace here


@dataclass(frozen=True, slots=True)
class Calibration:
    """Rates in requests/s, times in seconds; TTFT and TPOT are medians and 90 of 100, unloaded."""

    offered_rps: float
    capacity_rps: float
    in_time_rps: float
    load: float  # offered over capacity
    load_in_time: float  # offered over capacity in time
    ttft_p50: float
    ttft_p90: float
    tpot_p50: float
    tpot_p90: float
    ttft_objective_over_p90: float
    tpot_objective_over_p90: float


def calibrate(name: str, seconds: float) -> Calibration:
    """Measure the box of scenario `name` under the requests of `seconds` of it."""
    scenario = SCENARIOS[name]
    trace = scenario.arrivals(0, seconds)
    offered = len(trace.arrivals) / seconds
    capacity, in_time = _capacity(name, seconds), _capacity(name, seconds, in_time=True)
    ttfts, tpots = _unloaded(name, trace)
    ttft_p90, tpot_p90 = float(np.quantile(ttfts, 0.9)), float(np.quantile(tpots, 0.9))
    return Calibration(
        offered_rps=offered,
        capacity_rps=capacity,
        in_time_rps=in_time,
        load=offered / capacity,
        load_in_time=offered / in_time,
        ttft_p50=float(np.median(ttfts)),
        ttft_p90=ttft_p90,
        tpot_p50=float(np.median(tpots)),
        tpot_p90=tpot_p90,
        ttft_objective_over_p90=scenario.objectives.ttft / ttft_p90,
        tpot_objective_over_p90=scenario.objectives.tpot / tpot_p90,
    )


def _capacity(name: str, seconds: float, *, in_time: bool = False) -> float:
    scenario = SCENARIOS[name]
    crowd = scenario.arrivals(0, SURPLUS * seconds)
    crowd = crowd.mapped(lambda item: replace(item, at=item.at / SURPLUS))
    wait = scenario.objectives.ttft / 2 if in_time else float("inf")
    boxes = [_immortal(box) for box in scenario.servers(0)]
    gates = [
        QueueGate(policies.Oracle("oracle"), orders.ByArrival(), max_wait_s=wait, server=server)
        for server in range(len(boxes))
    ]
    gate = Spread(least_connections, gates)
    run = simulate(crowd, gate, boxes, version=scenario.version, seconds=seconds)
    # Answers under way when measuring began make up for those under way when it stopped.
    served = sum(
        flight.fate is Fate.SERVED
        and (flight.ended or 0.0) >= WARM * seconds
        and (not in_time or scenario.objectives.met(flight))
        for flight in run.flights
    )
    return max(served, 1) / ((1 - WARM) * seconds)


def _immortal(box: Profile) -> Profile:
    """A box as it is while it lives: a gate that only knows lengths may well kill it."""
    return box.with_(activations=UNBOUNDED, dry_pool_kills=False)


def _unloaded(name: str, trace: Trace) -> tuple[list[float], list[float]]:
    scenario = SCENARIOS[name]
    stride = max(1, len(trace.arrivals) // ALONE)
    chosen = trace.arrivals[::stride][:ALONE]
    sparse = replace(
        trace,
        arrivals=tuple(
            replace(item, at=APART_S * index, blocks=()) for index, item in enumerate(chosen)
        ),
    )
    gate = QueueGate(policies.Nothing("none"), orders.ByArrival(), max_wait_s=float("inf"))
    run = simulate(
        sparse,
        gate,
        scenario.box(0),
        version=scenario.version,
        seconds=APART_S * (len(chosen) + 1),
    )
    served = [flight for flight in run.flights if flight.fate is Fate.SERVED]
    ttfts = [flight.ttft for flight in served if flight.ttft is not None]
    tpots = [flight.tpot for flight in served if flight.tpot is not None]
    return ttfts, tpots
