"""Processes of the bench: started on loopback, measured with all their children, ended for certain."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def tree(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children = (task / "children").read_text()
            for child in children.split():
                found += tree(int(child))
    return found


def cpu_s(pid: int) -> float:
    """User and system time of a process and its children so far."""
    ticks = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICK


def rss(pid: int) -> int:
    """Bytes in memory of a process and its children, shared pages counted with each."""
    pages = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
    return pages * PAGE


class Processes:
    """Those of one run. Leaving the block ends them, with their children, by process group."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the block is left
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, name: str, argv: list[str], cwd: str | None = None) -> int:
        """The pid of a process whose output goes to a file of its own."""
        with (self._logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv, stdout=log, stderr=log, cwd=cwd, start_new_session=True
            )
        self._running.append(process)
        return process.pid

    def end(self, pid: int) -> None:
        """End one of them now."""
        for process in self._running:
            if process.pid == pid:
                os.killpg(pid, signal.SIGKILL)
                process.wait()
                self._running.remove(process)
                return


def answers(url: str, within_s: float, body: bytes | None = None) -> bool:
    """Whether `url` comes to answer 200, asked again and again."""
    until = time.monotonic() + within_s
    headers = {} if body is None else {"content-type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=headers)
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(request, timeout=10).close()
        except OSError:
            time.sleep(0.1)
        else:
            return True
    return False
