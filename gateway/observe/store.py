"""The collector's folder: CSV a row per look, the minutes, and the state of the moment.

| file | rows | |
|---|---|---|
| `gate.csv` | one a look | the gate |
| `servers.csv` | one a server and look | books and engine |
| `cards.csv` | one a GPU and look | NVML, where it is there |
| `minutes.jsonl` | one a minute | what /history has |
| `latest.json` | | the last look and the verdict, replaced as a whole |

Rows of one look have the same `at`. All of it belongs to the writer's thread.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

import orjson

from gateway.observe.looks import CardLook, GateLook, ServerLook, columns
from gateway.observe.rotated import FILE_MODE, NEW, Rotated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gateway.observe.looks import Look

FILES = 4
"""Files that grow. Each may have an eighth of the size cap, and its past a sixteenth: with the one
that is just being compressed that stays below the cap, and a past that shrinks to an eighth still
holds four times what the file itself does."""

PAST = 64
"""Files of the past a series: seven days, and several a day where the cap is small."""


@dataclass(frozen=True, slots=True)
class Page:
    """One look, what is to be said of it, and the minute that it closed, as JSON."""

    look: Look
    verdict: dict[str, Any] | None
    minute: bytes | None


class Store:
    """See the module. `max_bytes` bounds all of the folder's files together, but for `latest.json`."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        live, past = max_bytes // (2 * FILES), max_bytes // (4 * FILES)

        def series(name: str, header: bytes) -> Rotated:
            return Rotated(folder / name, max_bytes=live, keep=PAST, past_bytes=past, header=header)

        self._gate = series("gate.csv", _line(["at", *columns(GateLook)]))
        self._servers = series("servers.csv", _line(["at", *columns(ServerLook)]))
        self._cards = series("cards.csv", _line(["at", *columns(CardLook)]))
        self._minutes = series("minutes.jsonl", b"")

    def write(self, pages: Sequence[Page]) -> None:
        """Append what was seen. Raises OSError."""
        self._gate.append(b"".join(_rows(page.look, [page.look.gate]) for page in pages))
        for file, rows in (
            (self._servers, b"".join(_rows(page.look, page.look.servers) for page in pages)),
            (self._cards, b"".join(_rows(page.look, page.look.cards) for page in pages)),
            (self._minutes, b"".join(page.minute + b"\n" for page in pages if page.minute)),
        ):
            if rows:
                file.append(rows)
        self._replace_latest(pages[-1])

    def close(self) -> None:
        """Close the files."""
        for file in (self._gate, self._servers, self._cards, self._minutes):
            file.close()

    def minutes(self, most: int) -> list[bytes]:
        """The last minutes on disk, oldest first; what is no JSON is passed over."""
        found: list[bytes] = []
        files = [self._minutes.path, *self._minutes.past()] if self.folder.is_dir() else []
        for path in files:
            if len(found) >= most:
                break
            with contextlib.suppress(OSError, EOFError):
                data = path.read_bytes()
                data = gzip.decompress(data) if path.suffix == ".gz" else data
                found = [line for line in data.splitlines() if _is_json(line)] + found
        return found[-most:]

    def _replace_latest(self, page: Page) -> None:
        """Whoever reads it sees a whole one: written beside, then renamed."""
        look = page.look
        document = {
            "at": _time(look),
            "verdict": page.verdict,
            "gate": asdict(look.gate),
            "servers": [asdict(server) for server in look.servers],
            "cards": [asdict(card) for card in look.cards],
        }
        unfinished = self.folder / "latest.json.part"
        data = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        with os.fdopen(os.open(unfinished, NEW, FILE_MODE), "wb") as file:
            file.write(data)
        unfinished.replace(self.folder / "latest.json")


def _rows(look: Look, things: Sequence[GateLook | ServerLook | CardLook]) -> bytes:
    at = _time(look)
    return b"".join(_line([at, *(_cell(value) for value in astuple(thing))]) for thing in things)


def _cell(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value


def _line(values: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()


def _time(look: Look) -> str:
    return look.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False
