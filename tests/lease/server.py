"""A Redis or Valkey server for a test: its own process, a free port, nothing kept on disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest

from tests.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

STARTS_S = 10.0


def program() -> str | None:
    """What is installed here (Debian: redis-server or valkey-server)."""
    return shutil.which("valkey-server") or shutil.which("redis-server")


needs_server = pytest.mark.skipif(program() is None, reason="no redis-server or valkey-server here")


class RedisServer:
    """A context manager; `stop` and `start` as often as is liked, always empty at first."""

    def __init__(self, folder: Path, password: str | None = None) -> None:
        self._folder = folder
        self._password = password
        self.port = free_port()  # one the kernel gives nobody while this is down
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [program() or "redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        if self._password is not None:
            command += ["--requirepass", self._password]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        end = time.monotonic() + STARTS_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert time.monotonic() < end, "the store did not start"
            assert self._process.poll() is None, "the store ended"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
