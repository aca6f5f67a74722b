"""Disks that hang: no error comes, no file, and no thread back."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from gateway import disk, reload
from gateway.disk import Clerk
from gateway.edge import backend
from gateway.tokens import build, build_counter
from tests.edge.rig import Rig, written
from tests.fakes.sglang import FakeSGLang

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def hung():
    """A disk that comes back when the test is over."""
    back = threading.Event()
    yield back
    back.set()


async def test_what_works_is_done_and_what_fails_raises_its_own() -> None:
    clerk = Clerk("test")
    assert await clerk.do(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await clerk.do(divmod, 7, 0)
    own = TimeoutError(errno.ETIMEDOUT, "of its own")
    with pytest.raises(TimeoutError, match="of its own"):
        await clerk.do(_raise, own)


def _raise(error: Exception) -> None:
    raise error


async def test_what_hangs_is_given_up_and_nothing_is_begun_behind_it(hung) -> None:
    clerk, begun = Clerk("test", 0.05), []
    with pytest.raises(OSError, match=r"no answer within 0\.05 s"):
        await clerk.do(hung.wait)
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(OSError, match="no answer"):
            await clerk.do(begun.append, 1)
    assert (threading.active_count(), begun) == (before, [])
    hung.set()
    await clerk.do(begun.append, 2)
    assert begun == [2]


async def test_one_after_the_other() -> None:
    clerk, inside, most = Clerk("test"), [0], []

    def work() -> None:
        inside[0] += 1
        most.append(inside[0])
        threading.Event().wait(0.01)
        inside[0] -= 1

    await asyncio.gather(*(clerk.do(work) for _ in range(5)))
    assert most == [1] * 5


async def test_a_state_file_that_hangs_keeps_no_gate_from_serving(
    start, tmp_path: Path, monkeypatch
) -> None:
    """It was waited for before any server was looked at."""
    monkeypatch.setattr(disk.Clerk.__init__, "__defaults__", (0.1,))
    os.mkfifo(tmp_path / "state.json")  # as a mount whose server is away: opened, and no end to it
    with capture_logs() as logs:
        async with start({"state": str(tmp_path / "state.json")}) as rig:
            assert (await rig.chat(max_tokens=3)).status == 200
    assert "state_not_read" in [line["event"] for line in logs]


async def test_a_policy_that_cannot_be_read_in_time_is_told_and_read_later(
    rig: Rig, tmp_path: Path, monkeypatch, hung
) -> None:
    """Whoever asked for a reload waited for ever, and so did all after."""
    monkeypatch.setattr(rig.app.reload, "_disk", Clerk("test", 0.1))
    monkeypatch.setattr(reload, "POLL_S", 0.02)
    real = reload._read
    monkeypatch.setattr(reload, "_read", lambda source: (hung.wait(), real(source))[1])
    written(tmp_path, rig.engine.url, {"limits": {"max_n": 1}})
    for _ in range(2):
        async with asyncio.timeout(3):
            got = await rig.control("/reload", "POST")
        assert got.status == 422
        (problem,) = got.json()["problems"]
        assert "no answer within" in problem["wrong"]
    hung.set()
    await rig.until(lambda: rig.app.policy.limits.max_n == 1, 5)
    assert not rig.app.reload.status()["problems"]


async def test_a_gate_ends_though_a_disk_hangs(tmp_path: Path) -> None:
    """Its threads were waited for: after SIGTERM it stayed, until somebody killed it."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("{}\n")
    held = None
    async with FakeSGLang() as engine:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.cli", "serve", str(policy), "--backend", engine.url,
            "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            async with asyncio.timeout(20):
                assert await process.stdout.readline()
            policy.unlink()
            os.mkfifo(policy)
            process.send_signal(signal.SIGHUP)
            # Opened once somebody reads it; and as long as it is open here, the read does not end.
            async with asyncio.timeout(10):
                while held is None:
                    with contextlib.suppress(OSError):
                        held = os.open(policy, os.O_WRONLY | os.O_NONBLOCK)
                    await asyncio.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(8):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            if held is not None:
                os.close(held)


async def test_a_model_s_folder_that_hangs_holds_up_nobody(start, monkeypatch, hung) -> None:
    """It was looked at on the loop: one mount that was away, and the whole gate stood still."""
    monkeypatch.setattr(disk.Clerk.__init__, "__defaults__", (0.1,))
    monkeypatch.setattr(backend, "find_tokenizer", lambda *_: hung.wait())
    async with start({}) as rig:
        assert (await rig.chat(max_tokens=3)).status == 200
        (server,) = rig.app.fleet
        assert server._counted_as is None, "it is looked for again at the next start"


async def test_tokenizer_files_that_hang_are_done_without(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(build, "READ_S", 0.1)
    os.mkfifo(tmp_path / "tokenizer.json")
    counter = await build_counter(tokenizer_dir=tmp_path, engine_version="0.5.17", remote=None)
    assert any("no answer within" in note for note in counter.notes)
