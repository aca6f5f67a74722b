"""Three gates before two modelled servers at three times what these can do, beside one gate before two
more at the same load and time: the same goodput, nothing over-committed, and a store that is gone for
thirty seconds costs nobody an answer. Everything is a process of its own, and the store a real one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.lease.fleet import settle, table_of
from tests.lease.server import RedisServer, program

if TYPE_CHECKING:
    from gateway.core.amount import Amount

REPOSITORY = Path(__file__).resolve().parents[2]
PROMPT, CAP = 50, 70  # 121 of 2,026 tokens: sixteen at a time on each server
CLIENTS = 96  # three times the thirty-two that run
STEADY_S, OUTAGE_S, AFTER_S = 20.0, 30.0, 8.0
BUDGET = 2048 - 1 - 21
WITHIN = 0.25
"""Alone on a quiet machine they come within 0.05 (docs/scale.md). Both run here side by side, on two cores
that also play four engines and 192 clients: more would be a test of the machine."""


class Process:
    """One command, until its ready line and until the end of the test."""

    def __init__(self, log: Path, *command: str) -> None:
        self.log = log
        env = {k: v for k, v in os.environ.items() if not k.startswith("KVGATE_")}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", *command],
                cwd=REPOSITORY,
                env=env,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    async def ready(self) -> list[str]:
        end = time.monotonic() + 60
        while True:
            text = self.log.read_text()
            if found := re.search(r"^kvgate (?:twin )?ready on (.*)$", text, re.MULTILINE):
                return re.findall(r"http://[\d.:]+", found[1])
            assert self.process.poll() is None, text
            assert time.monotonic() < end, text
            await asyncio.sleep(0.1)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Crowd:
    """Clients that ask again as soon as they are answered."""

    def __init__(self, http: aiohttp.ClientSession, urls: list[str]) -> None:
        self.ends: list[tuple[float, str]] = []
        self.bad: list[Any] = []
        each = CLIENTS // len(urls)
        self.tasks = [
            asyncio.ensure_future(self._client(http, url)) for url in urls for _ in range(each)
        ]
        self.urls = urls
        self.over = False

    async def _client(self, http: aiohttp.ClientSession, url: str) -> None:
        headers = {"content-type": "application/json"}
        while not self.over:
            prompt = [random.randrange(1000) for _ in range(PROMPT)]  # nothing to share in a cache
            body = json.dumps({"prompt": prompt, "max_tokens": CAP})
            async with http.post(f"{url}/v1/completions", data=body, headers=headers) as answer:
                text = await answer.read()
            if answer.status == 200 and json.loads(text)["usage"]["completion_tokens"] == CAP:
                self.ends.append((time.monotonic(), url))
            else:
                self.bad.append((answer.status, text[-300:]))

    def by_gate(self, since: float, until: float) -> list[int]:
        count = Counter(url for end, url in self.ends if since <= end < until)
        return [count[url] for url in self.urls]

    async def stop(self) -> None:
        self.over = True
        await asyncio.gather(*self.tasks)


class Watcher:
    """Looks into the engines, and into the table, again and again."""

    def __init__(self, http: aiohttp.ClientSession, twins: list[str], server: RedisServer) -> None:
        self.http, self.twins, self.server = http, twins, server
        self.used: list[int] = []
        self.waited: list[int] = []
        self.shares: list[Amount] = []
        self.budgets: set[Amount] = set()
        self.look_at_table = True
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            for twin in self.twins:
                async with self.http.get(f"{twin}/v1/loads") as answer:
                    for row in (await answer.json())["loads"]:
                        self.used.append(row["num_used_tokens"])
                        self.waited.append(row["num_waiting_reqs"])
            if self.look_at_table:
                for pool in ("gpu0", "gpu1"):
                    table = await table_of(self.server, pool)
                    self.shares.append(table.shares)
                    self.budgets |= {entry.budget for entry in table.entries.values()}
            await asyncio.sleep(0.2)


async def counted(http: aiohttp.ClientSession, twins: list[str], what: str) -> float:
    """A counter of the engines, added up."""
    total = 0.0
    for twin in twins:
        async with http.get(f"{twin}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        found = [line for line in lines if what in line and line[0] != "#"]
        assert found, what
        total += sum(float(line.rpartition(" ")[2]) for line in found)
    return total


async def mark(http: aiohttp.ClientSession, urls: list[str]) -> tuple[float, float, float]:
    """Now, and what both pairs of engines have generated: all of it goes to clients that wait for it."""
    made = [await counted(http, pair, "generation_tokens_total") for pair in (urls[:2], urls[2:])]
    return time.monotonic(), *made


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_three_gates_do_what_one_does_and_outlive_their_store(tmp_path) -> None:
    assert program(), "install redis-server or valkey-server"
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(120)
            )
        )
        server = stack.enter_context(RedisServer(tmp_path))
        await settle(server, "gpu0", "gpu1")

        def begin(name: str, *command: str) -> Process:
            process = Process(tmp_path / f"{name}.log", *command)
            stack.callback(process.stop)
            return process

        twins = [
            begin(f"twin{i}", "twin", "--profile", "tiny-cpu", "--port", "0") for i in range(4)
        ]
        urls = [(await twin.ready())[0] for twin in twins]

        def gate(name: str, servers: list[str], leases: dict[str, Any] | None) -> Process:
            policy = {
                "listen": "127.0.0.1:0",
                "control": "127.0.0.1:0",
                "reservation": "declared",
                "observe": {"log_level": "warning"},
                "backends": [{"name": f"gpu{i}", "url": url} for i, url in enumerate(servers)],
                **({"leases": leases} if leases else {}),
            }
            path = tmp_path / f"{name}.yaml"
            path.write_text(json.dumps(policy))
            return begin(name, "serve", str(path))

        leases = {"url": server.url, "ttl_s": 45}
        one = gate("one", urls[2:], None)
        three = [gate(f"three{i}", urls[:2], leases) for i in range(3)]
        one_url, _ = await one.ready()
        planes = [await process.ready() for process in three]

        shared = Crowd(http, [plane[0] for plane in planes])
        alone = Crowd(http, [one_url])
        watcher = Watcher(http, urls[:2], server)
        await asyncio.sleep(5)  # everybody has found its share
        marks = [await mark(http, urls)]
        await asyncio.sleep(STEADY_S)
        marks.append(await mark(http, urls))
        watcher.look_at_table = False
        await asyncio.sleep(0.5)  # its last look is over
        server.stop()
        await asyncio.sleep(OUTAGE_S)
        marks.append(await mark(http, urls))
        server.start()
        await asyncio.sleep(AFTER_S)
        watcher.look_at_table = True
        await asyncio.sleep(1)
        marks.append(await mark(http, urls))
        rates = {
            phase: tuple(
                round((y - x) / (b[0] - a[0]), 1) for x, y in zip(a[1:], b[1:], strict=True)
            )
            for phase, a, b in zip(("steady", "gone", "back"), marks[:-1], marks[1:], strict=True)
        }
        statuses = []
        for plane in planes:
            async with http.get(f"{plane[1]}/status") as answer:
                statuses.append(await answer.json())
        await asyncio.gather(shared.stop(), alone.stop())
        watcher.task.cancel()
        await asyncio.wait([watcher.task])
        parts = shared.by_gate(marks[0][0], marks[1][0])
        print("tokens/s, three gates and one:", rates)
        print("by gate", parts, "used", max(watcher.used), max(watcher.waited))
        print("shares", max(share.kv for share in watcher.shares), watcher.budgets)

        assert shared.bad == []
        assert alone.bad == []
        # Over-commit: none in the table, none in the engines.
        assert {budget.kv for budget in watcher.budgets} == {BUDGET}
        (budget,) = watcher.budgets
        assert all(budget.covers(share) for share in watcher.shares)
        assert max(watcher.used) <= BUDGET
        assert max(watcher.waited) == 0
        assert await counted(http, urls, "num_retracted_requests_total") == 0
        # Goodput, with the store and while it was gone.
        for phase, (together, single) in rates.items():
            assert together >= (1 - WITHIN) * single, (phase, rates)
        # Nobody was left behind.
        assert min(parts) >= 0.6 * max(parts), parts
        assert all(b["lease"]["error"] is None for s in statuses for b in s["backends"])
