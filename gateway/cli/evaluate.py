"""`kvgate evaluate`: policies x scenarios x seeds on the twin, in virtual time.

Exit codes: 0 when everything ran, 2 with a sentence on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from gateway.cli.usage import UsageError, writable
from gateway.lab.cells import ABLATIONS, FLEET, POLICIES
from gateway.lab.evaluate import evaluate
from gateway.lab.page import page
from gateway.lab.scenarios import SCENARIOS
from gateway.lab.tables import markdown, text

USUAL = [name for name in dict.fromkeys((*POLICIES, *FLEET)) if name not in ABLATIONS]
SEEDS = 5  # enough for an interval that is not just the extremes
QUICK_SEEDS = 2
QUICK_ONES = tuple(name for name, scenario in SCENARIOS.items() if scenario.quick)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(
        prog="kvgate evaluate",
        description="Compare admission policies on a model of the engine, under the same arrivals.",
        epilog=f"scenarios: {' '.join(SCENARIOS)}; policies: {' '.join(POLICIES)}; before "
        f"several servers: {' '.join(FLEET)}; "
        f"on request only: {' '.join(ABLATIONS)}",
    )
    p.add_argument(
        "--quick",
        action="store_true",
        help=f"{' '.join(QUICK_ONES)}, a quarter of each, {QUICK_SEEDS} seeds",
    )
    p.add_argument("--scenario", action="append", metavar="S", help="only this (may be repeated)")
    p.add_argument("--policy", action="append", metavar="P", help="only this (may be repeated)")
    p.add_argument("--seeds", type=int, metavar="N", help=f"repeats (default {SEEDS})")
    p.add_argument("--json", required=True, type=Path, metavar="PATH", help="rows, for scripts")
    p.add_argument("--html", type=Path, metavar="PATH", help="one page with pictures, for people")
    p.add_argument("--markdown", type=Path, metavar="PATH", help="tables for a document")
    p.add_argument(
        "--logs", type=Path, metavar="DIR", help="decision logs, as AdmitPerf reads them"
    )
    p.add_argument("--workers", type=int, metavar="N", help="processes (default: one a core)")
    return p


def run(argv: list[str]) -> int:
    """Run the grid, show a table, write the files asked for."""
    args = parser().parse_args(argv)
    usual = QUICK_SEEDS if args.quick else SEEDS
    seeds = usual if args.seeds is None else args.seeds
    started, when = time.perf_counter(), datetime.now(UTC)
    if seeds < 1:
        print(f"kvgate evaluate: --seeds must be at least 1, not {seeds}", file=sys.stderr)  # noqa: T201
        return 2
    try:
        for option in ("json", "html", "markdown"):
            if (path := getattr(args, option)) is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                writable(f"--{option}", path)
        result = evaluate(
            args.scenario or (list(QUICK_ONES) if args.quick else list(SCENARIOS)),
            args.policy or USUAL,
            seeds=seeds,
            quick=args.quick,
            workers=args.workers,
            logs=None if args.logs is None else str(args.logs),
            progress=_progress,
        )
    except (KeyError, ValueError, OSError, UsageError) as error:
        words = error.args[0] if isinstance(error, KeyError) else error
        print(f"kvgate evaluate: {words}", file=sys.stderr)  # noqa: T201
        return 2
    wall_s = time.perf_counter() - started
    stamp, machine = f"{when:%Y-%m-%d %H:%M} UTC", _machine()
    result["config"] |= {"date": stamp, "machine": machine, "wall_s": round(wall_s, 1)}
    args.json.write_text(json.dumps(result, indent=1, allow_nan=False), encoding="utf-8")
    if args.html is not None:
        document = page(result, when=stamp, machine=machine, wall_s=wall_s)
        args.html.write_text(document, encoding="utf-8")
    if args.markdown is not None:
        args.markdown.write_text(markdown(result, when=stamp, machine=machine), encoding="utf-8")
    print(text(result))  # noqa: T201
    print(f"{wall_s:.1f} s on {machine}; numbers in {args.json}")  # noqa: T201
    return 0


def _machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # no Linux: the architecture is all there is
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}"


def _progress(done: int, total: int) -> None:
    """One line that moves, where there is somebody to look at it."""
    if not sys.stderr.isatty():
        return
    bar = "█" * (30 * done // total)
    end = "\n" if done == total else ""
    print(f"\r\x1b[2K{bar:30} {done} of {total}", end=end, file=sys.stderr, flush=True)  # noqa: T201
