"""The last quarter of an hour: one row of numbers each five seconds, in memory only."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.core.model import UNBOUNDED

if TYPE_CHECKING:
    from gateway.core.model import RequestId
    from gateway.gate import Gate
    from gateway.observe.recent import Recent

EVERY_S = 5.0
"""As often as the collector looks by default: what matters lasts longer. Not at the collector's own
looks, as `observe.collect_every_s` may be a minute and more, and the page's quarter of an hour stays
one; both read books that are in memory anyway."""

KEPT = 180
"""Rows: a quarter of an hour, in which "it was slow just now" lies; the history keeps days."""

COLUMNS = (
    "at",  # seconds since 1970
    "working",  # requests running
    "waiting",  # requests in the queue
    "kv_reserved",  # tokens, as are the two after it
    "kv_used",
    "kv_limit",  # None while no server takes work
    "read_per_s",  # prompt tokens read per second, those from the prefix cache included
    "written_per_s",  # output tokens per second
    "ttft_p50_ms",  # of requests that ended in the minute before, as the three after it
    "ttft_p95_ms",
    "tpot_p50_ms",
    "tpot_p95_ms",
    "refused",  # refusals in the minute before
)

USUAL = ("working", "waiting", "written_per_s", "ttft_p50_ms", "tpot_p50_ms")
"""Columns whose median is shown beside the present number."""

Row = list[float | int | None]


class _Look(NamedTuple):
    """Tokens at one moment: (prompt, output) of all that ended, and of each that runs."""

    at: float
    ended: tuple[int, int]
    running: dict[RequestId, tuple[int, int]]

    def since(self, before: _Look, which: int) -> float:
        """Tokens per second."""
        nothing = (0, 0)
        grown = sum(
            max(tokens[which] - before.running.get(ident, nothing)[which], 0)
            for ident, tokens in self.running.items()
        )
        seen = sum(
            tokens[which] for ident, tokens in before.running.items() if ident not in self.running
        )
        rest = max(self.ended[which] - before.ended[which] - seen, 0)
        return round((grown + rest) / (self.at - before.at), 1)


class Trend:
    """See the module."""

    def __init__(self, gate: Gate, recent: Recent) -> None:
        self._gate = gate
        self._recent = recent
        self._rows: deque[Row] = deque(maxlen=KEPT)
        self._before: _Look | None = None

    async def run(self) -> None:
        """Take a row each EVERY_S seconds, for ever."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """Take a row now."""
        view = self._gate.view()
        read_per_s, written_per_s = self._speeds()
        minute = self._recent.minute()
        kv = [pool.kv for pool in view.pools if pool.open]
        ttft, tpot = minute["ttft_ms"], minute["tpot_ms"]
        self._rows.append(
            [
                int(datetime.now(UTC).timestamp()),
                sum(client.inflight for client in view.clients),
                view.queue.requests,
                sum(ledger.reserved for ledger in kv),
                sum(ledger.used for ledger in kv),
                sum(ledger.limit for ledger in kv if ledger.limit < UNBOUNDED) or None,
                read_per_s,
                written_per_s,
                ttft["p50"],
                ttft["p95"],
                tpot["p50"],
                tpot["p95"],
                minute["refused"],
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """The document of /trend."""
        return {"every_s": EVERY_S, "columns": COLUMNS, "rows": list(self._rows)}

    def last(self) -> Row | None:
        """The newest row."""
        return self._rows[-1] if self._rows else None

    def speed(self) -> dict[str, float | int | None]:
        """Tokens per second over the last five seconds."""
        row = self.last()
        names = ("read_per_s", "written_per_s")
        return {name: None if row is None else row[COLUMNS.index(name)] for name in names}

    def usual(self) -> dict[str, float | int | None]:
        """The medians of what is kept: what is usual just now. None: not measured."""
        return {name: self._median(COLUMNS.index(name)) for name in USUAL}

    def _median(self, column: int) -> float | int | None:
        known = [value for row in self._rows if (value := row[column]) is not None]
        return round(median(known), 1) if known else None

    def _speeds(self) -> tuple[float | None, float | None]:
        """Prompt tokens read and tokens written per second since the row before.

        What runs is compared one by one; of what has ended since, its whole size less what had been
        seen of it. What a dying server took with it is in neither.
        """
        recent = self._recent
        ended = (recent.prompt_tokens, recent.output_tokens)
        running = {
            ident: (0 if hold.prefilling else hold.prompt, max(hold.seen, hold.generated))
            for pool in self._gate.core.books.pools.values()
            for ident, hold in pool.ledger.holds.items()
        }
        newest = _Look(self._gate.now(), ended, running)
        before, self._before = self._before, newest
        if before is None or newest.at <= before.at:
            return None, None
        read, written = (newest.since(before, which) for which in (0, 1))
        return read, written
