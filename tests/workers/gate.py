"""`kvgate serve --workers` as it is run, before a fake engine in the test's own process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from gateway.lease.local import LocalStore
from gateway.lease.wire import decode
from gateway.workers.order import table_socket
from tests.fakes.sglang import FakeSGLang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway.core.lease import Table

POOL = 10_000
LIMIT = POOL - 1 - POOL // 100
STARTS_S = 40.0
TEXT = "/v1/completions"


class Gate:
    """A running one."""

    def __init__(
        self, process: asyncio.subprocess.Process, engine: FakeSGLang, http: aiohttp.ClientSession
    ) -> None:
        self.process = process
        self.engine = engine
        self.http = http
        self.url = self.control = ""
        self.log: list[Any] = []
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            with suppress(json.JSONDecodeError):
                self.log.append(json.loads(line))

    async def started(self) -> None:
        """The one line has come."""
        assert self.process.stdout is not None
        async with asyncio.timeout(STARTS_S):
            line = (await self.process.stdout.readline()).decode()
        assert line, self.log
        _, _, _, url, _, _, control = line.split()
        self.url, self.control = url.rstrip(","), control

    async def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        async with self.http.request(method, self.control + path) as answer:
            return answer.status, await answer.text()

    async def status(self) -> Any:
        return json.loads((await self.get("/status"))[1])

    async def pids(self) -> list[int]:
        return [one["pid"] for one in (await self.status())["workers"]]

    @property
    def folder(self) -> Path:
        """Of its sockets: a worker's log tells where its own is."""
        control = next(line["control"] for line in self.log if "w0" in line.get("control", ""))
        return Path(control.removeprefix("unix:")).parent

    async def table(self) -> Table:
        """As it stands in the supervisor."""
        store = LocalStore(table_socket(self.folder))
        document = (await store.swap("gpu0", "", None, b"")).document
        await store.close()
        assert document is not None
        return decode(document)

    async def ask(self, prompt: int, cap: int, *, stream: bool = True) -> tuple[int, bytes]:
        """One request on a connection of its own, which the kernel gives to either worker."""
        body = {"prompt": [1] * prompt, "max_tokens": cap, "stream": stream}
        async with (
            aiohttp.ClientSession() as own,
            own.post(self.url + TEXT, json=body) as answer,
        ):
            return answer.status, await answer.read()

    def asks(self, count: int, prompt: int, cap: int) -> list[asyncio.Task[tuple[int, bytes]]]:
        return [asyncio.ensure_future(self.ask(prompt, cap)) for _ in range(count)]

    async def until(self, condition: Any, within_s: float = 15.0) -> None:
        """`condition` is a function, or a coroutine's."""
        async with asyncio.timeout(within_s):
            while True:
                found = condition()
                if await found if asyncio.iscoroutine(found) else found:
                    return
                await asyncio.sleep(0.02)

    async def settled(self) -> bool:
        """Whether the workers know what else the engine runs."""
        lease = (await self.status())["backends"][0]["lease"]
        return lease is not None and bool(lease["settled"])

    async def end(self, sign: int = signal.SIGTERM) -> int:
        """Exit code."""
        self.process.send_signal(sign)
        async with asyncio.timeout(20):
            code = await self.process.wait()
            await self._reading
        return code


@asynccontextmanager
async def gate(
    folder: Path,
    workers: int = 2,
    before: Callable[[FakeSGLang, aiohttp.ClientSession], Awaitable[None]] | None = None,
    **policy: Any,
) -> AsyncIterator[Gate]:
    """`before`: what is done with the engine before the gate is started."""
    async with FakeSGLang(pool=POOL, context=POOL) as engine, aiohttp.ClientSession() as http:
        if before is not None:
            await before(engine, http)
        told = {
            "backends": [{"name": "gpu0", "url": engine.url, "prefill_tokens": 9000, "slots": 100}],
            "listen": "127.0.0.1:0",
            "control": "127.0.0.1:0",
            "workers": workers,
            "reservation": "declared",
            **policy,
        }
        path = folder / "policy.yaml"
        path.write_text(json.dumps(told))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.cli", "serve", str(path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if not k.startswith("KVGATE_")},
        )
        running = Gate(process, engine, http)
        try:
            await running.started()
            yield running
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(15):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()
            await running._reading


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
