"""Records kept: a bounded ring in memory for the page, and JSON lines in a file if one is named.

The file is rotated every day and by size, compressed, and kept for a week; see `rotated`, and
`background` for what a disk that fails costs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import orjson

from gateway.observe.background import Background
from gateway.observe.rotated import Rotated

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.observe.background import Warn
    from gateway.observe.record import Record

BACKLOG = 10_000
"""Records that may wait for the disk: some 25 MB, and more than a minute of a gate that finishes
150 requests a second. What comes on top is dropped and counted."""

BATCH = 512
"""Records written with one system call: half a megabyte, so that a flood costs few calls."""


class RecordWriter:
    """Keeps the last `recent` records and appends each to `path` (None: no file).

    The file is rotated each day and before it would exceed `max_bytes`; `keep` files of the past are
    kept. `write` never blocks and never raises.
    """

    def __init__(
        self, path: Path | None, *, recent: int, max_bytes: int, keep: int, warn: Warn
    ) -> None:
        self._ring: deque[dict[str, Any]] = deque(maxlen=recent)
        self._file: Background[dict[str, Any]] | None = None
        if path is not None:
            lines = Rotated(path, max_bytes=max_bytes, keep=keep)

            def append(batch: list[dict[str, Any]]) -> None:
                lines.append(
                    b"".join(orjson.dumps(v, option=orjson.OPT_APPEND_NEWLINE) for v in batch)
                )

            self._file = Background(
                "records",
                path,
                append,
                warn=warn,
                backlog=BACKLOG,
                batch=BATCH,
                on_close=lines.close,
            )

    @property
    def dropped(self) -> int:
        """Records that did not reach the file."""
        return 0 if self._file is None else self._file.dropped

    def write(self, record: Record) -> None:
        """Keep a finished record."""
        values = record.to_dict()
        self._ring.append(values)
        if self._file is not None:
            self._file.put(values)

    def recent(self) -> list[dict[str, Any]]:
        """The last records, newest first."""
        return list(reversed(self._ring))

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and stop. Blocks up to `timeout_s`; a hung disk is left behind."""
        if self._file is not None:
            self._file.close(timeout_s)
