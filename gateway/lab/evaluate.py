"""Scenarios x policies x seeds, in parallel: medians with 95 % intervals, as rows.

Every policy of a seed sees the same arrivals. `fixed` is run at several limits and reported at the
one whose median goodput is best: a baseline tuned after the fact, which nobody has in production.
Intervals are bootstrap percentiles of the median over seeds; with one seed they are the value.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gateway.lab import orders, policies
from gateway.lab.coregate import CoreGate
from gateway.lab.gates import Gate, QueueGate
from gateway.lab.measures import measure, measured, ttft_quantile
from gateway.lab.scenarios import SCENARIOS, Scenario, alone
from gateway.lab.simulate import simulate
from gateway.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FIXED_LIMITS = (8, 16, 32, 64)
BOOTSTRAPS = 1000

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
        return CoreGate(max_wait_s=scenario.max_wait_s)
    chosen, order = made[policy]
    return QueueGate(chosen, order, max_wait_s=scenario.max_wait_s)


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation to run."""

    scenario: str
    policy: str
    seed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one policy in one scenario: median over seeds and its 95 % interval."""

    scenario: str
    policy: str
    metric: str
    median: float
    low: float
    high: float
    seeds: int


def run_cell(cell: Cell) -> dict[str, float]:
    """Simulate one cell and measure it."""
    scenario = SCENARIOS[cell.scenario]
    trace = scenario.arrivals(cell.seed, cell.seconds)
    run = simulate(
        trace,
        gate_of(cell.policy, scenario, cell.seed),
        scenario.profile,
        version=scenario.version,
        seconds=cell.seconds,
    )
    values = measure(run, scenario.objectives)
    if scenario.victims is not None:
        quiet = simulate(
            alone(trace, scenario.victims),
            gate_of(cell.policy, scenario, cell.seed),
            scenario.profile,
            version=scenario.version,
            seconds=cell.seconds,
        )
        both = [
            ttft_quantile(
                [
                    flight
                    for flight in measured(each, scenario.objectives)
                    if flight.arrival.client.startswith(scenario.victims)
                ],
                0.99,
                cell.seconds,
            )
            for each in (run, quiet)
        ]
        values["victim_ttft_p99"] = both[0]
        values["victim_ttft_p99_vs_alone"] = both[0] / both[1]
    return values


def evaluate(
    scenarios: Sequence[str],
    chosen: Sequence[str],
    *,
    seeds: int,
    quick: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Any]:
    """Run the grid. Returns ``{"rows": [...], "config": ...}``; `progress` hears (done, total).

    `quick` plays a third of each scenario. Raises KeyError on an unknown scenario or policy.
    """
    cells = list(_cells(scenarios, chosen, seeds, quick=quick))
    results: dict[Cell, dict[str, float]] = {}
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for cell, values in zip(cells, pool.map(run_cell, cells), strict=True):
            results[cell] = values
            progress(len(results), len(cells))
    rows = list(_rows(results, seeds))
    return {"rows": [asdict(row) for row in rows], "config": _config(scenarios, seeds, quick=quick)}


def _cells(
    scenarios: Sequence[str], chosen: Sequence[str], seeds: int, *, quick: bool
) -> Iterator[Cell]:
    for name in scenarios:
        seconds = SCENARIOS[name].seconds / (3 if quick else 1)
        for policy in chosen:
            if policy not in POLICIES:
                message = f"no policy {policy!r}; there are: {', '.join(POLICIES)}"
                raise KeyError(message)
            variants = [f"fixed-{most}" for most in FIXED_LIMITS] if policy == "fixed" else [policy]
            for variant in variants:
                for seed in range(seeds):
                    yield Cell(name, variant, seed, seconds)


def _rows(results: dict[Cell, dict[str, float]], seeds: int) -> Iterator[Row]:
    samples: dict[tuple[str, str], list[dict[str, float]]] = {}
    for cell, values in results.items():
        samples.setdefault((cell.scenario, cell.policy), []).append(values)
    oracle = {name: runs for (name, policy), runs in samples.items() if policy == "oracle"}
    for (name, policy), runs in _best_fixed(samples).items():
        for index, values in enumerate(runs):
            if name in oracle and oracle[name][index]["goodput_rps"] > 0:
                reference = oracle[name][index]["goodput_rps"]
                values["goodput_vs_oracle"] = values["goodput_rps"] / reference
        for metric in runs[0]:
            median, low, high = interval([values[metric] for values in runs if metric in values])
            yield Row(name, policy, metric, median, low, high, seeds)


def _best_fixed(
    samples: dict[tuple[str, str], list[dict[str, float]]],
) -> dict[tuple[str, str], list[dict[str, float]]]:
    """The variants of `fixed` become one: the best of each scenario."""
    out: dict[tuple[str, str], list[dict[str, float]]] = {}
    best: dict[str, float] = {}
    for (name, policy), runs in samples.items():
        if not policy.startswith("fixed-"):
            out[name, policy] = runs
            continue
        goodput = float(np.median([values["goodput_rps"] for values in runs]))
        if goodput >= best.get(name, -1.0):
            best[name] = goodput
            limit = float(policy.removeprefix("fixed-"))
            out[name, "fixed"] = [{**values, "limit": limit} for values in runs]
    return out


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and the 95 % bootstrap interval of the median. Seeded: the same values, the same
    interval."""
    data = np.array(values, dtype=np.float64)
    if len(data) == 1 or not np.isfinite(data).all():
        return float(np.median(data)), float(data.min()), float(data.max())
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(data, size=(BOOTSTRAPS, len(data))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(np.median(data)), float(low), float(high)


def _config(scenarios: Sequence[str], seeds: int, *, quick: bool) -> dict[str, Any]:
    """What was run, in full: enough to run it again."""
    return {
        "kvgate": VERSION,
        "seeds": seeds,
        "quick": quick,
        "fixed_limits": list(FIXED_LIMITS),
        "scenarios": {
            name: {
                "story": SCENARIOS[name].story,
                "profile": SCENARIOS[name].profile.name,
                "pool": SCENARIOS[name].profile.pool,
                "engine": SCENARIOS[name].version,
                "seconds": SCENARIOS[name].seconds / (3 if quick else 1),
                "max_wait_s": SCENARIOS[name].max_wait_s,
                "ttft_s": SCENARIOS[name].objectives.ttft,
                "tpot_s": SCENARIOS[name].objectives.tpot,
                "speed": asdict(SCENARIOS[name].profile.speed),
            }
            for name in scenarios
        },
    }
