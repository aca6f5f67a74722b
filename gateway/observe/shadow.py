"""What `admission: shadow` would have done with the requests that it let through, added up."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.observe.record import Record

RECENT = 300
"""Waits kept for the percentiles: enough for a 99th, few enough to show the last minutes."""


class Tally:
    """Since the start."""

    def __init__(self) -> None:
        self._verdicts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._waits: deque[float] = deque(maxlen=RECENT)

    def count(self, record: Record) -> None:
        """Count a finished request; one without a shadow counts for nothing."""
        if record.shadow is None:
            return
        self._verdicts[record.shadow] += 1
        if record.shadow_code is not None:
            self._refused[record.shadow_code.value] += 1
        elif record.shadow_wait_ms is not None:
            self._waits.append(record.shadow_wait_ms / 1000)

    def to_dict(self) -> dict[str, Any]:
        """The `shadow` of /status. The waits, seconds, are of the last `RECENT` that would not have
        been refused, 0 where one would have started at once; None before the first."""
        waits = sorted(self._waits)
        return {
            "would_admit": self._verdicts["admit"],
            "would_wait": self._verdicts["wait"],
            "would_refuse": dict(self._refused),
            "undecided": self._verdicts["undecided"],
            "wait_s_p50": _percentile(waits, 50),
            "wait_s_p99": _percentile(waits, 99),
        }


def _percentile(ordered: list[float], percent: int) -> float | None:
    """The nearest rank: the least value that so many percent do not exceed."""
    if not ordered:
        return None
    return round(ordered[math.ceil(len(ordered) * percent / 100) - 1], 3)
