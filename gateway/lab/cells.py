"""One simulation of the grid: a scenario, a policy, a seed; and the numbers that come of it.

Some numbers need a second run of the same cell: victims alone (what their wait would be without the
flood), and refused clients that come back when they were told to. Both see the same arrivals as the
first. A policy that says no time to come back has no second run of that kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.lab import orders, policies
from gateway.lab.admitperf import write_log
from gateway.lab.coregate import CoreGate
from gateway.lab.gates import Gate, QueueGate
from gateway.lab.measures import (
    first_retries,
    measure,
    measured,
    served_tokens_per_second,
    ttft_quantile,
)
from gateway.lab.scenarios import SCENARIOS, Scenario, alone
from gateway.lab.sights import ranges
from gateway.lab.simulate import Run, simulate

if TYPE_CHECKING:
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
    "oracle",
    "oracle-mcsf",
)


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
    if policy == "kvgate":
        return CoreGate(max_wait_s=scenario.max_wait_s, seed=seed)
    chosen, order = made[policy]
    return QueueGate(chosen, order, max_wait_s=scenario.max_wait_s)


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation to run. With `logs`, a directory, its decisions are written below it."""

    scenario: str
    policy: str
    seed: int
    seconds: float
    logs: str | None = None


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
    if any(flight.retry_after_s is not None for flight in run.flights):
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
        scenario.profile,
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
