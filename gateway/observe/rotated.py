"""A file of lines that is rotated every day (UTC) and by size, and whose past is kept compressed.

`records.jsonl` becomes `records-2026-11-29.1.jsonl.gz`: its day, and a number that grows within the
day. What is older than a week goes, and so does the oldest where there are too many or they are too
large. A line is written whole or not at all: after a failed write the file is cut back to where it
was; one that somebody else has put aside, as logrotate does, is made anew. Not thread-safe: it belongs
to one writer's thread.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import stat
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEEP_DAYS = 7
"""A complaint comes days after the slow hour, hardly weeks; incident C kept seven days."""

NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
"""How a file that is written anew is opened."""

FILE_MODE, FOLDER_MODE = 0o640, 0o750
"""Of files and of a folder made for them: who asked how much is the operator's business and that of
the group that reads his logs, not every local user's."""

_CHUNK = 1 << 20
_LEVEL = 6
"""Of gzip, its own default: CSV of numbers shrinks to an eighth; 9 takes twice the time for 2 %."""


def _today() -> date:
    return datetime.now(UTC).date()


class Rotated:
    """See the module. `header` is written at the top of each file; a file with another one (an
    older version's) is put aside first. `keep` is the most files kept of the past, `past_bytes` the
    most they may have together."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        keep: int,
        past_bytes: int | None = None,
        header: bytes = b"",
        today: Callable[[], date] = _today,
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._past_bytes = past_bytes
        self._header = header
        self._today = today
        self._fd: int | None = None
        self._size = 0
        self._own = True  # a file, not a device or a pipe: those are never put aside
        self._day = date.min
        base = re.escape(path.stem), re.escape(path.suffix)
        self._name = re.compile(rf"{base[0]}-(\d{{4}}-\d\d-\d\d)\.(\d{{1,6}}){base[1]}(\.gz)?")

    def append(self, data: bytes) -> None:
        """Append whole lines. Raises OSError; the file then ends where it did before."""
        if self._taken_away():
            self.close()
        self._open()
        if (
            self._own
            and self._size
            and (self._day != self._today() or self._size + len(data) > self._max_bytes)
        ):
            self._rotate()
        fresh = b""
        if not self._size:
            fresh, self._day = self._header, self._today()
        try:
            self._write(fresh + data)
        except OSError:
            self._cut_back()
            raise
        self._size += len(fresh) + len(data)

    def _taken_away(self) -> bool:
        """Whether the path is another file by now, or none: somebody else has put it aside."""
        if self._fd is None:
            return False
        try:
            return not os.path.samestat(os.fstat(self._fd), self.path.stat())
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Close the file; `append` opens it again."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def past(self) -> list[Path]:
        """The files of the past, newest first."""
        return [path for _, _, path in self._found()]

    # ---- inside ----------------------------------------------------------------------------------

    def _found(self) -> list[tuple[str, int, Path]]:
        """Day, number and path of each file of the past, newest first."""
        found = [
            (match[1], int(match[2]), path)
            for path in self.path.parent.iterdir()
            if (match := self._name.fullmatch(path.name)) is not None
        ]
        return sorted(found, reverse=True)

    def _open(self) -> None:
        if self._fd is not None:
            return
        self.path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        self._fd = os.open(
            self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE
        )
        found = os.fstat(self._fd)
        self._size, self._own = found.st_size, stat.S_ISREG(found.st_mode)
        self._day = datetime.fromtimestamp(found.st_mtime, UTC).date()
        if self._size and os.pread(self._fd, len(self._header), 0) != self._header:
            self._rotate()

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
        """Put the file aside and open a new one. Raises OSError."""
        self.close()
        day = self._day.isoformat()
        number = 1 + max((n for of, n, _ in self._found() if of == day), default=0)
        self.path.rename(self.path.with_name(f"{self.path.stem}-{day}.{number}{self.path.suffix}"))
        # A disk without room for the compressed file keeps the plain one: it counts like any other
        # and is tried again at the next rotation; that the disk is full is told by the next write.
        with contextlib.suppress(OSError):
            self._tidy()
        self._open()

    def _tidy(self) -> None:
        """Make room, compress what is not yet, and drop what then is too much."""
        self._drop(".gz")
        try:
            for path in self.past():
                if path.suffix != ".gz":
                    _compress(path)
        finally:
            self._drop("")

    def _drop(self, suffix: str) -> None:
        """Drop files of the past that are too old or too many, and of those that end in `suffix` the
        oldest while they are too large together."""
        oldest = (self._today() - timedelta(days=KEEP_DAYS)).isoformat()
        total = 0
        for index, (day, _, path) in enumerate(self._found()):
            if path.name.endswith(suffix):
                total += path.stat().st_size
            too_large = self._past_bytes is not None and total > self._past_bytes
            if index >= self._keep or too_large or day < oldest:
                path.unlink(missing_ok=True)


def _compress(path: Path) -> None:
    """Replace a file by its compressed self, whole or not at all. Raises OSError."""
    target = path.with_name(f"{path.name}.gz")
    unfinished = path.with_name(f"{path.name}.gz.part")
    try:
        with (
            path.open("rb") as plain,
            os.fdopen(os.open(unfinished, NEW, FILE_MODE), "wb") as raw,
            gzip.GzipFile(path.name, "wb", _LEVEL, raw) as packed,
        ):
            shutil.copyfileobj(plain, packed, _CHUNK)
        unfinished.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    path.unlink()
