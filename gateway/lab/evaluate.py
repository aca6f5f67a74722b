"""Scenarios x policies x seeds, in parallel, in virtual time.

Every policy of a seed sees the same arrivals. The oracle and VTC run along even where they were not
asked for, because others are measured against them. The result is rows for scripts and, under
`config`, everything a reader needs to judge and repeat them.
"""

from __future__ import annotations

import contextlib
import platform
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from signal import SIG_DFL, SIGINT
from signal import signal as on
from typing import TYPE_CHECKING, Any

from gateway.lab.calibrate import ALONE, SURPLUS, calibrate
from gateway.lab.cells import FIXED_LIMITS, FLEET, POLICIES, Cell, Measured, played, run_cell
from gateway.lab.disclosure import ABSENT, METRICS, parameters
from gateway.lab.rows import RATIOS, rows
from gateway.lab.scenarios import SCENARIOS
from gateway.lab.sights import READS, SIGNALS
from gateway.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.lab.calibrate import Calibration

QUICK = 4.0  # how many times shorter a quick run plays each scenario
QUICK_LIMITS = (8, 32)  # of `fixed` in a quick run


def evaluate(
    scenarios: Sequence[str],
    chosen: Sequence[str],
    *,
    seeds: int,
    quick: bool = False,
    workers: int | None = None,
    logs: str | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Any]:
    """Run the grid. Returns ``{"rows": [...], "config": ...}``; `progress` hears (done, total).

    With `logs`, a directory, every run leaves a decision log below it. Raises KeyError naming what
    there is on an unknown scenario or policy.
    """
    _known("policy", chosen, (*POLICIES, *(name for name in FLEET if name not in POLICIES)))
    _known("scenario", scenarios, tuple(SCENARIOS))
    lasting = {name: SCENARIOS[name].seconds / (QUICK if quick else 1.0) for name in scenarios}
    cells = _cells(lasting, chosen, seeds, logs, quick=quick)
    total = len(cells) + len(lasting)
    results: dict[Cell, Measured] = {}
    boxes: dict[str, Calibration] = {}
    with _players(workers) as pool:
        measuring = {pool.submit(calibrate, *item): item[0] for item in lasting.items()}
        running = {pool.submit(run_cell, cell): cell for cell in cells}
        for measured in as_completed(measuring):
            boxes[measuring[measured]] = measured.result()
            progress(len(boxes), total)
        for done in as_completed(running):
            results[running[done]] = done.result()
            progress(len(boxes) + len(results), total)
    ordered = {cell: results[cell] for cell in cells}
    return {
        "rows": [asdict(row) for row in rows(ordered, chosen)],
        "config": {
            "kvgate": VERSION,
            "machine": f"{platform.machine()}, {platform.system()}, Python "
            f"{platform.python_version()}",
            "seeds": seeds,
            "quick": quick,
            "policies": list(chosen),
            "fixed_limits": list(QUICK_LIMITS if quick else FIXED_LIMITS),
            "absent": ABSENT,
            "metrics": METRICS,
            "calibration": f"capacity under {SURPLUS:g} times the load and without a limit of "
            f"waiting; unloaded: {ALONE} requests, each alone; seed 0",
            "scenarios": {name: _about(name, lasting[name], boxes[name]) for name in scenarios},
            "signals": {"meaning": SIGNALS, "read_by": READS, "ranges": _ranges(ordered, chosen)},
            "parameters": {
                name: {policy: _parameters(policy, name) for policy in played(name, chosen)}
                for name in scenarios
            },
        },
    }


@contextlib.contextmanager
def _players(workers: int | None) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with the run: whoever interrupts it does not wait for what was not begun,
    and a terminal's Ctrl-C ends them at once, without a traceback each."""
    with ProcessPoolExecutor(workers, initializer=on, initargs=(SIGINT, SIG_DFL)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _known(what: str, names: Sequence[str], there_are: Sequence[str]) -> None:
    for name in names:
        if name not in there_are:
            message = f"no {what} {name!r}; there are: {', '.join(there_are)}"
            raise KeyError(message)


def _cells(
    lasting: dict[str, float],
    chosen: Sequence[str],
    seeds: int,
    logs: str | None,
    *,
    quick: bool,
) -> list[Cell]:
    """The cells, and those of the references that were not asked for (which leave no logs)."""
    limits = QUICK_LIMITS if quick else FIXED_LIMITS
    out: list[Cell] = []
    for name, seconds in lasting.items():
        needed = {reference for _, reference in RATIOS.values()}
        if SCENARIOS[name].victims is None:
            needed.discard("vtc")
        if SCENARIOS[name].fleet:
            needed = {"oracle"}
        mine = played(name, chosen)
        for policy in (*mine, *sorted(needed - set(mine))):
            variants = [f"fixed-{most}" for most in limits] if policy == "fixed" else [policy]
            folder = logs if policy in mine else None
            out.extend(
                Cell(name, variant, seed, seconds, folder, patient=not quick or seed == 0)
                for variant in variants
                for seed in range(seeds)
            )
    return out


def _about(name: str, seconds: float, box: Calibration) -> dict[str, Any]:
    """What was run, in full: enough to run it again."""
    scenario = SCENARIOS[name]
    profile = scenario.box(0)
    return {
        "story": scenario.story,
        "profile": profile.name,
        "boxes": [box.name for box in scenario.boxes],
        "servers": [box.name for box in scenario.servers(0)],
        "model": profile.model,
        "engine": scenario.version,
        "pool": profile.pool,
        "context": profile.context,
        "chunk": profile.chunk,
        "max_running": profile.max_running,
        "conservativeness": profile.conservativeness,
        "speed": asdict(profile.speed),
        "seconds": seconds,
        "max_wait_s": scenario.max_wait_s,
        "ttft_s": scenario.objectives.ttft,
        "tpot_s": scenario.objectives.tpot,
        "box": asdict(box),
    }


def _parameters(policy: str, scenario: str) -> dict[str, Any]:
    return {name: asdict(one) for name, one in parameters(policy, SCENARIOS[scenario]).items()}


def _ranges(
    results: dict[Cell, Measured], chosen: Sequence[str]
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """[least, median of the first seed, most] of each signal over all seeds, by scenario and policy."""
    out: dict[str, dict[str, dict[str, list[float]]]] = {}
    for cell, each in results.items():
        policy = "fixed" if cell.policy.startswith("fixed-") else cell.policy
        if policy not in chosen:
            continue
        known = out.setdefault(cell.scenario, {}).setdefault(cell.policy, {})
        for signal, (least, middle, most) in each.signals.items():
            before = known.setdefault(signal, [least, middle, most])
            known[signal] = [min(before[0], least), before[1], max(before[2], most)]
    return out
