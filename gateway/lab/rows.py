"""From measured cells to rows: medians over seeds, intervals, and ratios to a reference policy.

Ratios are taken seed by seed, where both saw the same arrivals, and only then summarised. `fixed`
is run at several limits and reported at the one whose median goodput is best: a baseline tuned
after the fact, which nobody has in production. Intervals are 95 % bootstrap percentiles of the
median over seeds; with one seed they are the value. Every metric of CONTRACT has a row for every
policy; where it does not apply its numbers are None (see disclosure.ABSENT).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gateway.lab.cells import Cell, Measured

BOOTSTRAPS = 1000

CONTRACT = (
    "goodput_rps",
    "goodput_vs_oracle",
    "kv_utilisation",
    "retractions_per_1000",
    "crashes",
    "victim_ttft_p99_vs_alone",
    "runaway_vs_vtc",
    "jain",
    "ttft_mape",
    "ttft_q95_coverage",
    "retry_first_try",
)

RATIOS = {
    # metric: (numerator and denominator, reference policy)
    "goodput_vs_oracle": ("goodput_rps", "oracle"),
    "goodput_vs_worst_case": ("goodput_rps", "worst-case"),
    "runaway_vs_vtc": ("runaway_tokens_per_s", "vtc"),
}

Samples = dict[tuple[str, str], list[dict[str, float]]]
"""Metrics of each (scenario, policy), one mapping a seed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one policy in one scenario. `seeds` counts the runs that gave the metric."""

    scenario: str
    policy: str
    metric: str
    median: float | None
    low: float | None
    high: float | None
    seeds: int


def rows(results: Mapping[Cell, Measured], reported: Sequence[str]) -> Iterator[Row]:
    """Rows of the `reported` policies; others among `results` only serve as references."""
    samples: Samples = {}
    for cell, each in results.items():
        samples.setdefault((cell.scenario, cell.policy), []).append(dict(each.values))
    best = _best_fixed(samples)
    for metric, (of, reference) in RATIOS.items():
        _divide(best, metric, of, reference)
    for (name, policy), runs in best.items():
        if policy not in reported:
            continue
        extra = sorted({metric for values in runs for metric in values} - set(CONTRACT))
        for metric in (*CONTRACT, *extra):
            values = [values[metric] for values in runs if metric in values]
            median, low, high = interval(values) if values else (None, None, None)
            yield Row(name, policy, metric, median, low, high, len(values))


def _divide(samples: Samples, metric: str, of: str, reference: str) -> None:
    for (name, _), runs in samples.items():
        for values, base in zip(runs, samples.get((name, reference), []), strict=False):
            if of in values and base.get(of, 0.0) > 0:
                values[metric] = values[of] / base[of]


def _best_fixed(samples: Samples) -> Samples:
    """The variants of `fixed` become one: the best of each scenario."""
    out: Samples = {}
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
