"""The state file: what was learned of a pool survives the gate, and never stands in its way."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from gateway.core.model import PoolId
from gateway.edge import memory

if TYPE_CHECKING:
    from pathlib import Path

POOL = PoolId("gpu0")
MINE = {"engine": "0.5.17", "model": "/models/tiny", "pool_tokens": 2048, "ranks": 1}


def document(share: Any = 0.9, rank: str = "0", **other: Any) -> dict[str, Any]:
    entry = {"started_as": MINE | other, "ranks": {rank: {"share": share}}}
    return {"version": 1, "servers": {"gpu0": entry}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def gate(start, path: Path, **engine: Any):
    return start({"state": str(path)}, **engine)


def warned(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs if line["event"].startswith("state_not")]


async def test_a_share_outlives_the_gate(start, path: Path) -> None:
    async with gate(start, path) as rig:
        rig.app.gate.retracted(POOL)
        learned = rig.app.gate.share(POOL)
    assert learned == pytest.approx(0.98)
    assert json.loads(path.read_bytes()) == document(0.98)
    assert path.stat().st_mode & 0o777 & ~0o600 == 0, "it is for the next gate alone"
    async with gate(start, path) as rig:
        assert rig.app.gate.share(POOL) == pytest.approx(learned)
        (view,) = rig.app.gate.view().pools
        assert view.share == pytest.approx(learned)


async def test_it_is_written_while_the_gate_runs_and_only_when_changed(
    start, path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(memory, "EVERY_S", 0.01)
    writes = []
    real = memory.save
    monkeypatch.setattr(memory, "save", lambda *a, **k: (writes.append(a), real(*a, **k)))
    async with gate(start, path) as rig:
        await rig.until(lambda: len(writes) == 1)
        rig.app.gate.retracted(POOL)
        await rig.until(lambda: len(writes) == 2)
    assert json.loads(path.read_bytes()) == document(0.98)
    assert len(writes) == 2
    assert [file.name for file in path.parent.glob("state*")] == ["state.json"]


async def test_its_folder_is_made_as_those_of_records_are(start, tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "state.json"
    with capture_logs() as logs:
        async with gate(start, path):
            pass
    assert (json.loads(path.read_bytes()), warned(logs)) == (document(1.0), [])


@pytest.mark.parametrize(
    "other", [{"pool_tokens": 4096}, {"engine": "0.5.12"}, {"model": "/models/other"}, {"ranks": 2}]
)
async def test_another_server_s_entry_is_ignored(start, path: Path, other: dict[str, Any]) -> None:
    path.write_text(json.dumps(document(0.9, **other)))
    async with gate(start, path) as rig:
        assert rig.app.gate.share(POOL) == 1.0
    assert json.loads(path.read_bytes()) == document(1.0)


@pytest.mark.parametrize("share", [0.1, 1.5, -1, True, "0.9", None, [], 1e400])
async def test_numbers_that_make_no_sense_are_ignored(start, path: Path, share: Any) -> None:
    text = json.dumps(document(share)).replace("Infinity", "1e400")
    path.write_text(text)
    async with gate(start, path) as rig:
        assert rig.app.gate.share(POOL) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2, "servers": {}}',
        '{"version": true, "servers": {}}',
        "backends: []",
        "[" * 10_000,
        " " * (memory.LIMIT + 1),
    ],
)
async def test_a_broken_file_costs_one_warning_and_is_put_aside(
    start, path: Path, text: str
) -> None:
    path.write_text(text)
    with capture_logs() as logs:
        async with gate(start, path) as rig:
            assert rig.app.gate.share(POOL) == 1.0
    assert warned(logs) == ["state_not_read"]
    assert json.loads(path.read_bytes()) == document(1.0)
    assert path.with_name("state.json.old").read_text() == text


@pytest.mark.parametrize("servers", [[], {"gpu0": 3}, {"gpu0": {"started_as": MINE, "ranks": []}}])
async def test_shapes_nobody_wrote_are_ignored(start, path: Path, servers: Any) -> None:
    path.write_text(json.dumps({"version": 1, "servers": servers}))
    async with gate(start, path) as rig:
        assert rig.app.gate.share(POOL) == 1.0


async def test_a_folder_that_takes_no_file_costs_one_warning(
    start, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(memory, "EVERY_S", 0.01)
    tries = []
    real = memory.save
    monkeypatch.setattr(memory, "save", lambda *a, **k: (tries.append(a), real(*a, **k)))
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o500)
    where = folder / "state.json"
    if os.access(folder, os.W_OK):  # root may write everywhere: take a folder that is none
        where = tmp_path / "policy.yaml" / "state.json"
    with capture_logs() as logs:
        async with gate(start, where) as rig:
            await rig.until(lambda: len(tries) >= 3)
            assert (await rig.chat(max_tokens=3)).status == 200
    assert [event for event in warned(logs) if event == "state_not_written"] == [
        "state_not_written"
    ]


async def test_a_server_not_met_keeps_its_entry(start, path: Path) -> None:
    """It may be down for the whole life of this gate."""
    far = {"started_as": MINE, "ranks": {"0": {"share": 0.8}}}
    known = document(0.9)
    known["servers"] |= {"away": far, "no longer named": far}
    path.write_text(json.dumps(known))
    more = {"more": [{"url": "http://127.0.0.1:1", "name": "away"}]}
    async with start({"state": str(path), **more}) as rig:
        rig.app.gate.retracted(POOL)
    written = json.loads(path.read_bytes())["servers"]
    assert written["away"] == far
    assert written["gpu0"]["ranks"]["0"]["share"] == pytest.approx(0.882)
    assert set(written) == {"gpu0", "away"}


async def test_a_gate_that_never_met_a_server_writes_nothing(start, path: Path) -> None:
    path.write_text(json.dumps(document(0.9)))
    before = path.stat().st_mtime_ns
    async with gate(start, path) as rig:
        rig.app.memory._met.clear()
        rig.app.memory._entries = document(0.9)["servers"]
    assert path.stat().st_mtime_ns == before


async def test_without_a_path_nothing_is_written(start, tmp_path: Path) -> None:
    async with start() as rig:
        rig.app.gate.retracted(POOL)
    assert [file.name for file in tmp_path.iterdir()] == ["policy.yaml"]


@pytest.mark.parametrize("put_aside", [False, True])
def test_a_device_a_pipe_or_a_folder_is_left_where_it_is(tmp_path: Path, put_aside: bool) -> None:
    """`state: /dev/null`, as root, made a file of it for the whole machine, and put the device aside."""
    device, pipe, folder = tmp_path / "device", tmp_path / "pipe", tmp_path / "folder"
    device.symlink_to("/dev/null")
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (device, pipe, folder):
        with pytest.raises(OSError, match="no file; name one, or leave `state` out"):
            memory.save(path, {"version": 1, "servers": {}}, put_aside=put_aside)
    assert device.is_symlink()
    assert pipe.is_fifo()
    assert folder.is_dir()
    assert len(list(tmp_path.iterdir())) == 3, "nothing is left beside them"
