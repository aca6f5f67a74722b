"""The log's way to stderr, past the event loop.

Whoever reads stderr may stop: a terminal after Ctrl-S, a pager, a log driver whose disk is full. A
write to it then waits for as long as that lasts, and a gate that waits with it answers nobody. So
a thread writes; what it cannot write any more is dropped, counted, and told when lines flow again.

Nothing here is lost at a normal end: `close` is called by `atexit`. A killed process loses what came
in its last `background.GATHER_S`.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from gateway.observe.background import Background

if TYPE_CHECKING:
    from typing import TextIO

    from gateway.observe.background import Warn

BACKLOG = 10_000
"""Lines that may wait: some 8 MB, and a minute of a gate that ends 150 requests a second."""

BATCH = 512
"""Lines looked at in one go."""

PIPE_BUF = 4096
"""Bytes that Linux writes to a pipe as one piece (pipe(7)): more might be torn apart by the lines of
other workers, who write to the same pipe."""

CLOSE_S = 1.0
"""How long the end of a process waits for a reader that may be stuck."""


class Aside:
    """Takes text as a stream does; a thread writes it to `stream`'s file. See the module."""

    def __init__(self, stream: TextIO, *, warn: Warn) -> None:
        """`warn` may write to this very object. Raises OSError where `stream` has no file."""
        self._stream = stream
        self._fd = stream.fileno()
        self._lines: Background[str] = Background(
            "log", "stderr", self._write, warn=warn, backlog=BACKLOG, batch=BATCH,
            on_close=lambda: None,
        )  # fmt: skip

    @property
    def dropped(self) -> int:
        """Lines that were not written."""
        return self._lines.dropped

    def write(self, text: str) -> int:
        """Let a whole line be written. Never blocks and never raises."""
        self._lines.put(text)
        return len(text)

    def flush(self) -> None:
        """It is on its way."""

    def isatty(self) -> bool:
        """Whether somebody looks at it."""
        return not self._stream.closed and self._stream.isatty()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what waits, for so long at most; what comes later is not written."""
        self._lines.close(timeout_s)

    def _write(self, lines: list[str]) -> None:
        """Whole lines together, as many as are one piece. Past Python's own buffers: their lock would
        be held by a thread that is stuck, and the end of the process waits for it."""
        piece = b""
        for line in lines:
            data = line.encode(errors="backslashreplace")
            if piece and len(piece) + len(data) > PIPE_BUF:
                self._put(piece)
                piece = b""
            piece += data
        self._put(piece)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except (
                BlockingIOError
            ):  # whoever else has this file has said that nobody is to wait for it
                room = select.poll()
                room.register(self._fd, select.POLLOUT)
                room.poll()
