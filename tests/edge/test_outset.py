"""How a process begins: with standard files that are closed, signals that come too soon, an address it may not have."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys

import aiohttp
import pytest

from gateway.cli import main
from gateway.cli.outset import NOT_YET
from gateway.process import cannot_listen
from tests.edge.rig import CHAT, chat
from tests.fakes.sglang import FakeSGLang
from tests.ports import free_port


async def ready(control: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(20), aiohttp.ClientSession() as http:
        while process.returncode is None:
            try:
                async with http.get(f"http://127.0.0.1:{control}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.05)
    pytest.fail(f"it ended with {process.returncode}")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_a_gate_with_closed_standard_files_serves_and_ends_well(closed: str) -> None:
    """As daemons are started. A socket had their numbers: it did not start, or ended by an abort."""
    data, control = free_port(), free_port()
    async with FakeSGLang() as engine:
        command = (
            f'exec "{sys.executable}" -m gateway.cli serve --backend {engine.url} '
            f"--listen 127.0.0.1:{data} --control 127.0.0.1:{control} {closed}"
        )
        process = await asyncio.create_subprocess_exec("sh", "-c", command)
        try:
            await ready(control, process)
            async with (
                aiohttp.ClientSession() as http,
                http.post(f"http://127.0.0.1:{data}{CHAT}", json=chat(max_tokens=1)) as answer,
            ):
                assert answer.status == 200
            for name in NOT_YET[1:]:  # a rotation of logs that was written for another server
                process.send_signal(getattr(signal, name))
            await asyncio.sleep(0)
            await ready(control, process)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def test_a_reload_that_is_asked_for_before_the_gate_runs_does_not_end_it(tmp_path, capsys) -> None:
    """Sent right after the start (`systemctl reload`), it did."""
    before = {name: signal.getsignal(getattr(signal, name)) for name in NOT_YET}
    try:
        assert main(["serve", str(tmp_path / "none.yaml")]) == 2
        assert [signal.getsignal(getattr(signal, name)) for name in NOT_YET] == [signal.SIG_IGN] * 3
    finally:
        for name, was in before.items():
            signal.signal(getattr(signal, name), was)
    assert "none.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "end what listens there"),
        (OSError(errno.EACCES, "denied"), "ports from 1024 on"),
        (OSError(errno.EADDRNOTAVAIL, "not here"), "an address that this machine has"),
        (socket.gaierror(socket.EAI_NONAME, "no such name"), "an address that this machine has"),
    ],
)
def test_what_cannot_be_listened_on_is_told_with_what_helps(error: OSError, remedy: str) -> None:
    """Nothing is to be ended where the address is another machine's."""
    told = cannot_listen(error)
    assert told.startswith(f"kvgate: cannot listen: {error.strerror}; ")
    assert remedy in told
