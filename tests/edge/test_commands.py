"""`kvgate` as a process: its one line, its signals, its exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from gateway import cli
from gateway.cli import main
from gateway.version import VERSION
from tests.edge.rig import CHAT, Peer, chat, request
from tests.fakes.behaviour import Behaviour
from tests.fakes.sglang import FakeSGLang
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LINE = r"kvgate ready on http://127\.0\.0\.1:\d+, control on http://127\.0\.0\.1:\d+\n"


class Process:
    """A running `kvgate serve`."""

    def __init__(self, process: asyncio.subprocess.Process, line: str) -> None:
        self.process = process
        self.line = line
        _, _, _, url, _, _, control = line.split()
        self.url, self.control = url.rstrip(","), control

    async def end(self, sign: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit code, the rest of stdout, and stderr."""
        self.process.send_signal(sign)
        async with asyncio.timeout(10):
            out, err = await self.process.communicate()
        return self.process.returncode or 0, out.decode(), (err or b"").decode()


@asynccontextmanager
async def serving(
    url: str, policy: Path | None = None, *, stderr: int = asyncio.subprocess.PIPE
) -> AsyncIterator[Process]:
    options = ["--backend", url, "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", "serve", *([str(policy)] if policy else []), *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env={k: v for k, v in os.environ.items() if not k.startswith("KVGATE_")},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            line = (await process.stdout.readline()).decode()
        yield Process(process, line)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _ready(gate: Process, http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(10):
        while True:
            async with http.get(gate.control + "/readyz") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.02)


async def test_serve_says_one_line_drains_at_sigterm_and_exits_0(tmp_path) -> None:
    import re

    async with FakeSGLang() as engine, serving(engine.url) as gate:
        assert re.fullmatch(LINE, gate.line), gate.line
        async with aiohttp.ClientSession() as http:
            await _ready(gate, http)
            hold = asyncio.Event()
            engine.default = Behaviour(tokens=3, hold=hold, hold_at=1)
            asked = asyncio.ensure_future(http.post(gate.url + CHAT, json=chat(max_tokens=3)))
            await engine.arrived()
            ending = asyncio.ensure_future(gate.end())
            async with asyncio.timeout(5):
                while True:
                    async with http.get(gate.control + "/readyz") as answer:
                        if answer.status == 503:
                            break
            hold.set()
            async with await asked as answer:
                assert answer.status == 200
                await answer.read()
        code, out, err = await ending
        assert (code, out) == (0, "")
        lines = [json.loads(line) for line in err.splitlines()]
        told = [one["event"] for one in lines]
        assert told == ["listening", "no_keys", "server_ready", "request", "drained"]
        assert lines[2]["pool_tokens"] == 2048


async def test_a_log_that_nobody_reads_any_more_stops_nobody(tmp_path) -> None:
    """A terminal after Ctrl-S, a log driver whose disk is full: not one byte more goes into stderr."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    try:
        async with (
            FakeSGLang() as engine,
            serving(engine.url, stderr=write) as gate,
            aiohttp.ClientSession() as http,
        ):
            await _ready(gate, http)
            for _ in range(3):
                async with http.post(gate.url + CHAT, json=chat(max_tokens=3)) as answer:
                    assert answer.status == 200
                    await answer.read()
            code, out, _ = await gate.end()
            assert (code, out) == (0, "")
    finally:
        os.close(read)
        os.close(write)


async def test_a_gate_whose_one_line_nobody_takes_serves_all_the_same(tmp_path) -> None:
    """stdout is full, as after Ctrl-S: it stood still in the moment in which it was ready."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 512):
            pass
    os.set_blocking(writer, True)
    data, control = free_port(), free_port()
    async with FakeSGLang() as engine, aiohttp.ClientSession() as http:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.cli", "serve", "--backend", engine.url,
            "--listen", f"127.0.0.1:{data}", "--control", f"127.0.0.1:{control}",
            stdout=writer,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(20):
                while True:
                    assert process.returncode is None, "it ended"
                    with contextlib.suppress(aiohttp.ClientConnectionError):
                        async with http.get(f"http://127.0.0.1:{control}/readyz") as answer:
                            if answer.status == 200:
                                break
                    await asyncio.sleep(0.05)
                url = f"http://127.0.0.1:{data}{CHAT}"
                async with http.post(url, json=chat(max_tokens=1)) as answer:
                    assert answer.status == 200
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            os.close(reader)
            os.close(writer)


async def test_sighup_reads_the_policy_again_and_a_bad_one_changes_nothing(tmp_path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("drain_s: 1.0\n")
    async with FakeSGLang() as engine, serving(engine.url, policy) as gate:
        async with aiohttp.ClientSession() as http:
            await _ready(gate, http)

            async def told(wanted) -> None:
                async with asyncio.timeout(10):
                    while True:
                        async with http.get(gate.control + "/status") as answer:
                            if wanted((await answer.json())["policy"]):
                                return

            # An option of the command line still wins: the file may not move the socket.
            policy.write_text("limits: {max_n: 1}\nlisten: 127.0.0.1:1\n")
            gate.process.send_signal(signal.SIGHUP)
            await told(lambda state: state["reloads"] == 1 and not state["needs_restart"])
            async with http.post(gate.url + CHAT, json=chat(n=2)) as answer:
                assert answer.status == 400
            policy.write_text("limits: {max_n: none}\n")
            gate.process.send_signal(signal.SIGHUP)
            await told(lambda state: state["problems"] and state["reloads"] == 1)
        code, _, err = await gate.end()
        lines = [json.loads(line) for line in err.splitlines()]
        assert code == 0
        assert [one["cause"] for one in lines if one["event"].startswith("policy")] == [
            "SIGHUP"
        ] * 2


async def test_serve_exits_1_where_requests_were_cut(tmp_path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("drain_s: 0.2\n")
    async with FakeSGLang() as engine, serving(engine.url, policy) as gate:
        engine.default = Behaviour(tokens=3, hold=asyncio.Event(), hold_at=1)
        host, port = gate.url.removeprefix("http://").split(":")
        peer = Peer(*await asyncio.open_connection(host, int(port)))
        await peer.send(request(CHAT, chat(max_tokens=3, stream=True)))
        seen = await engine.arrived()
        code, _, err = await gate.end(signal.SIGINT)
        assert b"[DONE]" not in await peer.rest()
        peer.reset()
        assert code == 1
        assert seen.how == "aborted"
        assert "Traceback" not in err
        assert '"cut":1' in err


async def test_who_interrupts_again_waits_for_nobody(tmp_path) -> None:
    """SIGTERM is sent again by programs that only repeat it: by that nothing is cut."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("drain_s: 300\n")
    async with FakeSGLang() as engine, serving(engine.url, policy) as gate:
        engine.default = Behaviour(tokens=3, hold=asyncio.Event(), hold_at=1)
        host, port = gate.url.removeprefix("http://").split(":")
        peer = Peer(*await asyncio.open_connection(host, int(port)))
        await peer.send(request(CHAT, chat(max_tokens=3, stream=True)))
        seen = await engine.arrived()
        async with aiohttp.ClientSession() as http:
            for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
                gate.process.send_signal(sign)
                async with asyncio.timeout(5):
                    while "draining" not in await _state(gate, http):
                        await asyncio.sleep(0.02)
            assert not seen.ended.is_set()
        code, _, err = await gate.end(signal.SIGINT)
        assert b"draining" in await peer.rest(), "its client is told"
        peer.reset()
        assert (code, seen.how) == (1, "aborted")
        assert "Traceback" not in err


async def _state(gate: Process, http: aiohttp.ClientSession) -> str:
    async with http.get(gate.control + "/readyz") as answer:
        return await answer.text()


def _run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *argv],
        capture_output=True,
        text=True,
        timeout=20,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("KVGATE_")}, **env},
        check=False,
    )


def test_serve_without_a_server_is_a_usage_error() -> None:
    done = _run("serve")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--backend" in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_on_a_taken_port_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = _run(
            "serve", "--backend", "http://127.0.0.1:9", "--listen", address,
            "--control", "127.0.0.1:0",
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot listen" in done.stderr
    assert "--listen" in done.stderr
    assert "Errno" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_interrupt_while_a_command_is_loaded_is_no_traceback(monkeypatch, capsys) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.importlib, "import_module", interrupted)
    assert main(["serve"]) == 130
    assert capsys.readouterr().err == ""


def _main(capsys: Any, *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    got = capsys.readouterr()
    return code, got.out, got.err


def test_the_exit_codes_of_the_small_commands(capsys, tmp_path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("backends: [{name: gpu0, url: 'http://127.0.0.1:30000'}]\n")
    bad.write_text("backends: []\nnonsense: 1\nqueue: {max_requests: -1}\n")
    code, out, _ = _main(capsys, "check", str(good))
    assert (code, "gpu0" in out, "note" in out) == (0, True, False)
    good.write_text(good.read_text() + "control: 0.0.0.0:8081\n")
    code, out, _ = _main(capsys, "check", str(good))
    assert (code, out.count("good.yaml: note: control = '0.0.0.0:8081': ")) == (0, 1)
    code, _, err = _main(capsys, "check", str(good), str(bad))
    assert code == 2
    assert "nonsense" in err
    assert "max_requests" in err, "all mistakes at once"
    assert _main(capsys, "check", str(tmp_path / "none.yaml"))[0] == 2
    code, out, _ = _main(capsys, "schema")
    assert (code, json.loads(out)["type"]) == (0, "object")
    assert _main(capsys, "--version") == (0, f"kvgate {VERSION}\n", "")
    code, out, _ = _main(capsys, "--help")
    assert (code, "serve" in out) == (0, True)
    assert _main(capsys)[0] == 2
    code, out, err = _main(capsys, "nonsense")
    assert (code, out, len(err.splitlines())) == (2, "", 1)


def test_a_policy_may_be_checked_before_it_is_a_file(capsys, tmp_path, monkeypatch) -> None:
    """`kustomize … | kvgate check -`; its paths count from the working directory."""
    monkeypatch.chdir(tmp_path)

    def piped(data: bytes) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        return _main(capsys, "check", "-")

    good = b"backends: [{url: 'http://a:1', name: gpu0, tokenizer: here}]\n"
    code, _, err = piped(good)
    assert (code, "stdin:1: backends[0].tokenizer = " in err) == (2, True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "tokenizer.json").write_text("{}")
    assert piped(good) == (0, "stdin: good, in front of gpu0\n", "")
    code, _, err = piped(b"\xff")
    assert (code, "stdin: cannot be read: not utf-8 text" in err) == (2, True)
    code, _, err = piped(b"")
    assert (code, "is empty: there is no server" in err) == (2, True)
    (tmp_path / "-").write_bytes(good)
    assert _main(capsys, "check", "./-")[0] == 0


@pytest.mark.parametrize(
    "argv",
    [
        ["schema"],
        ["--help"],
        ["check", "--help"],
        ["plan", "--available-gib=23.2", "--weights-gib=17.67", "--cell-bytes=32768"],
        ["plan", "--available-gib=23.2", "--weights-gib=17.67", "--cell-bytes=32768", "--json=-"],
        ["audit", "--command=sglang serve --model-path m"],
        ["twin", "--port=0"],
    ],
    ids=lambda argv: " ".join(argv)[:20],
)
def test_who_reads_no_further_ends_a_command_without_a_word(argv: list[str]) -> None:
    """`kvgate schema | head -1`: a pipe that nobody reads is no error of anybody."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", *argv],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=20,
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},  # as in a shell
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_is_told_in_one_sentence(buffered: bool) -> None:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=20,
            env=env if buffered else env | {"PYTHONUNBUFFERED": "1"},
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "kvgate: cannot write: No space left on device\n",
    )


@pytest.mark.parametrize("command", ["serve", "check", "schema"])
def test_every_command_has_help_and_refuses_unknown_options(capsys, command: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    with pytest.raises(SystemExit) as stopped:
        main([command, "--nonsense"])
    assert stopped.value.code == 2
    capsys.readouterr()
