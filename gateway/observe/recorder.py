"""Records kept: a bounded ring in memory for the page, and JSON lines in a file if one is named.

Theory of operation: the event loop only appends to a bounded queue; one thread encodes and writes.
A disk that is full, slow, read-only or gone costs records and one warning per outage, never a
request. A line is written whole or not at all: after a failed write the file is cut back to where
it was.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import orjson

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.observe.record import Record

BACKLOG = 10_000
"""Records that may wait for the disk: some 25 MB, and more than a minute of a gate that finishes
150 requests a second. What comes on top is dropped and counted."""

_BATCH = 512
"""Records written with one system call: half a megabyte, so that a flood costs few calls."""


class Warn(Protocol):
    """Where the writer tells of its troubles; called from its thread."""

    def __call__(self, event: str, **facts: object) -> None: ...


class RecordWriter:
    """Keeps the last `recent` records and appends each to `path` (None: no file).

    The file is rotated before it would exceed `max_bytes`: `path` becomes `path.1`, and so on up to
    `path.<keep>`. `write` never blocks and never raises.
    """

    def __init__(
        self, path: Path | None, *, recent: int, max_bytes: int, keep: int, warn: Warn
    ) -> None:
        self.dropped = 0
        """Records that did not reach the file."""
        self._ring: deque[dict[str, Any]] = deque(maxlen=recent)
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(BACKLOG)
        self._warn = warn
        self._failing = False
        self._thread: threading.Thread | None = None
        if path is not None:
            lines = _Lines(path, max_bytes, keep)
            self._thread = threading.Thread(
                target=self._run, args=(lines,), name="records", daemon=True
            )
            self._thread.start()

    def write(self, record: Record) -> None:
        """Keep a finished record."""
        values = record.to_dict()
        self._ring.append(values)
        if self._thread is None:
            return
        try:
            self._waiting.put_nowait(values)
        except queue.Full:
            self.dropped += 1

    def recent(self) -> list[dict[str, Any]]:
        """The last records, newest first."""
        return list(reversed(self._ring))

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and stop. Blocks up to `timeout_s`; a hung disk is left behind."""
        if self._thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)
        self._thread = None

    def _run(self, lines: _Lines) -> None:
        more = True
        while more:
            batch, more = self._next_batch()
            if batch:
                self._append(lines, batch)
        lines.close()

    def _next_batch(self) -> tuple[list[dict[str, Any]], bool]:
        """What waits, up to a batch, and whether more may come."""
        batch = []
        item = self._waiting.get()
        while item is not None:
            batch.append(item)
            if len(batch) == _BATCH:
                break
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                break
        return batch, item is not None

    def _append(self, lines: _Lines, batch: list[dict[str, Any]]) -> None:
        try:
            lines.append(
                [orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE) for values in batch]
            )
        except (OSError, orjson.JSONEncodeError) as error:
            self.dropped += len(batch)
            if not self._failing:
                self._warn("records_not_written", path=str(lines.path), reason=_words(error))
            self._failing = True
            return
        if self._failing:
            self._warn("records_written_again", path=str(lines.path), dropped=self.dropped)
        self._failing = False


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


class _Lines:
    """A file of lines that rotates by size. Not thread-safe: it belongs to the writer's thread."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd: int | None = None
        self._size = 0

    def append(self, lines: list[bytes]) -> None:
        """Append whole lines. Raises OSError; the file then ends where it did before."""
        data = b"".join(lines)
        self._open()
        if self._size and self._size + len(data) > self._max_bytes:
            self.close()
            self._rotate()
            self._open()
        try:
            self._write(data)
        except OSError:
            self._cut_back()
            raise
        self._size += len(data)

    def close(self) -> None:
        """Close the file; `append` opens it again."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def _open(self) -> None:
        if self._fd is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # 0o640: who asked how much is the operator's business, not every local user's.
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._fd).st_size

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._fd is not None:
            view = view[os.write(self._fd, view) :]

    def _cut_back(self) -> None:
        with contextlib.suppress(OSError):
            if self._fd is not None:
                os.ftruncate(self._fd, self._size)
        with contextlib.suppress(OSError):
            self.close()  # next time the path is opened anew: it may be another disk by then

    def _rotate(self) -> None:
        if self._keep == 0:
            self.path.unlink(missing_ok=True)
            return
        for i in range(self._keep, 0, -1):
            older = self._numbered(i - 1)
            if older.exists():
                older.replace(self._numbered(i))

    def _numbered(self, i: int) -> Path:
        return self.path if i == 0 else self.path.with_name(f"{self.path.name}.{i}")
