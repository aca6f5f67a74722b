"""The records file: whole lines, rotation, and a disk that fails without anybody noticing."""

from __future__ import annotations

import errno
import gzip
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.observe import recorder
from gateway.observe.background import Background
from gateway.observe.recorder import RecordWriter
from gateway.observe.rotated import Rotated

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


def test_the_past_is_kept_compressed_and_only_so_much_of_it(tmp_path: Path) -> None:
    for number in range(4):
        records = writer(tmp_path / "r.jsonl", Warnings(), max_bytes=100, keep=2)
        records.write(finished(id=f"r{number}"))
        records.close()
    assert ids(tmp_path / "r.jsonl") == ["r3"]
    past = sorted(path for path in tmp_path.iterdir() if path.suffix == ".gz")
    assert [json.loads(gzip.decompress(path.read_bytes()))["id"] for path in past] == ["r1", "r2"]


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
    monkeypatch.setattr(recorder, "BATCH", 1)
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
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    warn, lines = Warnings(), Rotated(blocked / "r", max_bytes=1000, keep=1)
    written: Background[bytes] = Background(
        "records", blocked / "r", lambda batch: lines.append(b"".join(batch)),
        warn=warn, backlog=9, batch=1, on_close=lines.close,
    )  # fmt: skip
    written.close()  # the thread is over: what follows is in order
    for _ in range(2):
        written._try([b"x\n"])
    blocked.unlink()
    for _ in range(2):
        written._try([b"y\n"])
    lines.close()
    assert (blocked / "r").read_text() == "y\ny\n"
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

    def hang(self: object, data: bytes) -> None:
        started.set()
        released.wait(30)

    monkeypatch.setattr(Rotated, "append", hang)
    monkeypatch.setattr(recorder, "BACKLOG", 2)
    records = writer(tmp_path / "r", Warnings())
    records.write(finished())
    assert started.wait(30)
    for _ in range(5):
        records.write(finished())  # two wait, three are dropped
    assert records.dropped == 3
    assert records._file is not None
    thread = records._file._thread
    records.close(timeout_s=0.01)
    released.set()
    thread.join(30)
    assert not thread.is_alive()
