"""Writing that nobody waits for: a bounded queue and one thread.

The event loop only appends to the queue. A disk that is full, slow, read-only or gone costs what
could not be written and one warning per outage, never a request. The thread is not woken for each
item: it gathers for a moment what comes, and then writes all of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

GATHER_S = 0.05
"""From the first item until it is written: nobody reads a file or a log so closely, and a thread that
is woken for each item takes more time, its own and that of the loop it disturbs, than all writing."""


class Warn(Protocol):
    """Where a writer tells of its troubles; called from its thread."""

    def __call__(self, event: str, **facts: object) -> None: ...


class Background(Generic[T]):
    """Calls `write` with what was put, up to `batch` at a time, in a thread of its own.

    `what` names it in the warnings `{what}_not_written` and `{what}_written_again`, `path` where it
    goes.
    """

    def __init__(
        self,
        what: str,
        path: Path | str,
        write: Callable[[list[T]], None],
        *,
        warn: Warn,
        backlog: int,
        batch: int,
        on_close: Callable[[], None],
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_start` and `on_close` are called in the thread as well; their OSErrors are let go."""
        self.dropped = 0
        """What was put and not written."""
        self._told = 0  # of those
        self._what = what
        self._path = path
        self._write = write
        self._warn = warn
        self._batch = batch
        self._on_start = on_start
        self._on_close = on_close
        self._waiting: deque[T] = deque()
        self._backlog = backlog
        self._some = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Let it be written. Never blocks and never raises."""
        if len(self._waiting) >= self._backlog:
            self.dropped += 1
            return
        self._waiting.append(item)
        if not self._some.is_set():
            self._some.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and stop. Blocks up to `timeout_s`; a hung disk is left behind."""
        self._closing.set()
        self._some.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            self._on_start()
        over = False
        while not over:
            self._some.wait()
            self._closing.wait(GATHER_S)
            over = self._closing.is_set()
            self._some.clear()  # before what waits is taken: what comes from here on sets it again
            while batch := self._next_batch():
                self._try(batch)
        with contextlib.suppress(OSError):
            self._on_close()

    def _next_batch(self) -> list[T]:
        """What waits, up to a batch."""
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._batch))]

    def _try(self, batch: list[T]) -> None:
        try:
            self._write(batch)
        except (OSError, orjson.JSONEncodeError) as error:
            self.dropped += len(batch)
            if not self._failing:
                reason = (error.strerror if isinstance(error, OSError) else None) or type(
                    error
                ).__name__
                self._warn(f"{self._what}_not_written", path=str(self._path), reason=reason)
            self._failing = True
            return
        if self._failing or self.dropped > self._told:  # the disk failed, or all room was taken
            self._told = self.dropped
            self._warn(f"{self._what}_written_again", path=str(self._path), dropped=self._told)
        self._failing = False
