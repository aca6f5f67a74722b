"""One genuine SGLang server on this machine's CPU: start, watch, hurt and stop it.

The server is three processes (HTTP, scheduler, detokenizer) in one session of their own. `stop`
kills the session's process group; should the test run itself be killed, the server notices that
its standard input has ended and kills its group (see `launch`). Nothing here is asynchronous: the
tests' event loop must stay free to measure, so whatever polls runs in a thread of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from tests.ports import free_port
from tests.real import install

# Measured: 17-26 s with the machine to itself; CI shares two cores with other jobs.
READY_TIMEOUT_S = 180.0

# SGLang's scheduler, as setproctitle names it in /proc/*/cmdline.
SCHEDULER_TITLE = "sglang::scheduler"

# Logged once per retraction round by scheduler.py (0.5.12-0.5.23); also for forced test retractions.
RETRACTED = re.compile(r"#retracted_reqs: (\d+)")

MODEL_NAME = "tiny"

# float32, torch attention, no CUDA graph: the only kernels that run on any CPU. The random seed
# fixes weights, so greedy output is the same at every start. The idle scheduler sleeps, and
# publishes its load at every decode step, which makes /v1/loads as fine as a sampler can be.
ARGUMENTS = (
    *("--load-format", "dummy", "--dtype", "float32", "--random-seed", "1", "--device", "cpu"),
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-overlap-schedule", "--disable-cuda-graph"),
    *("--skip-server-warmup", "--sleep-on-idle"),
    *("--enable-metrics", "--tp-size", "1", "--log-level-http", "warning"),
)
if install.SGLANG_VERSION != "0.5.12":  # which asks the scheduler each time
    ARGUMENTS += ("--load-snapshot-publish-interval", "1")


ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiled kernels need a real triton
    "HF_HUB_OFFLINE": "1",  # the model is a folder; nothing may be looked up
    "OMP_NUM_THREADS": "1",  # more threads than cores only add switching at this size
}


class EngineError(Exception):
    """The server did not start or died; the message ends with the tail of its log."""


class Engine:
    """A running SGLang server; a context manager that stops it.

    `url` is its base URL without a trailing slash, `pid` the HTTP process (and group leader),
    `log` the file with all it printed since this object was made, `model_dir` the folder with its
    tokenizer, `pool` its KV pool in tokens.
    """

    model_dir = install.model_dir()

    def __init__(self, arguments: list[str], environment: dict[str, str], port: int) -> None:
        self._arguments = arguments
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.pool = 0
        logs = install.real_dir() / "logs"
        logs.mkdir(exist_ok=True)
        self.log = logs / f"sglang-{os.getpid()}-{port}.log"

    @classmethod
    def start(
        cls,
        extra_args: list[str] | tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        *,
        pool: int = 2048,
        port: int | None = None,
    ) -> Self:
        """Start a server with `pool` KV tokens and return when it answers.

        `extra_args` come after (and so override) `ARGUMENTS`. Without `port` a free one is taken.
        """
        engine = cls(list(extra_args), dict(env or {}), port or free_port())
        engine.log.unlink(missing_ok=True)
        engine._launch(pool)
        return engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EngineError("the server is stopped")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Kill all processes of the server and wait for them; harmless when it is stopped."""
        process, self._process = self._process, None
        if process is None:
            return
        # The group outlives its leader when the leader died first, so it is always signalled.
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def restart(self, pool: int | None = None) -> None:
        """Stop it and start it anew on the same port, with another pool if given."""
        self.stop()
        self._launch(pool or self.pool)

    def kill_scheduler(self) -> None:
        """SIGKILL the scheduler: what an out-of-memory kill does. The port answers a while yet."""
        os.kill(self._scheduler(), signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP the scheduler: HTTP goes on answering, nothing is generated."""
        os.kill(self._scheduler(), signal.SIGSTOP)

    def thaw(self) -> None:
        """End `freeze`."""
        os.kill(self._scheduler(), signal.SIGCONT)

    def loads(self) -> dict[str, Any]:
        """The load of the (only) data-parallel rank, as the scheduler last published it."""
        loads: dict[str, Any] = self.get("/v1/loads")["loads"][0]
        return loads

    def get(self, path: str, timeout_s: float = 10.0) -> dict[str, Any]:
        """GET `path` and parse its JSON; raises OSError or EngineError when there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            body = reply.read()
        finally:
            connection.close()
        if reply.status != http.HTTPStatus.OK:
            msg = f"{path} answered {reply.status}"
            raise EngineError(msg)
        parsed: dict[str, Any] = json.loads(body)
        return parsed

    def retractions(self) -> int:
        """How many requests the scheduler has thrown out of the pool so far, from its log."""
        return sum(int(found) for found in RETRACTED.findall(self.log.read_text(errors="replace")))

    # --- processes ---------------------------------------------------------------------------

    def _launch(self, pool: int) -> None:
        self.pool = pool
        command = [
            # -P keeps this folder's own module names out of the server's import path.
            *(str(install.venv_python()), "-P", str(Path(__file__).with_name("launch.py"))),
            *("--exit-with-stdin", "--model-path", str(self.model_dir)),
            *("--served-model-name", MODEL_NAME, *ARGUMENTS),
            *("--host", "127.0.0.1", "--port", str(self.port), "--max-total-tokens", str(pool)),
            *self._arguments,
        ]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=inherited | ENVIRONMENT | self._environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            # /v1/models, not /health: that one generates a token and takes a second to say so.
            try:
                self.get("/v1/models", timeout_s=5)
            except (OSError, http.client.HTTPException, EngineError):
                pass
            else:
                return
            if not self.alive:
                msg = f"the server died while starting:\n{self._log_tail()}"
                raise EngineError(msg)
            time.sleep(0.2)
        msg = f"not ready after {READY_TIMEOUT_S:.0f} s:\n{self._log_tail()}"
        raise EngineError(msg)

    def _log_tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _scheduler(self) -> int:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                title = (entry / "cmdline").read_bytes()
                group = os.getpgid(int(entry.name))
            except OSError:
                continue  # it ended while we looked
            if group == self.pid and title.startswith(SCHEDULER_TITLE.encode()):
                return int(entry.name)
        msg = f"the server on port {self.port} has no scheduler process"
        raise EngineError(msg)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return  # all of it is gone already
