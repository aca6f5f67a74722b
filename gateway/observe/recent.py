"""What happened just now: first tokens and pace of the last minute, the last refusals, tokens so far.

Made from records as they end, in memory only, a few numbers each. The text fields are words of ours
and names from the policy, like those of the record.
"""

from __future__ import annotations

import math
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.core.model import Code, Outcome
from gateway.observe.record import OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.observe.record import Record

WINDOW_S = 60.0
"""A minute, as people mean it by "just now", and as the history counts."""

MOST = 6_000
"""Ends kept: a minute of a gate that finishes 100 requests a second, half a megabyte. Where more end,
the window is shorter and says so in `seconds`."""

REFUSALS = 20
"""Refusals and failures kept: what fits a page without scrolling for long."""

FOR_LOAD = frozenset(
    {
        Code.QUEUE_FULL,
        Code.DEADLINE_UNREACHABLE,
        Code.QUEUE_TIMEOUT,
        Code.NO_BACKEND,
    }
)
"""Refused because more was asked than there was room for, as in deploy/prometheus/alerts.yml. Who has
no key, passes his own limit or quota, asks for what can never be or comes while the gate shuts down
would be refused by an idle one, too."""

_FIRST_ERROR_STATUS = 400


class _End(NamedTuple):
    at: float
    ttft_ms: float | None
    tpot_ms: float | None
    refused: bool
    for_load: bool


class Recent:
    """See the module. `now` is a monotonic clock, seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._ends: deque[_End] = deque(maxlen=MOST)
        self._refusals: deque[dict[str, Any]] = deque(maxlen=REFUSALS)
        self.prompt_tokens = 0
        """Of requests that have ended and whose prompt was read by a server."""
        self.output_tokens = 0
        """Of requests that have ended."""

    def count(self, record: Record) -> None:
        """Count a finished request."""
        turned_away = _turned_away(record)
        # Only a streamed answer shows its first token; of another one it is the whole answer.
        ttft = record.ttft_ms if record.streamed else None
        refused = record.outcome in {Outcome.REJECTED, Outcome.EVICTED}
        for_load = refused and record.code in FOR_LOAD
        self._ends.append(_End(self._now(), ttft, record.tpot_ms, refused, for_load))
        if record.ttft_ms is not None:
            self.prompt_tokens += record.prompt_tokens or 0
        self.output_tokens += record.output_tokens or 0
        if turned_away:
            self._refusals.append(_refusal(record))

    def refusals(self) -> list[dict[str, Any]]:
        """The last requests that were refused or failed, newest first."""
        return list(reversed(self._refusals))

    def minute(self) -> dict[str, Any]:
        """The `recently` of /status: requests that ended within `seconds`, nearest-rank quantiles.

        Milliseconds. None where nothing was measured.
        """
        now = self._now()
        while self._ends and self._ends[0].at < now - WINDOW_S:
            self._ends.popleft()
        full = len(self._ends) == MOST
        return {
            "seconds": round(now - self._ends[0].at, 1) if full else WINDOW_S,
            "ended": len(self._ends),
            "refused": sum(end.refused for end in self._ends),
            "refused_for_load": sum(end.for_load for end in self._ends),
            "ttft_ms": _quantiles(end.ttft_ms for end in self._ends),
            "tpot_ms": _quantiles(end.tpot_ms for end in self._ends),
        }


def _quantiles(values: Iterable[float | None]) -> dict[str, float | int | None]:
    known = sorted(value for value in values if value is not None)
    return {"p50": _rank(known, 50), "p95": _rank(known, 95), "samples": len(known)}


def _rank(ordered: list[float], percent: int) -> float | None:
    """The least value that so many percent do not exceed."""
    if not ordered:
        return None
    return round(ordered[math.ceil(len(ordered) * percent / 100) - 1], 1)


def _turned_away(record: Record) -> bool:
    refused = record.outcome in {Outcome.REJECTED, Outcome.EVICTED, Outcome.FAILED}
    return refused or (record.upstream_status or 0) >= _FIRST_ERROR_STATUS


def _refusal(record: Record) -> dict[str, Any]:
    code = None if record.code is None else record.code.value
    ended = record.at + timedelta(milliseconds=record.e2e_ms or 0.0)
    return {
        "at": ended.isoformat(timespec="milliseconds"),
        "id": record.id,
        "client": record.client,
        "backend": record.backend,
        "outcome": OTHER if record.outcome is None else record.outcome.value,
        "code": code,
        "reason": None if record.reason == code else record.reason,
        "upstream_status": record.upstream_status,
        "prompt_tokens": record.prompt_tokens,
        "needed": record.needed,
        "available": record.available,
        "queue_ms": None if record.queue_ms is None else round(record.queue_ms, 1),
        "retry_after_s": record.retry_after_s,
    }
