"""The numbers of a run as rows, as a table, and as a sentence about the machine."""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.load import Seen, quantile

COLUMNS = {
    "cpu_us_per_request": "CPU µs a request",
    "cpu_us_per_chunk": "CPU µs a chunk",
    "rps": "requests/s, 16 connections",
    "chunks_per_s": "chunks/s, {streams} streams",
    "added_p50_ms": "added p50 ms, one connection",
    "added_p99_ms": "added p99 ms",
    "loop_lag_p99_ms": "p99 ms to an empty page beside {streams} streams",
    "waiting_kb": "KB in memory per waiting request",
}


@dataclass
class Rounds:
    """What one target showed, round by round."""

    asks: list[Seen] = field(default_factory=list)
    alone: list[Seen] = field(default_factory=list)
    streams: list[Seen] = field(default_factory=list)
    waiting_bytes: float | None = None

    @property
    def errors(self) -> int:
        return sum(seen.errors for seen in self.asks + self.alone + self.streams)


def row(name: str, version: str, rounds: Rounds, direct: Rounds) -> dict[str, Any]:
    """Medians. What is added is over the server asked directly, in the same round."""

    def median(values: list[float], digits: int) -> float:
        return round(statistics.median(values), digits)

    def added(q: float) -> float:
        pairs = zip(rounds.alone, direct.alone, strict=True)
        return median([one.quantile_ms(q) - bare.quantile_ms(q) for one, bare in pairs], 3)

    made: dict[str, Any] = {
        "target": name,
        "version": version,
        "cpu_us_per_request": median([s.cpu_s / len(s.latencies) * 1e6 for s in rounds.asks], 1),
        "cpu_us_per_chunk": median([s.cpu_s / s.chunks * 1e6 for s in rounds.streams], 1),
        "rps": median([len(s.latencies) / s.seconds for s in rounds.asks], 0),
        "chunks_per_s": median([s.chunks / s.seconds for s in rounds.streams], 0),
        "p50_ms": median([s.quantile_ms(0.5) for s in rounds.alone], 3),
        "p99_ms": median([s.quantile_ms(0.99) for s in rounds.alone], 3),
        "added_p50_ms": added(0.5),
        "added_p99_ms": added(0.99),
        "loop_lag_p99_ms": median([quantile(s.probes, 0.99) * 1000 for s in rounds.streams], 1),
        "waiting_kb": None,
    }
    if rounds.waiting_bytes is not None:
        made["waiting_kb"] = round(rounds.waiting_bytes / 1000, 1)
    return made


def table(rows: list[dict[str, Any]], missing: dict[str, str], streams: int) -> str:
    """In markdown; a column for each target."""
    heads = [f"{one['target']} {one['version']}".strip() for one in rows]
    lines = [
        f"| | {' | '.join(heads)} |",
        "|---" * (len(rows) + 1) + "|",
    ]
    for key, words in COLUMNS.items():
        cells = ("–" if one[key] is None else f"{one[key]:g}" for one in rows)
        lines.append(f"| {words.format(streams=streams)} | {' | '.join(cells)} |")
    lines += [f"\n{name} was not measured: {why}." for name, why in missing.items()]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Where and when."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpus": os.cpu_count(),
        "cpu": model,
        "python": platform.python_version(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
    }
