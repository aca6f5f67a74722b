"""The collector: a look every few seconds, into minutes, and into files where a folder is named.

A task of its own, off the way of requests. Whatever goes wrong in it costs looks and one warning per
outage; requests do not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from gateway.observe.background import Background
from gateway.observe.cards import Cards
from gateway.observe.minutes import DAY, Minutes
from gateway.observe.store import Page, Store
from gateway.tasks import spawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from structlog.typing import FilteringBoundLogger

    from gateway.observe.looks import CardLook, Look
    from gateway.observe.record import Record

    TakeLook = Callable[[tuple[CardLook, ...], str | None], Look]

BACKLOG = 720
"""Looks that may wait for the disk: an hour of them at the usual interval, a few kilobytes each."""

BATCH = 60
"""Looks written together after the disk was away: five minutes at the usual interval."""


CLOSE_S = 2.0
"""How long the last looks may take to be written when the gate stops, seconds: milliseconds on a disk
that works, and a hung one must not use up the time of a shutdown."""


class Collector:
    """`start`, then `stop`, each once. `take` makes a look of the cards and of why there are none."""

    def __init__(
        self,
        take: TakeLook,
        *,
        log: FilteringBoundLogger,
        interval_s: float,
        folder: Path | None = None,
        max_bytes: int = 0,
        local: str | None = None,
        cards: Cards | None = None,
    ) -> None:
        """`local` is the server on this machine, where there is only one: the cards are its."""
        self.minutes = Minutes(interval_s, local=local)
        self._take = take
        self._log = log
        self._interval_s = interval_s
        self._folder = folder
        self._max_bytes = max_bytes
        self._cards = cards or Cards(interval_s)
        self._file: Background[Page] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self._verdict: dict[str, Any] | None = None
        self._noted: str | None = None

    def start(self) -> None:
        """Begin to look. No disk is waited for."""
        if self._folder is not None:
            store, loop = Store(self._folder, self._max_bytes), asyncio.get_running_loop()

            def remember() -> None:
                found = store.minutes(DAY)
                with contextlib.suppress(RuntimeError):  # a disk so slow that all is over by now
                    loop.call_soon_threadsafe(self.minutes.recall, found)

            self._file = Background(
                "evidence",
                self._folder,
                store.write,
                warn=self._log.warning,
                backlog=BACKLOG,
                batch=BATCH,
                on_close=store.close,
                on_start=remember,
            )
        self._cards.start()
        self._task = spawn(self._run(), "collector")

    async def stop(self) -> None:
        """Look no more, and write what waits."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._cards.stop()
        if self._file is not None:
            await asyncio.to_thread(self._file.close, CLOSE_S)

    def ended(self, record: Record) -> None:
        """A request ended."""
        self.minutes.ended(record)

    def verdict(self) -> dict[str, Any] | None:
        """The verdict on the last minute; None before enough was seen, or where looking fails."""
        return self._verdict

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:  # the servers are asked for the first time while it waits for its first look
            due = max(due + self._interval_s, loop.time())  # what was missed is not made up for
            await asyncio.sleep(due - loop.time())
            self.look()

    def look(self) -> None:
        """One look. Never raises."""
        try:
            cards = self._cards.looks()
            self._note(self._cards.note)
            look = self._take(cards, self._cards.note)
            minute = self.minutes.add(look)
            self._verdict = self.minutes.verdict()
            if self._file is not None:
                self._file.put(Page(look, self._verdict, minute))
        except Exception as error:  # noqa: BLE001  # evidence that fails must not end the evidence
            if not self._failing:
                self._log.warning("evidence_failed", reason=type(error).__name__)
            self._failing, self._verdict = True, None
            return
        self._failing = False

    def _note(self, note: str | None) -> None:
        """Say once why there are no numbers of cards, and again when that changes."""
        if note is not None and note != self._noted:
            self._log.info("no_gpu_numbers", reason=note)
        self._noted = note
