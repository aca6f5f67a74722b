"""One simulation of the grid: a scenario, a policy, a seed; and the numbers that come of it.

Some numbers need a second run of the same cell: victims alone (what their wait would be without the
flood), and refused clients that come back when they were told to. Both see the same arrivals as the
first. A policy that says no time to come back has no second run of that kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.lab import fleet, orders, policies
from gateway.lab.admitperf import write_log
from gateway.lab.arrivals import alone
from gateway.lab.coregate import CoreGate, Part
from gateway.lab.gates import Gate, QueueGate
from gateway.lab.measures import (
    first_retries,
    measure,
    measured,
    retractions_after,
    served_tokens_per_second,
    ttft_quantile,
)
from gateway.lab.scenarios import SCENARIOS, Scenario
from gateway.lab.sights import ranges
from gateway.lab.simulate import Run, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.lab.traces import Trace

FIXED_LIMITS = (2, 8, 16, 32, 64)

POLICIES = (
    "none",
    "fixed",
    "worst-case",
    "worst-case-capped",
    "per-request-quantile",
    "mirror",
    "past-future",
    "vtc",
    "kvgate",
    "kvgate-no-forecast",
    "kvgate-no-pace",
    "kvgate-no-shares",
    "oracle",
    "oracle-mcsf",
)


FLEET = (
    "round-robin",
    "least-connections",
    "static-split",
    "kvgate-apart",
    "kvgate",
    "kvgate-no-affinity",
)
"""What stands before several servers: balancers, a gate for each behind round robin, one for all."""

OURS: dict[str, Part | None] = {
    "kvgate": None,
    "kvgate-no-forecast": "forecast",  # reservation: declared
    "kvgate-no-pace": "pace",  # tpot_s: off
    "kvgate-no-shares": "shares",  # everybody is one client
    "kvgate-no-affinity": "affinity",  # where a prompt's beginning was read counts for nothing
}


ABLATIONS = tuple(name for name in POLICIES if OURS.get(name) is not None)
"""Ours without a part: for who asks what that part is worth."""


def played(scenario: str, chosen: Sequence[str]) -> list[str]:
    """Those of `chosen` that have a meaning in a scenario: balancers need several servers."""
    known = FLEET if SCENARIOS[scenario].fleet else POLICIES
    return [policy for policy in chosen if policy in known]


def gate_of(policy: str, scenario: Scenario, seed: int) -> Gate:
    """A fresh gate. `fixed` carries its limit: `fixed-16`. Raises KeyError on an unknown name."""
    arrival = orders.ByArrival()
    made: dict[str, tuple[policies.Policy, orders.Order]] = {
        "none": (policies.Nothing("none"), arrival),
        "worst-case": (policies.WorstCase("worst-case"), arrival),
        "worst-case-capped": (policies.WorstCase("worst-case-capped", quantile=0.999), arrival),
        "per-request-quantile": (policies.PerRequestQuantile("per-request-quantile"), arrival),
        "mirror": (policies.Mirror("mirror"), arrival),
        "past-future": (policies.PastFuture("past-future", seed=seed), arrival),
        "vtc": (policies.Mirror("vtc"), orders.LeastServed()),
        "oracle": (policies.Oracle("oracle"), arrival),
        "oracle-mcsf": (policies.Oracle("oracle-mcsf"), orders.ShortestFirst()),
        **{
            f"fixed-{most}": (policies.FixedConcurrency("fixed", most=most), arrival)
            for most in FIXED_LIMITS
        },
    }
    if scenario.fleet and policy not in OURS:
        return _spread(policy, scenario, seed)
    if policy in OURS:
        return CoreGate(max_wait_s=scenario.max_wait_s, seed=seed, without=OURS[policy])
    chosen, order = made[policy]
    return QueueGate(chosen, order, max_wait_s=scenario.max_wait_s)


def _spread(policy: str, scenario: Scenario, seed: int) -> Gate:
    """A gate for each of a scenario's servers, behind a balancer."""
    routes = {
        "round-robin": fleet.round_robin(),
        "least-connections": fleet.least_connections,
        "static-split": fleet.static_split,
        "kvgate-apart": fleet.round_robin(),
        "oracle": fleet.least_connections,
    }
    wait = scenario.max_wait_s
    gates: list[Gate] = []
    for server in range(len(scenario.fleet)):
        if policy == "kvgate-apart":
            gates.append(CoreGate(max_wait_s=wait, seed=seed, server=server))
            continue
        rule = policies.Oracle("oracle") if policy == "oracle" else policies.Nothing("none")
        gates.append(QueueGate(rule, orders.ByArrival(), max_wait_s=wait, server=server))
    return fleet.Spread(routes[policy], gates)


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation to run. With `logs`, a directory, its decisions are written below it."""

    scenario: str
    policy: str
    seed: int
    seconds: float
    logs: str | None = None
    patient: bool = True  # whether to play it again with clients that honour Retry-After


@dataclass(frozen=True, slots=True)
class Measured:
    """The metrics of a cell, and (least, median, most) of each signal at its decisions."""

    values: dict[str, float]
    signals: dict[str, tuple[float, float, float]]


def run_cell(cell: Cell) -> Measured:
    """Simulate one cell and measure it."""
    scenario = SCENARIOS[cell.scenario]
    trace = scenario.arrivals(cell.seed, cell.seconds)
    run = _play(cell, trace)
    values = measure(run, scenario.objectives)
    if scenario.victims is not None:
        values |= _victims(cell, trace, run, scenario.victims)
    if scenario.shift is not None:
        values["retractions_per_1000_after"] = retractions_after(run, scenario.shift * cell.seconds)
    if cell.patient and any(flight.retry_after_s is not None for flight in run.flights):
        patient = _play(cell, trace, honour_retries=True)
        if (share := first_retries(patient)) is not None:
            values["retry_first_try"] = share
    if cell.logs is not None:
        write_log(run, Path(cell.logs), scenario, cell.policy, cell.seed)
    return Measured(values, ranges(run))


def _play(cell: Cell, trace: Trace, *, honour_retries: bool = False) -> Run:
    scenario = SCENARIOS[cell.scenario]
    return simulate(
        trace,
        gate_of(cell.policy, scenario, cell.seed),
        scenario.servers(cell.seed),
        version=scenario.version,
        seconds=cell.seconds,
        honour_retries=honour_retries,
    )


def _victims(cell: Cell, trace: Trace, run: Run, victims: str) -> dict[str, float]:
    objectives = SCENARIOS[cell.scenario].objectives
    quiet = _play(cell, alone(trace, victims))
    crowded, calm = (
        ttft_quantile(
            [
                flight
                for flight in measured(each, objectives)
                if flight.arrival.client.startswith(victims)
            ],
            0.99,
            cell.seconds,
        )
        for each in (run, quiet)
    )
    flood = [
        flight
        for flight in measured(run, objectives)
        if not flight.arrival.client.startswith(victims)
    ]
    values = {"victim_ttft_p99_vs_alone": crowded / calm} if calm > 0 else {}
    return values | {
        "victim_ttft_p99": crowded,
        "runaway_tokens_per_s": served_tokens_per_second(flood, run, objectives),
    }
