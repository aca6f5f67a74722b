"""The records file: whole lines, rotation, and a disk that fails without anybody noticing."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.observe import recorder
from gateway.observe.recorder import RecordWriter

from .made_up import finished


class Warnings(list[tuple[str, dict[str, object]]]):
    def __call__(self, event: str, **facts: object) -> None:
        self.append((event, facts))


def writer(path: Path | None, warn: Warnings, **options: Any) -> RecordWriter:
    return RecordWriter(
        path, **({"recent": 3, "max_bytes": 1 << 20, "keep": 2, "warn": warn} | options)
    )


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_bytes().splitlines()]


def test_each_record_is_one_line_and_the_last_ones_stay_in_memory(tmp_path: Path) -> None:
    warn = Warnings()
    records = writer(tmp_path / "new" / "r.jsonl", warn)
    for i in range(5):
        records.write(finished(id=f"r{i}"))
    records.close()
    assert ids(tmp_path / "new" / "r.jsonl") == ["r0", "r1", "r2", "r3", "r4"]
    assert [values["id"] for values in records.recent()] == ["r4", "r3", "r2"]
    assert (records.dropped, warn) == (0, [])


def test_a_second_start_appends(tmp_path: Path) -> None:
    for name in ("a", "b"):
        records = writer(tmp_path / "r", Warnings())
        records.write(finished(id=name))
        records.close()
    assert ids(tmp_path / "r") == ["a", "b"]


def test_without_a_path_there_is_a_ring_and_no_thread() -> None:
    before = threading.active_count()
    records = writer(None, Warnings())
    records.write(finished())
    assert threading.active_count() == before
    assert len(records.recent()) == 1
    records.close()


def lines_of(path: Path, max_bytes: int, keep: int, names: str) -> None:
    """Write one line a time, as an idle gate does, so that rotation falls between them."""
    lines = recorder._Lines(path, max_bytes, keep)
    for name in names:
        lines.append([b'{"id":"%s"}\n' % name.encode()])
    lines.close()


@pytest.mark.parametrize(
    ("keep", "files"),
    [
        (0, {"r": ["e"]}),
        (1, {"r": ["e"], "r.1": ["c", "d"]}),
        (2, {"r": ["e"], "r.1": ["c", "d"], "r.2": ["a", "b"]}),
    ],
)
def test_files_rotate_by_size_and_only_so_many_are_kept(
    tmp_path: Path, keep: int, files: dict[str, list[str]]
) -> None:
    lines_of(tmp_path / "r", 24, keep, "abcde")
    assert {path.name: ids(path) for path in tmp_path.iterdir()} == files


def test_a_line_larger_than_the_limit_still_gets_its_file(tmp_path: Path) -> None:
    lines_of(tmp_path / "r", 5, 9, "ab")
    assert {path.name: ids(path) for path in tmp_path.iterdir()} == {"r": ["b"], "r.1": ["a"]}


def test_a_full_disk_is_one_warning_and_no_torn_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = os.write, threading.Event()

    def write(fd: int, data: memoryview) -> int:
        if not full.is_set():
            return real(fd, data)
        if len(data) > 10:
            return real(fd, data[:10])  # a short write comes first, then the error
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(recorder, "_BATCH", 1)
    warn = Warnings()
    records = writer(tmp_path / "r", warn)

    def flushed(count: int) -> None:
        for i in range(count):
            records.write(finished(id=f"{full.is_set()}{i}"))
        records.close()

    flushed(1)
    full.set()
    records = writer(tmp_path / "r", warn)
    flushed(3)
    assert records.dropped == 3
    full.clear()
    assert ids(tmp_path / "r") == ["False0"]
    assert [event for event, _ in warn] == ["records_not_written"]
    assert warn[0][1] == {"path": str(tmp_path / "r"), "reason": "No space left on device"}


def test_it_says_when_it_works_again(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    warn = Warnings()
    records = writer(None, warn)
    lines = recorder._Lines(tmp_path / "blocked" / "r", 1000, 1)
    for _ in range(2):
        records._append(lines, [{"id": "x"}])
    (tmp_path / "blocked").unlink()
    for _ in range(2):
        records._append(lines, [{"id": "y"}])
    lines.close()
    assert ids(tmp_path / "blocked" / "r") == ["y", "y"]
    assert [event for event, _ in warn] == ["records_not_written", "records_written_again"]
    assert warn[1][1]["dropped"] == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device() -> None:
    warn = Warnings()
    records = writer(Path("/dev/full"), warn)
    records.write(finished())
    records.close()
    assert records.dropped == 1
    assert [facts["reason"] for _, facts in warn] == ["No space left on device"]


def test_a_hung_disk_costs_records_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, released = threading.Event(), threading.Event()

    def hang(self: object, lines: list[bytes]) -> None:
        started.set()
        released.wait(30)

    monkeypatch.setattr(recorder._Lines, "append", hang)
    monkeypatch.setattr(recorder, "BACKLOG", 2)
    records = writer(tmp_path / "r", Warnings())
    records.write(finished())
    assert started.wait(30)
    for _ in range(5):
        records.write(finished())  # two wait, three are dropped
    assert records.dropped == 3
    thread = records._thread
    records.close(timeout_s=0.01)
    released.set()
    assert thread is not None
    records._waiting.put(None)
    thread.join(30)
    assert not thread.is_alive()
