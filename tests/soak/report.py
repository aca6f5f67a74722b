"""What a soak found, and whether every promise held."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tests.soak.clients import Tally

WARM_UP = 0.25
"""Part of the run before which memory is not judged: caches, pools and the allocator fill."""

BLOCKS = 20
"""The samples are averaged in so many blocks: neighbours share the load of their moment."""


@dataclass(frozen=True)
class Slope:
    """MB an hour, and the standard error of it."""

    mb_per_hour: float
    error: float

    def __str__(self) -> str:
        return f"{self.mb_per_hour:+.1f} ± {2 * self.error:.1f} MB/h (two standard errors)"


def slope(samples: list[tuple[float, int]]) -> Slope:
    """The straight line through block means of (seconds, bytes), by least squares."""
    kept = samples[int(len(samples) * WARM_UP) :]
    size = max(1, len(kept) // BLOCKS)
    blocks = [kept[at : at + size] for at in range(0, len(kept) - size + 1, size)]
    times = [statistics.fmean(at for at, _ in block) / 3600 for block in blocks]
    values = [statistics.fmean(rss for _, rss in block) / 1e6 for block in blocks]
    if len(blocks) < 3:
        return Slope(math.nan, math.nan)
    fit = statistics.linear_regression(times, values)
    rest = [v - fit.slope * t - fit.intercept for t, v in zip(times, values, strict=True)]
    spread = sum((t - statistics.fmean(times)) ** 2 for t in times)
    error = math.sqrt(sum(r * r for r in rest) / (len(rest) - 2) / spread)
    return Slope(fit.slope, error)


@dataclass
class Report:
    """Everything that was seen."""

    seconds: float
    seed: int
    tally: Tally
    faults: Counter[str]
    samples: list[tuple[float, dict[str, Any]]]
    rest: dict[str, Any]  # the gate at rest
    records: list[dict[str, Any]]
    engine: dict[str, Any]
    broken: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Fill `broken`."""
        rest, engine, tally = self.rest, self.engine, self.tally
        held = [pool for pool in rest["pools"] if any(pool[2:])]
        self._must(not held, f"ledgers are not zero at rest: {held}")
        for name in ("waiters", "holding", "running", "dying", "clients"):
            self._must(rest[name] == 0, f"{rest[name]} {name} at rest")
        self._must(rest["queue"] == [0, 0, 0], f"the queue at rest: {rest['queue']}")
        self._must(engine["in_flight"] == 0, f"the engine holds {engine['in_flight']} requests")
        self._must(engine["used"] == 0, f"the engine uses {engine['used']} tokens at rest")
        self._must(engine["retractions"] == 0, f"{engine['retractions']} retractions")
        for peak, pool in engine["peaks"]:
            self._must(peak <= pool, f"{peak} tokens in a pool of {pool}")
        limits = sum(pool[1] for pool in rest["pools"])
        self._must(limits <= engine["pool"], f"limits of {limits} for a pool of {engine['pool']}")
        self._one_end_each()
        statuses = self.tally.statuses
        self._must(
            statuses["200"] > statuses["400"],
            f"{statuses['200']} answers and {statuses['400']} bad requests: that is no load",
        )
        self._must(rest["connections"] == 0, f"{rest['connections']} client connections at rest")
        for wrong in (*tally.wrong[:5], *(f"hang: {ident}" for ident in tally.hangs[:5])):
            self.broken.append(wrong)

    def _one_end_each(self) -> None:
        ends = Counter(record["id"] for record in self.records)
        twice = [ident for ident, number in ends.items() if number > 1]
        self._must(not twice, f"{len(twice)} requests ended twice")
        handled = self.rest["handled"]
        self._must(len(ends) == handled, f"{len(ends)} records of {handled} requests")
        told = Counter(record.get("client_request_id") for record in self.records)
        self._must(
            not [i for i, n in told.items() if n > 1 and i], "one id of a client, two records"
        )
        self._must(all(record["outcome"] for record in self.records), "a record without an outcome")

    def _must(self, holds: bool, sentence: str) -> None:
        if not holds:
            self.broken.append(sentence)

    def lines(self) -> list[str]:
        """For people."""
        tally, rest, engine = self.tally, self.rest, self.engine
        rss = slope([(at, sample["rss"]) for at, sample in self.samples])
        first, last = self.samples[int(len(self.samples) * WARM_UP)][1], self.samples[-1][1]
        outcomes = Counter(record["outcome"] for record in self.records)
        most = {
            name: max(sample[name] for _, sample in self.samples)
            for name in ("tasks", "files", "connections", "upstream", "dying", "timers")
        }
        return [
            f"{self.seconds / 60:.1f} minutes, seed {self.seed}",
            (
                f"requests: {tally.sent} sent whole, {rest['handled']} handled, "
                f"{len(self.records)} ends {dict(outcomes)}"
            ),
            (
                f"answers: {dict(sorted(tally.statuses.items()))}, {tally.in_band} told in-band, "
                f"{tally.broken} cut, {tally.unanswered} connections without an answer, "
                f"{tally.duplicates} told that their id was taken"
            ),
            f"clients that left: {dict(tally.left)}; hangs: {len(tally.hangs)}",
            f"faults: {dict(self.faults)}; refused by the engine as full: {engine['full']}",
            (
                f"memory of the gate: {rss}; {first['rss'] / 1e6:.1f} MB after the warm-up, "
                f"{last['rss'] / 1e6:.1f} MB at the end"
            ),
            f"most at once: {most}",
            (
                f"at rest: tasks {rest['tasks']}, files {rest['files']}, client connections "
                f"{rest['connections']}, connections to the engine {rest['upstream']}, "
                f"timers {rest['timers']}"
            ),
            (
                f"ledger at rest {[pool[2] for pool in rest['pools']]}, engine uses {engine['used']} "
                f"tokens and holds {engine['in_flight']} requests; limit "
                f"{[pool[1] for pool in rest['pools']]} of a pool of {engine['pool']}"
            ),
            (
                f"engine: {engine['starts']} starts, peaks {engine['peaks']}, "
                f"{engine['retractions']} retractions, longest queue inside {engine['waiting']}"
            ),
            *(f"BROKEN: {sentence}" for sentence in self.broken),
        ]


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All record files of a folder."""
    files = sorted(folder.glob("records.jsonl*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
