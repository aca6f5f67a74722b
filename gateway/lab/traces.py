"""Arrivals: read from CSV or JSONL, thinned, scaled, shifted. Times are seconds from the start."""

from __future__ import annotations

import csv
import functools
import json
import random
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MOONCAKE_BLOCK = 512  # tokens per block id in the Mooncake traces
TICK_S = 3.0  # Mooncake's conversation timestamps are multiples of three seconds


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace. `output` is its true length, which only oracles may look at."""

    at: float
    prompt: int
    output: int
    client: str = "anyone"
    blocks: tuple[int, ...] = ()
    cap: int | None = None  # what the client sends as its limit; None: nothing
    streamed: bool = True  # else its answer comes in one piece: nobody sees its first token


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in order of time. `block` is the size of a prefix block, tokens."""

    name: str
    arrivals: tuple[Arrival, ...]
    block: int = MOONCAKE_BLOCK

    @property
    def seconds(self) -> float:
        """From the start to the last arrival."""
        return self.arrivals[-1].at if self.arrivals else 0.0

    @property
    def rate(self) -> float:
        """Arrivals per second."""
        return len(self.arrivals) / self.seconds if self.seconds else 0.0

    def window(self, start: float, seconds: float) -> Trace:
        """The arrivals of `seconds` from `start` on, moved to the beginning."""
        kept = [item for item in self.arrivals if start <= item.at < start + seconds]
        return self._with(replace(item, at=item.at - start) for item in kept)

    def thinned(self, share: float, seed: int) -> Trace:
        """Each arrival kept with probability `share`."""
        rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
        return self._with(item for item in self.arrivals if rng.random() < share)

    def at_rate(self, rate: float, seed: int) -> Trace:
        """About `rate` arrivals/s: thinned when that is less than it has, else sped up."""
        if rate < self.rate:
            return self.thinned(rate / self.rate, seed)
        factor = rate / self.rate
        return self._with(replace(item, at=item.at / factor) for item in self.arrivals)

    def capped(self, cap: int | None) -> Trace:
        """Every client sends `cap`; an output longer than it is cut there."""
        return self._with(
            replace(item, cap=cap, output=item.output if cap is None else min(item.output, cap))
            for item in self.arrivals
        )

    def mapped(self, change: Callable[[Arrival], Arrival]) -> Trace:
        """`change` applied to every arrival."""
        return self._with(change(item) for item in self.arrivals)

    def merged(self, other: Trace) -> Trace:
        """Both traces at once."""
        return self._with((*self.arrivals, *other.arrivals))

    def _with(self, arrivals: Iterable[Arrival]) -> Trace:
        return replace(self, arrivals=tuple(sorted(arrivals, key=lambda item: item.at)))


@functools.cache  # a trace never changes, and every simulation starts from one
def shipped(name: str) -> Trace:
    """A trace that comes with the package, by its file's stem. Origins: lab/data/SOURCES.md."""
    return read(Path(str(files("gateway.lab") / "data" / f"{name}.csv")))


@functools.cache
def shipped_lengths(name: str) -> tuple[tuple[int, int], ...]:
    """(prompt, output) of the requests of a file that has no arrival times."""
    path = Path(str(files("gateway.lab") / "data" / f"{name}.csv"))
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return tuple(
            (max(1, int(row["prompt_tokens"])), max(1, int(row["output_tokens"]))) for row in rows
        )


def read(path: Path) -> Trace:
    """A trace file: CSV with a header or JSONL, with the columns of SOURCES.md.

    Raises ValueError naming the file, the line and what is wrong with it.
    """
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            rows: Iterable[dict[str, object]] = (json.loads(line) for line in file)
        else:
            rows = csv.DictReader(file)
        arrivals = []
        for number, row in enumerate(rows, 1):
            try:
                arrivals.append(_arrival(row))
            except (KeyError, TypeError, ValueError) as problem:
                message = f"{path.name}, record {number}: {type(problem).__name__} {problem}"
                raise ValueError(message) from problem
    if path.stem == "mooncake_conversation":
        arrivals = list(_spread(arrivals))
    return Trace(path.stem, tuple(sorted(arrivals, key=lambda item: item.at)))


def _arrival(row: dict[str, object]) -> Arrival:
    return Arrival(
        at=float(str(row["t_ms"])) / 1000,
        prompt=max(1, int(str(row["prompt_tokens"]))),
        output=max(1, int(str(row["output_tokens"]))),
        client=str(row.get("client") or "anyone"),
        blocks=_blocks(str(row.get("block_ids") or "")),
    )


def _blocks(text: str) -> tuple[int, ...]:
    """Run-length coded ids: `0 46-58` is 0, 46, 47, ... 58."""
    ids: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        ids.extend(range(int(first), int(last or first) + 1))
    return tuple(ids)


def _spread(arrivals: list[Arrival]) -> Iterable[Arrival]:
    """Arrivals of one tick spread evenly at random over it, always the same way."""
    rng = random.Random(0)  # noqa: S311 - a fixed jitter, not a secret
    for item in arrivals:
        yield replace(item, at=item.at + rng.random() * TICK_S)
