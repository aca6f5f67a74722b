"""What SGLang's /metrics say that nothing else says: memory taken back, its own ratio, its totals.

A pure parser of the Prometheus text format, for seven of some 150 series. They move at each prefill
and every 40 decode steps, so they are seconds old: news to learn from, nothing to decide by.

Retractions are counted by `sglang:num_retracted_requests_total` from 0.5.12 on; it is not listed
before the first. Until then there is only the gauge `sglang:num_retracted_reqs`, which holds those
since the last report and is set anew at the next: a look every few seconds misses some.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.upstream.facts import Version

COUNTED_SINCE: Version = (0, 5, 12)
"""From here a counter of retractions is kept."""

LONGEST = 4_096
"""Bytes of a line worth reading: real ones have 150, and some labels are the operator's own."""

_TOTAL = "num_retracted_requests_total"
_LAST = "num_retracted_reqs"
_RATIO = "new_token_ratio"
_HITS = "cache_hit_rate"
_COUNTS = {
    "prompt_tokens_total": "prompt_tokens",
    "cached_tokens_total": "cached_tokens",
    "generation_tokens_total": "generated_tokens",
}
_PREFIX = b"sglang:"
_WANTED = tuple(_PREFIX + name.encode() for name in (_TOTAL, _LAST, _RATIO, _HITS, *_COUNTS))

_SAMPLE = re.compile(
    r'sglang:(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)', re.ASCII | re.DOTALL
)
_RANK = re.compile(r'(?:^|,)\s*dp_rank="(\d{1,4})"', re.ASCII)


@dataclass(frozen=True, slots=True)
class RankSignals:
    """What one rank's metrics say."""

    retracted: float
    """Grows when requests were retracted; see the module for how far it can be trusted."""
    ratio: float | None
    """new_token_ratio, in (0, 1]; None: not said."""
    hit_rate: float | None = None
    """Part of the prompt tokens of the last prefill batch that was in the prefix cache."""
    prompt_tokens: int | None = None
    """Since its start, of answered requests, as the next two: of the whole server, under rank 0."""
    cached_tokens: int | None = None
    generated_tokens: int | None = None


def parse_metrics(body: bytes, version: Version | None) -> dict[int, RankSignals]:
    """The signals of each rank that says anything; lines that make no sense are passed over.

    A series without `dp_rank`, which only data-parallel servers write, is rank 0's. Several series
    of one rank (priorities, tensor-parallel ranks that all report) are added up, of ratios the
    largest is taken: it keeps most memory free. A server of unknown version is read as a recent one.
    """
    counted = version is None or version >= COUNTED_SINCE
    retracted: dict[int, float] = {}
    ratios: dict[int, float] = {}
    hits: dict[int, float] = {}
    counts: dict[int, dict[str, int]] = {}
    for line in body.splitlines():
        if len(line) > LONGEST or not line.startswith(_WANTED):
            continue
        match = _SAMPLE.match(line.decode("utf-8", "replace"))
        if match is None:
            continue
        name, labels, text = match.groups()
        value = _number(text)
        if value is None:
            continue
        found = _RANK.search(labels or "")
        rank = int(found[1]) if found else 0
        if name == _RATIO and 0 < value <= 1:
            ratios[rank] = max(ratios.get(rank, 0.0), value)
        if name == _HITS and value <= 1:
            hits[rank] = max(hits.get(rank, 0.0), value)
        if (count := _COUNTS.get(name)) is not None:
            of = counts.setdefault(rank, {})
            of[count] = of.get(count, 0) + int(value)
        if name in {_TOTAL, _LAST}:
            meant = value if (name == _TOTAL) is counted else 0.0
            retracted[rank] = retracted.get(rank, 0.0) + meant
    return {
        rank: RankSignals(
            retracted.get(rank, 0.0), ratios.get(rank), hits.get(rank), **counts.get(rank, {})
        )
        for rank in sorted(retracted.keys() | ratios.keys() | hits.keys() | counts.keys())
    }


def _number(text: str) -> float | None:
    """A finite number that is not negative; None for others."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
