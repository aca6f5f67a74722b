"""Files that rotate by day and size, whose past is compressed, bounded and nobody else's."""

from __future__ import annotations

import gzip
import os
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from gateway.observe import rotated
from gateway.observe.rotated import Rotated

if TYPE_CHECKING:
    from pathlib import Path


class Calendar:
    """Today, as the test says."""

    def __init__(self, day: date) -> None:
        self.day = day

    def __call__(self) -> date:
        return self.day


@pytest.fixture
def today() -> Calendar:
    return Calendar(datetime.now(UTC).date())  # a file's own day is that of its last write


def file(path: Path, today: Calendar, **options: Any) -> Rotated:
    return Rotated(path, **({"max_bytes": 1000, "keep": 100, "today": today} | options))


def text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_day_begins_a_new_file(tmp_path: Path, today: Calendar) -> None:
    lines, first = file(tmp_path / "r.jsonl", today), today.day.isoformat()
    lines.append(b"a\n")
    lines.append(b"b\n")
    today.day += timedelta(days=1)
    lines.append(b"c\n")
    lines.close()
    assert names(tmp_path) == [f"r-{first}.1.jsonl.gz", "r.jsonl"]
    assert text(tmp_path / "r.jsonl") == "c\n"
    assert text(tmp_path / f"r-{first}.1.jsonl.gz") == "a\nb\n"


def test_what_was_left_of_yesterday_is_put_aside_at_the_first_line(
    tmp_path: Path, today: Calendar
) -> None:
    path = tmp_path / "r"
    path.write_text("old\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))  # 2001-09-09: also older than a week
    lines = file(path, today)
    lines.append(b"new\n")
    lines.close()
    assert (names(tmp_path), text(path)) == (["r"], "new\n")


def test_sizes_within_a_day_are_numbered(tmp_path: Path, today: Calendar) -> None:
    lines = file(tmp_path / "r.csv", today, max_bytes=6)
    for name in "abcde":
        lines.append(f"{name}\n".encode())
        lines.append(f"{name}\n".encode())
    day = today.day.isoformat()
    assert [path.name for path in lines.past()] == [f"r-{day}.{n}.csv.gz" for n in (3, 2, 1)]
    assert [text(path) for path in lines.past()] == ["d\nd\ne\n", "b\nc\nc\n", "a\na\nb\n"]
    assert text(tmp_path / "r.csv") == "e\n"


def test_a_week_is_kept(tmp_path: Path, today: Calendar) -> None:
    lines = file(tmp_path / "r", today)
    for day in range(1, 13):
        today.day = date(2999, 1, day)
        lines.append(b"x\n")
    kept = [path.name for path in lines.past()]
    assert kept == [f"r-2999-01-{day:02}.1.gz" for day in range(11, 4, -1)]


def test_so_many_and_so_much_of_the_past_are_kept(tmp_path: Path, today: Calendar) -> None:
    few = file(tmp_path / "few", today, max_bytes=3, keep=2)
    small = file(tmp_path / "small", today, max_bytes=3, past_bytes=130)
    for name in "abcdef":
        few.append(f"{name}\n".encode())
        small.append(f"{name}\n".encode())
    assert [text(path) for path in few.past()] == ["e\n", "d\n"]
    sizes = [path.stat().st_size for path in small.past()]
    assert len(sizes) >= 2
    assert sum(sizes) <= 130 < sum(sizes) + sizes[-1]


def test_nobody_else_s_file_is_touched(tmp_path: Path, today: Calendar) -> None:
    others = ["r-2001-01-01.1.jsonl.gz.bak", "s-2001-01-01.1.jsonl", "r-old.jsonl", "r.jsonl.1"]
    for name in others:
        (tmp_path / name).write_text("mine")
    lines = file(tmp_path / "r.jsonl", today, max_bytes=1, keep=0)
    lines.append(b"a\n")
    lines.append(b"b\n")
    assert names(tmp_path) == sorted([*others, "r.jsonl"])


def test_each_file_begins_with_the_header_and_an_older_one_is_put_aside(
    tmp_path: Path, today: Calendar
) -> None:
    path = tmp_path / "r.csv"
    path.write_text("at,old\n1,2\n")
    for _ in range(2):  # a second start goes on where the first one was
        lines = file(path, today, header=b"at,new\n", max_bytes=18)
        lines.append(b"1,2\n")
        lines.close()
    assert text(path) == "at,new\n1,2\n1,2\n"
    lines.append(b"3,4\n")
    assert text(path) == "at,new\n3,4\n"
    assert [text(past) for past in lines.past()] == ["at,new\n1,2\n1,2\n", "at,old\n1,2\n"]


def test_a_disk_without_room_to_compress_keeps_the_plain_file_and_tries_again(
    tmp_path: Path, today: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    lines = file(tmp_path / "r", today, max_bytes=1)
    with monkeypatch.context() as patch:
        patch.setattr(rotated, "_compress", full)
        lines.append(b"a\n")
        lines.append(b"b\n")
    assert [path.suffix for path in lines.past()] == [".1"]
    lines.append(b"c\n")
    assert [(path.suffix, text(path)) for path in lines.past()] == [(".gz", "b\n"), (".gz", "a\n")]


def test_a_compression_cut_short_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "r").write_text("a\n")
    monkeypatch.setattr(rotated.shutil, "copyfileobj", fails)
    with pytest.raises(OSError, match="No space"):
        rotated._compress(tmp_path / "r")
    assert (names(tmp_path), text(tmp_path / "r")) == (["r"], "a\n")


def test_files_are_not_for_everybody(tmp_path: Path, today: Calendar) -> None:
    folder = tmp_path / "made"
    lines = file(folder / "r", today, max_bytes=1)
    lines.append(b"a\n")
    lines.append(b"b\n")
    assert {path.stat().st_mode & 0o777 & ~0o640 for path in folder.iterdir()} == {0}
    assert folder.stat().st_mode & 0o777 & ~0o750 == 0


@pytest.mark.parametrize("how", ["renamed", "removed", "replaced"])
def test_a_file_taken_away_by_somebody_else_is_made_anew(
    tmp_path: Path, today: Calendar, how: str
) -> None:
    """As logrotate does it: a descriptor that is kept would fill a file that nobody finds any more."""
    path = tmp_path / "records.jsonl"
    lines = Rotated(path, max_bytes=1000, keep=9, header=b"h\n", today=today)
    lines.append(b"first\n")
    if how == "removed":
        path.unlink()
    else:
        path.rename(tmp_path / "records.jsonl.1")
    if how == "replaced":
        path.touch()
    lines.append(b"second\n")
    lines.close()
    assert path.read_bytes() == b"h\nsecond\n"
    assert how == "removed" or (tmp_path / "records.jsonl.1").read_bytes() == b"h\nfirst\n"


def test_what_is_no_file_is_never_put_aside(tmp_path: Path, today: Calendar) -> None:
    """/dev/null for records: to rename it would take it from the whole machine."""
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    lines = Rotated(device, max_bytes=10, keep=9, header=b"h\n", today=today)
    for _ in range(3):
        lines.append(b"more than fits\n")
        today.day += timedelta(days=1)
    lines.close()
    assert list(tmp_path.iterdir()) == [device]
    assert device.is_symlink()
