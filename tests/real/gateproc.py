"""The gate as its users run it: a process, two ports, one line when ready.

Nothing of `gateway` is imported here. What these tests show, they show about the command line, the
data plane and the control plane of the real product.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

REPOSITORY = Path(__file__).resolve().parents[2]

# A stable contract: the one line `kvgate serve` prints when both planes listen.
READY_LINE = re.compile(r"^kvgate ready on (http://\S+), control on (http://\S+)$", re.MULTILINE)

# Importing and reading an 11 MB tokenizer takes a second or two; a loaded CI needs slack.
READY_TIMEOUT_S = 60.0

# From the ready line (both planes listen) until the server behind is known and its tokenizer read.
OPEN_TIMEOUT_S = 30.0

# SIGTERM drains; after this the process is killed and the test that left work behind fails elsewhere.
STOP_TIMEOUT_S = 10.0


class GateError(Exception):
    """The gate did not start; the message ends with what it printed."""


class Gate:
    """A running `kvgate serve`; a context manager that stops it.

    `url` and `control` are the base URLs of its two planes, `log` the file with its output.
    """

    def __init__(self, backend: str, folder: Path, policy: dict[str, Any] | None = None) -> None:
        """Start it before the server at `backend`; `policy` (JSON is YAML) is written to `folder`."""
        command = [sys.executable, "-m", "gateway.cli", "serve"]
        if policy is not None:
            written = folder / "policy.yaml"
            written.write_text(json.dumps(policy))
            command.append(str(written))
        command += ["--backend", backend, "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]
        self.log = folder / "gate.log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVGATE_")}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self.url, self.control = self._wait_ready()
            self._wait_open()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when it does not end; harmless when it has."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def status(self) -> dict[str, Any]:
        """`GET /status` of the control plane."""
        parsed: dict[str, Any] = json.loads(self._ask_control("/status")[1])
        return parsed

    def reserved(self) -> int:
        """KV tokens reserved at this moment, over all backends."""
        return sum(b["ledgers"]["kv"]["reserved"] for b in self.status()["backends"])

    def ledgers(self) -> dict[str, int]:
        """What each kind of ledger of the first backend holds at this moment."""
        ledgers = self.status()["backends"][0]["ledgers"]
        return {kind: ledgers[kind]["reserved"] for kind in ("kv", "prefill", "slots")}

    def records(self) -> list[dict[str, Any]]:
        """One for each request that has ended, from the log."""
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [told for line in lines if (told := json.loads(line)).get("event") == "request"]

    def _ask_control(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(urlsplit(self.control).netloc, timeout=10)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def _wait_open(self) -> None:
        deadline = time.monotonic() + OPEN_TIMEOUT_S
        while self._ask_control("/readyz")[0] != http.HTTPStatus.OK:
            if time.monotonic() > deadline:
                message = f"not ready after {OPEN_TIMEOUT_S:.0f} s: {self.status()['backends']}"
                raise GateError(message)
            time.sleep(0.05)

    def _wait_ready(self) -> tuple[str, str]:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            ended = self._process.poll()
            printed = self.log.read_text(errors="replace")
            if found := READY_LINE.search(printed):
                return found[1], found[2]
            if ended is not None:
                message = f"kvgate serve ended with {ended}:\n{printed[-4000:]}"
                raise GateError(message)
            time.sleep(0.05)
        message = f"no ready line after {READY_TIMEOUT_S:.0f} s; see {self.log}"
        raise GateError(message)
