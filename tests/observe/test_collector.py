"""The collector: files while it goes well, one warning while it does not, and never more than that."""

from __future__ import annotations

import asyncio
import csv
import errno
import gzip
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gateway.observe import collector as collector_module
from gateway.observe import store as store_module
from gateway.observe.cards import NO_CARD, NO_DRIVER, NO_PACKAGE, SILENT, Cards
from gateway.observe.collector import Collector
from gateway.observe.looks import CardLook, GateLook, Look, ServerLook
from gateway.observe.store import Page, Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


class Log(list[tuple[str, dict[str, object]]]):
    def warning(self, event: str, **facts: object) -> None:
        self.append((event, facts))

    info = warning

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self]


def made(minute: int = 0, cards: tuple[CardLook, ...] = (), note: str | None = None) -> Look:
    servers = (ServerLook("gpu0", "ready"), ServerLook("gpu,1", "down", stream_tok_s=1.23456))
    gate = GateLook("ready", cards=len(cards), cards_note=note)
    return Look(NOON + timedelta(minutes=minute), gate, servers, cards)


def collector(folder: Path | None, log: Log, take: Any = None, **options: Any) -> Collector:
    count = iter(range(10_000))
    return Collector(
        take or (lambda cards, note: made(next(count), cards, note)),
        log=log,  # type: ignore[arg-type]
        interval_s=1000.0,  # looks come from the test
        folder=folder,
        max_bytes=1 << 20,
        cards=options.pop("cards", Cards(1000.0, load=no_package)),
        **options,
    )


def no_package() -> Any:
    raise ImportError


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


async def test_rows_of_one_look_have_one_time(tmp_path: Path) -> None:
    log = Log()
    one = collector(tmp_path, log)
    one.start()
    for _ in range(3):
        one.look()
    await one.stop()
    gate, servers = rows(tmp_path / "gate.csv"), rows(tmp_path / "servers.csv")
    assert [row["at"] for row in gate] == [f"2026-11-30T12:0{n}:00.000Z" for n in range(3)]
    assert [row["at"] for row in servers] == [row["at"] for row in gate for _ in range(2)]
    assert [row["server"] for row in servers[:2]] == ["gpu0", "gpu,1"]
    assert (servers[1]["stream_tok_s"], servers[0]["stream_tok_s"]) == ("1.235", "")
    assert not (tmp_path / "cards.csv").exists()
    assert gate[0]["cards_note"] == NO_PACKAGE
    latest = json.loads((tmp_path / "latest.json").read_bytes())
    assert latest["at"] == "2026-11-30T12:02:00.000Z"
    assert [server["state"] for server in latest["servers"]] == ["ready", "down"]
    minutes = (tmp_path / "minutes.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["at"][14:16] for line in minutes] == ["00", "01"]
    assert log.events == ["no_gpu_numbers"]


async def test_a_second_start_goes_on_and_remembers(tmp_path: Path) -> None:
    for _ in range(2):
        one = collector(tmp_path, Log())
        one.start()
        for _ in range(3):
            one.look()
        await one.stop()
    await asyncio.sleep(0)  # what the thread has read is handed over in the next turn of the loop
    assert len(rows(tmp_path / "gate.csv")) == 6
    assert len(json.loads(one.minutes.history())["minutes"]) == 2 + 3


def test_minutes_of_the_past_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "minutes-2026-11-29.1.jsonl.gz").write_bytes(gzip.compress(b'{"n":1}\n{"n":2}\n'))
    (tmp_path / "minutes-2026-11-28.1.jsonl.gz").write_bytes(b"no gzip at all")
    (tmp_path / "minutes.jsonl").write_bytes(b'{"n":3}\n{"n":4')
    store = Store(tmp_path, 1 << 20)
    assert [json.loads(line)["n"] for line in store.minutes(99)] == [1, 2, 3]
    assert [json.loads(line)["n"] for line in store.minutes(2)] == [2, 3]
    assert Store(tmp_path / "none", 1 << 20).minutes(9) == []


def test_the_folder_stays_below_its_cap(tmp_path: Path) -> None:
    """Ten times the cap is written; numbers that do not compress well."""
    cap = 200_000
    store = Store(tmp_path, cap)
    most = 0
    for number in range(600):
        noise = [ServerLook(os.urandom(6).hex(), "ready") for _ in range(10)]
        look = Look(NOON, GateLook(os.urandom(24).hex()), tuple(noise))
        store.write([Page(look, None, json.dumps({"x": os.urandom(200).hex()}).encode())])
        if number % 10 == 0:
            most = max(most, sum(p.stat().st_size for p in tmp_path.glob("*.[cj]s*")))
    store.close()
    assert cap / 4 < most <= cap
    assert list(tmp_path.glob("servers-*.csv.gz"))


# ---- trouble -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
async def test_a_disk_that_takes_nothing_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fails(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    log = Log()
    one = collector(tmp_path / "new", log)
    one.start()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fails)
        for number in range(4):
            one.look()
            assert one._file is not None
            while one._file.dropped == number:
                await asyncio.sleep(0.001)
    one.look()
    await one.stop()
    told = [event for event in log.events if event != "no_gpu_numbers"]
    assert told[0] == "evidence_not_written"
    assert told.count("evidence_not_written") == 1
    assert len(json.loads(one.minutes.history())["minutes"]) == 5


async def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = Log()
    one = collector(tmp_path / "file" / "folder", log)
    one.start()
    one.look()
    one.look()
    await one.stop()
    assert log.events.count("evidence_not_written") == 1
    assert log[-1][1]["reason"] == "Not a directory"


async def test_a_disk_that_hangs_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hang(*_: object) -> list[bytes]:
        released.wait(30)
        return []

    monkeypatch.setattr(Store, "minutes", hang)
    monkeypatch.setattr(collector_module, "CLOSE_S", 0.01)
    monkeypatch.setattr(collector_module, "BACKLOG", 2)
    one = collector(tmp_path, Log())
    one.start()
    for _ in range(5):
        one.look()
    assert one._file is not None
    assert one._file.dropped == 3
    assert one.verdict() is not None
    await one.stop()
    released.set()
    one._file._thread.join(30)
    assert not one._file._thread.is_alive()


async def test_a_look_that_fails_is_one_warning_and_the_next_goes_on() -> None:
    log, broken = Log(), [True]

    def take(cards: tuple[CardLook, ...], note: str | None) -> Look:
        if broken[0]:
            raise RuntimeError("a bug with a prompt in its words")
        return made()

    one = collector(None, log, take)
    for _ in range(3):
        one.look()
    assert log.events == ["no_gpu_numbers", "evidence_failed"]
    assert log[1][1] == {"reason": "RuntimeError"}
    assert one.verdict() is None
    broken[0] = False
    one.look()
    assert len(json.loads(one.minutes.history())["minutes"]) == 1
    broken[0] = True
    one.look()
    assert log.events.count("evidence_failed") == 2


async def test_it_looks_by_itself() -> None:
    seen = asyncio.Event()

    def take(cards: tuple[CardLook, ...], note: str | None) -> Look:
        seen.set()
        return made()

    one = Collector(
        take,
        log=Log(),  # type: ignore[arg-type]
        interval_s=0.01,
        cards=Cards(1.0, load=no_package),
    )
    one.start()
    async with asyncio.timeout(5):
        await seen.wait()
    await one.stop()
    assert one._task is not None
    assert one._task.cancelled()


async def test_without_a_folder_there_is_no_writer() -> None:
    one = collector(None, Log())
    before = threading.active_count()
    one.start()
    assert threading.active_count() == before
    await one.stop()


def test_latest_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, 1 << 20)
    store.write([Page(made(1), None, None)])
    before = (tmp_path / "latest.json").read_bytes()

    def cut(*_: object, **__: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module.orjson, "dumps", cut)
    with pytest.raises(OSError, match="No space"):
        store.write([Page(made(2), None, None)])
    assert (tmp_path / "latest.json").read_bytes() == before


# ---- cards ---------------------------------------------------------------------------------------


class Nvml:
    """A driver as pynvml shows it: two cards, the second without a power meter."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, cards: int = 2) -> None:
        self.cards = cards
        self.asked = threading.Event()
        self.hang: threading.Event | None = None
        self.driver = True

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise self.NVMLError

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.hang is not None:
            self.hang.wait(30)
        self.asked.set()
        return self.cards

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:  # noqa: N802
        return b"NVIDIA L20" if handle else "NVIDIA L20"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=97, memory=50)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=41, total=46)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        if handle == 1:
            raise self.NVMLError
        return 215_500

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return 61


def until(condition: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if condition():
            return
        threading.Event().wait(0.001)
    pytest.fail("not within 5 s")


def test_cards_are_asked_in_a_thread_of_their_own() -> None:
    cards = Cards(0.01, load=Nvml)
    cards.start()
    until(lambda: bool(cards.looks()))
    cards.stop()
    assert cards.looks() == (
        CardLook(0, "NVIDIA L20", 97.0, 41, 46, 215.5, 61.0),
        CardLook(1, "NVIDIA L20", 97.0, 41, 46, None, 61.0),
    )
    assert cards.note is None


def test_without_cards_it_says_why() -> None:
    absent = Cards(0.01, load=no_package)
    absent.start()
    assert (absent.looks(), absent.note) == ((), NO_PACKAGE)
    nvml = Nvml()
    nvml.driver = False
    cards = Cards(0.01, load=lambda: nvml)
    cards.start()
    until(lambda: cards.note == NO_DRIVER)
    none = Cards(0.01, load=lambda: Nvml(0))
    none.start()
    until(lambda: none.note == NO_CARD)
    none.stop()


def test_an_answer_that_does_not_come_is_no_answer() -> None:
    nvml = Nvml()
    cards = Cards(0.05, load=lambda: nvml)
    cards.start()
    until(lambda: bool(cards.looks()))
    nvml.hang = threading.Event()
    until(lambda: not cards.looks())
    assert cards.note == SILENT
    cards.stop()
    nvml.hang.set()


async def test_why_there_are_none_is_said_once() -> None:
    log = Log()
    one = collector(None, log)
    one.look()
    one.look()
    assert log == [("no_gpu_numbers", {"reason": NO_PACKAGE})]
