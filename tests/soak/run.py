"""One soak from start to report."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.twin.lengths import talkative
from gateway.twin.profiles import TINY_CPU
from gateway.twin.server import TwinServer
from tests.soak.clients import PATIENCE_S, Client, Tally
from tests.soak.faults import Faults
from tests.soak.report import Report, read_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CLIENTS = 32
"""Enough that the queue is hardly ever empty: each asks again 0.4 s after its last answer."""

SPEED = 10.0
"""Engine seconds in a second. Faster, and the twin itself would be what is measured."""

POOLS = (3000, 2048, 5000, 4096)
"""A server hardly ever comes back with the pool it had."""

SAMPLE_S = 1.0
REST_S = 60.0
"""How long the gate may take to come to rest once nobody asks any more: the graces of requests
that were abandoned in the last moment, prolonged a few times."""


class Inside:
    """The gate's process, seen from within."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def look(self, word: str = "look") -> dict[str, Any]:
        """A snapshot; `gc` collects garbage before it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(word.encode() + b"\n")
        line = await stdout.readline()
        if not line:
            raise RuntimeError("the gate died")
        found: dict[str, Any] = json.loads(line)
        return found


def policy(server: TwinServer, folder: Path) -> Path:
    """The file of the soak: short limits, so that each of them is met many times."""
    document = {
        "listen": "127.0.0.1:0",
        "control": "127.0.0.1:0",
        "drain_s": 1,
        "backends": [{"url": server.url, "name": "twin"}],
        "clients": [
            {"name": f"c{i}", "header": {"name": "x-who", "value": f"c{i}"}, "weight": 1 + i}
            for i in range(4)
        ],
        "queue": {"max_requests": 16, "max_wait_s": 4},
        "limits": {"connect_s": 1, "first_byte_s": 5, "answer_s": 15, "idle_s": 4},
        "observe": {"records": str(folder / "records.jsonl"), "records_max_bytes": 1 << 30},
    }
    path = folder / "policy.yaml"
    path.write_text(json.dumps(document))
    return path


@contextlib.asynccontextmanager
async def gate(file: Path) -> AsyncIterator[tuple[Inside, int]]:
    """The gate in a process of its own, and its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.soak.gate",
        str(file),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            ready = json.loads(await process.stdout.readline())
        yield Inside(process), int(ready["listen"].rpartition(":")[2])
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(15):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def soak(seconds: float, seed: int) -> Report:
    """Run for `seconds`, come to rest, and judge."""
    profile = TINY_CPU.with_(pool=4096, max_queued=2, lengths=talkative(120))
    server = TwinServer(profile, speed=SPEED, seed=seed, restart_s=12.0, pool_after_restart=POOLS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with server:
            async with gate(policy(server, folder)) as (inside, port):
                tally, faults = Tally(), Faults(server, seed)
                samples = await _load(seconds, seed, server, inside, port, tally, faults)
                rest = await _rest(inside, server)
            records = read_records(folder)  # written out now that the gate has stopped
            counters = [*server.process.past, server.engine.counters]
            pools = [profile.pool, *(POOLS[i % len(POOLS)] for i in range(len(counters) - 1))]
            engine = {
                "used": server.engine.used,
                "in_flight": not server.engine.idle,
                "pool": server.engine.memory.pool.capacity,
                "starts": len(counters),
                "retractions": server.retractions,
                "waiting": server.peak_waiting,
                "full": sum(each.refused_queue_full for each in counters),
                "peaks": [(c.peak_used, pool) for c, pool in zip(counters, pools, strict=True)],
            }
    report = Report(seconds, seed, tally, faults.done, samples, rest, records, engine)
    report.judge()
    return report


async def _load(
    seconds: float,
    seed: int,
    server: TwinServer,
    inside: Inside,
    port: int,
    tally: Tally,
    faults: Faults,
) -> list[tuple[float, dict[str, Any]]]:
    loop = asyncio.get_running_loop()
    stop, calm = asyncio.Event(), asyncio.Event()
    clients = [Client(i, port, seed, tally) for i in range(CLIENTS)]
    tasks = [asyncio.ensure_future(client.run(stop)) for client in clients]
    trouble = asyncio.ensure_future(faults.run(calm))
    began, samples = loop.time(), []
    while (at := loop.time() - began) < seconds:
        samples.append((at, await inside.look()))
        await asyncio.sleep(SAMPLE_S)
    calm.set()
    await trouble
    stop.set()
    async with asyncio.timeout(PATIENCE_S + 10):
        await asyncio.gather(*tasks)
    return samples


async def _rest(inside: Inside, server: TwinServer) -> dict[str, Any]:
    """Wait until nothing is left, and return what there is then or at the end of the time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + REST_S
    while True:
        found = await inside.look("gc")
        held = any(any(pool[2:]) for pool in found["pools"])
        busy = found["dying"] or found["holding"] or found["connections"] or not server.engine.idle
        if not (held or busy) or loop.time() > end:
            return found
        await asyncio.sleep(0.5)
