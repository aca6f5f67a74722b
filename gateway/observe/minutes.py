"""Minutes: what the looks of each minute and the requests that ended in it add up to.

Kept for a day in memory as the JSON that /history answers with, some two kilobytes each; the shape
is in docs/evidence.md. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import orjson

from gateway.observe import words
from gateway.observe.verdict import A_WHILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from gateway.observe.looks import CardLook, Look, ServerLook
    from gateway.observe.record import Record
    from gateway.observe.verdict import Verdict

DAY = 1440
"""Minutes kept in memory: a day, so that yesterday's same hour is there to compare with."""

ROLLING_S = 60.0
"""What the verdict of now looks back on."""

USUAL_RANK = 0.9
"""Of the minutes' speeds per request, which one is usual: nine of ten were no better. The best alone
would be a minute of one short prompt; the median of a busy day is the crawl itself."""

ENDS = 20_000
"""Requests of one minute whose times are kept: 300 a second. Beyond that the first ones stand for all."""

_ENDINGS = {
    "completed": "completed",
    "rejected": "rejected",
    "evicted": "rejected",
    "cancelled": "cancelled",
    "failed": "failed",
}


@dataclass(slots=True)
class _Ends:
    """Requests that ended in a minute."""

    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("completed", "rejected", "cancelled", "failed"), 0)
    )
    times: list[tuple[str | None, float | None, float | None]] = field(default_factory=list)
    """Server, TTFT and TPOT in milliseconds."""


class Minutes:
    """See the module. `local` names the server that the cards belong to, where it is only one."""

    def __init__(self, interval_s: float, *, local: str | None = None) -> None:
        self.interval_s = interval_s
        self._local = local
        self._past: deque[bytes] = deque(maxlen=DAY)
        self._looks: list[Look] = []  # of the minute under way
        self._before: Look | None = None  # the last one of the minute before
        self._rolling: deque[Look] = deque(maxlen=max(1, round(ROLLING_S / interval_s)))
        self._ends = _Ends()
        self._speeds: dict[str, deque[float]] = {}

    # ---- what comes in ---------------------------------------------------------------------------

    def ended(self, record: Record) -> None:
        """A request ended."""
        ends = self._ends
        word = _ENDINGS.get("" if record.outcome is None else record.outcome.value)
        if word is not None:
            ends.counts[word] += 1
        if len(ends.times) < ENDS and (record.ttft_ms is not None or record.tpot_ms is not None):
            ends.times.append((record.backend, record.ttft_ms, record.tpot_ms))

    def add(self, look: Look) -> bytes | None:
        """Take one look. Returns the minute before, as JSON, where this is the first of a new one."""
        closed = None
        if self._looks and _minute(self._looks[0].at) != _minute(look.at):
            closed = orjson.dumps(self._document())
            self._past.append(closed)
            self._remember()
            self._before = self._looks[-1]
            self._looks, self._ends = [], _Ends()
        self._looks.append(look)
        self._rolling.append(look)
        return closed

    def recall(self, minutes: Iterable[bytes]) -> None:
        """Minutes of an earlier gate, oldest first: they go before those of this one."""
        self._past = deque([*minutes, *self._past], maxlen=DAY)

    # ---- what is said ----------------------------------------------------------------------------

    def history(self, most: int = DAY) -> bytes:
        """The document of /history, the last `most` minutes."""
        minutes = list(self._past)
        if self._looks:
            minutes.append(orjson.dumps(self._document()))
        kept = minutes[-most:] if most > 0 else []
        return b'{"interval_s":%b,"minutes":[%b]}' % (
            orjson.dumps(self.interval_s),
            b",".join(kept),
        )

    def verdict(self) -> dict[str, Any] | None:
        """The verdict on the last sixty seconds; None before a third of them has been seen."""
        looks = list(self._rolling)
        if len(looks) < A_WHILE * (self._rolling.maxlen or 1):
            return None
        return _verdict(words.worst(list(self._judged(looks).values())))

    # ---- inside ----------------------------------------------------------------------------------

    def _judged(self, looks: Sequence[Look], before: Look | None = None) -> dict[str, Verdict]:
        """A verdict for each server that is there at the last look."""
        return {
            name: words.verdict(
                _of(name, looks),
                before=None if before is None else next(iter(_of(name, [before])), None),
                cards=[card for look in looks for card in look.cards]
                if name == self._local
                else (),
                usual=self._usual(name),
            )
            for name in (server.server for server in looks[-1].servers)
        }

    def _usual(self, server: str) -> float | None:
        speeds = sorted(self._speeds.get(server, ()))
        return _rank(speeds, USUAL_RANK)

    def _remember(self) -> None:
        for name, speed in self._speeds_now().items():
            self._speeds.setdefault(name, deque(maxlen=DAY)).append(speed)

    def _speeds_now(self) -> dict[str, float]:
        """Speed of one request in this minute, where it was seen, by server."""
        found: dict[str, list[float]] = {}
        for look in self._looks:
            for server in look.servers:
                if server.stream_tok_s is not None:
                    found.setdefault(server.server, []).append(server.stream_tok_s)
        return {name: median(speeds) for name, speeds in found.items()}

    def _document(self) -> dict[str, Any]:
        looks, ends = self._looks, self._ends
        judged = self._judged(looks, self._before)
        admitted = 0 if self._before is None else self._before.gate.admitted
        gates = [look.gate for look in looks]
        return {
            "at": _minute(looks[0].at),
            "samples": len(looks),
            "verdict": _verdict(words.worst(list(judged.values()))),
            "queue": {
                "requests": _mean(gate.queue_requests for gate in gates),
                "requests_max": max(gate.queue_requests for gate in gates),
                "tokens": _whole(gate.queue_tokens for gate in gates),
                "oldest_s": round(max(gate.queue_oldest_s for gate in gates), 1),
            },
            "requests": {
                "admitted": gates[-1].admitted - admitted,
                **ends.counts,
            },
            **_times(ends, lambda _: True),
            "servers": [self._server(name, judged[name]) for name in judged],
            "gpus": _cards([card for look in looks for card in look.cards]),
        }

    def _server(self, name: str, verdict: Verdict) -> dict[str, Any]:
        looks = _of(name, self._looks)
        return {
            "name": name,
            "state": looks[-1].state,
            "verdict": verdict.kind.value,
            "kv": {
                "reserved": _whole(look.kv_reserved for look in looks),
                "used": _whole(look.kv_used for look in looks),
                "limit": looks[-1].kv_limit,
            },
            "running": _mean(look.running for look in looks),
            "waiting": _mean(look.engine_waiting for look in looks),
            "prefilling_tokens": _whole(look.prefill_tokens for look in looks),
            "generation_tok_s": round(
                sum(look.generated_tokens for look in looks) / (len(looks) * self.interval_s), 1
            ),
            "stream_tok_s": _middle(look.stream_tok_s for look in looks),
            **_times(self._ends, lambda server: server == name),
        }


def _of(server: str, looks: Sequence[Look]) -> list[ServerLook]:
    return [one for look in looks for one in look.servers if one.server == server]


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "class": verdict.kind.value,
        "also": [kind.value for kind in verdict.also],
        "server": verdict.server,
        "sentence": {"en": verdict.sentence.en, "zh": verdict.sentence.zh},
        "change": {"en": verdict.change.en, "zh": verdict.change.zh},
    }


def _times(ends: _Ends, of: Callable[[str | None], bool]) -> dict[str, Any]:
    chosen = [(ttft, tpot) for server, ttft, tpot in ends.times if of(server)]
    return {
        "ttft_ms": _percentiles(ttft for ttft, _ in chosen),
        "tpot_ms": _percentiles(tpot for _, tpot in chosen),
    }


def _percentiles(values: Iterable[float | None]) -> dict[str, float] | None:
    known = sorted(value for value in values if value is not None)
    middle, high = _rank(known, 0.5), _rank(known, 0.95)
    if middle is None or high is None:
        return None
    return {"p50": round(middle, 1), "p95": round(high, 1)}


def _rank(ordered: Sequence[float], part: float) -> float | None:
    """The nearest-rank percentile: a value that was really measured."""
    return ordered[max(0, ceil(part * len(ordered)) - 1)] if ordered else None


def _cards(cards: Sequence[CardLook]) -> list[dict[str, Any]]:
    by_card: dict[int, list[CardLook]] = {}
    for card in cards:
        by_card.setdefault(card.card, []).append(card)
    return [
        {
            "index": index,
            "name": seen[-1].name,
            "utilisation": _mean(card.utilisation for card in seen),
            "memory_used": seen[-1].memory_used,
            "memory_total": seen[-1].memory_total,
        }
        for index, seen in sorted(by_card.items())
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 2) if known else None


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 1) if known else None


def _whole(values: Iterable[int]) -> int:
    return round(fmean(values))


def _minute(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:00Z")
