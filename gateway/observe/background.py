"""Writing that nobody waits for: a bounded queue and one thread.

The event loop only appends to the queue. A disk that is full, slow, read-only or gone costs what
could not be written and one warning per outage, never a request.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


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
        self._what = what
        self._path = path
        self._write = write
        self._warn = warn
        self._batch = batch
        self._on_start = on_start
        self._on_close = on_close
        self._failing = False
        self._waiting: queue.Queue[T | None] = queue.Queue(backlog)
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Let it be written. Never blocks and never raises."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and stop. Blocks up to `timeout_s`; a hung disk is left behind."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            self._on_start()
        more = True
        while more:
            batch, more = self._next_batch()
            if batch:
                self._try(batch)
        with contextlib.suppress(OSError):
            self._on_close()

    def _next_batch(self) -> tuple[list[T], bool]:
        """What waits, up to a batch, and whether more may come."""
        batch = []
        item = self._waiting.get()
        while item is not None:
            batch.append(item)
            if len(batch) == self._batch:
                break
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                break
        return batch, item is not None

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
        if self._failing:
            self._warn(f"{self._what}_written_again", path=str(self._path), dropped=self.dropped)
        self._failing = False
