"""What two workers know in common: a client's quota and held tokens, and a request that kills."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from gateway.lease.local import LocalStore
from gateway.lease.words import decode
from gateway.workers.order import table_socket
from tests.fakes.behaviour import Behaviour
from tests.lease.server import RedisServer, needs_server
from tests.workers.gate import TEXT, gate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gateway.core.others import Words
    from tests.workers.gate import Gate

HEARD_S = 3.0
"""Two rounds of a second, and what a busy machine adds."""

OPEN = {"name": "anyone", "quota": {"tokens": 1000, "window_s": 600}}


class Lines:
    """One kept connection to each of two workers."""

    def __init__(self, running: Gate) -> None:
        self._running = running
        self._stack = AsyncExitStack()
        self._of: dict[int, aiohttp.ClientSession] = {}
        self._asked = 0

    async def __aenter__(self) -> Lines:
        while len(self._of) < 2:  # the kernel chooses
            one = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=300)
            )
            await self._stack.enter_async_context(one)
            self._asked += 1
            name = f"probe-{self._asked}"
            head = {"x-request-id": name}
            async with one.post(self._running.url + TEXT, json={"n": 0}, headers=head) as answer:
                assert answer.status == 400
            self._of.setdefault(await self._worker(name), one)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _worker(self, name: str) -> int:
        found: list[int] = []

        def told() -> bool:
            found.extend(x["worker"] for x in self._running.log if name in str(x))
            return bool(found)

        await self._running.until(told)
        return found[0]

    async def ask(self, worker: int, prompt: int, cap: int) -> tuple[int, Any]:
        body = {"prompt": [1] * prompt, "max_tokens": cap}
        async with self._of[worker].post(self._running.url + TEXT, json=body) as answer:
            return answer.status, await answer.json()


async def status_of(running: Gate, worker: int) -> Any:
    return (await running.status())["workers"][worker]["status"]


async def all_hear(running: Gate) -> None:
    async def hear() -> bool:
        return bool((await running.status())["common"]["others"] == 1)

    await running.until(hear)


async def heard_by(running: Gate, who: str, what: Callable[[dict[str, Words]], bool]) -> None:
    """`what` hangs on the board, and `who` has read it: he has written twice since."""
    store, ages = LocalStore(table_socket(running.folder)), list[float]()
    async with asyncio.timeout(10):
        while sum(after < before for before, after in pairwise(ages)) < 2:
            of = (await store.post("reader", b"s", b"{}", 0.001)).of
            if ages or what({one: decode(said, 0.0) for one, said in of.items()}):
                ages.append(of[who].age_s)
            await asyncio.sleep(0.02)
    await store.close()


async def uses_up_a_quota(tmp_path: Path, **policy: Any) -> None:
    async with gate(tmp_path, clients=[OPEN], **policy) as running, Lines(running) as lines:
        await running.until(running.settled)
        await all_hear(running)
        assert (await lines.ask(0, 500, 300))[0] == 200
        assert (await lines.ask(0, 150, 60))[0] == 200  # 650 and what was generated
        assert (await lines.ask(0, 900, 10))[0] == 200
        code, body = await lines.ask(0, 1, 1)
        assert (code, body["error"]["code"]) == (429, "quota_exceeded")
        assert "other processes" not in body["error"]["message"]

        async def heard() -> bool:
            (mine,) = (await status_of(running, 1))["quotas"]
            return bool(mine["elsewhere_tokens"] >= 1000)

        await running.until(heard, HEARD_S)
        code, body = await lines.ask(1, 1, 1)
        assert (code, body["error"]["code"]) == (429, "quota_exceeded")
        assert "of these in other processes of this gate" in body["error"]["message"]
        assert body["error"]["eta_s"] > 500
        (one,) = (await running.status())["quotas"]
        assert (one["quota_tokens"], one["elsewhere_tokens"]) == (1000, 0)
        assert one["used_tokens"] >= 1000


async def test_who_has_used_his_quota_at_one_worker_is_refused_by_the_other(tmp_path) -> None:
    await uses_up_a_quota(tmp_path)


@pytest.mark.slow
@needs_server
async def test_the_same_where_the_policy_names_a_store(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        await uses_up_a_quota(tmp_path, leases={"url": server.url, "ttl_s": 10})


@pytest.mark.slow
async def test_what_a_client_holds_at_one_worker_keeps_it_waiting_at_the_other(tmp_path) -> None:
    clients = [{"name": "anyone", "max_held_tokens": 1000}]
    async with gate(tmp_path, clients=clients) as running, Lines(running) as lines:
        await running.until(running.settled)
        await all_hear(running)
        hold = asyncio.Event()
        running.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
        first = asyncio.ensure_future(lines.ask(0, 400, 200))
        await running.engine.arrived()
        told = (await status_of(running, 0))["clients"]
        assert [one["held_tokens"] for one in told] == [601]
        await heard_by(running, "w1.1", lambda words: "anyone" in words["w0.1"].clients)
        second = asyncio.ensure_future(lines.ask(1, 400, 200))

        async def waits() -> bool:
            return bool((await status_of(running, 1))["queue"]["requests"] == 1)

        await running.until(waits)
        assert len(running.engine.seen) == 1
        hold.set()
        assert [(await one)[0] for one in (first, second)] == [200, 200]


async def test_a_request_that_killed_twice_at_one_worker_is_refused_by_the_other(tmp_path) -> None:
    """And still by whoever is started in place of the one in which it was in flight."""
    async with gate(tmp_path) as running, Lines(running) as lines:
        await running.until(running.settled)
        await all_hear(running)
        running.engine.script = lambda seen: (
            Behaviour(never=True) if sum(seen.job.prompts) == 77 else Behaviour(tokens=2)
        )
        deadly = asyncio.ensure_future(lines.ask(0, 77, 5))
        for death in (1, 2):
            await running.engine.arrived(death)
            await running.engine.die()

            def died(death: int = death) -> bool:
                told = [line for line in running.log if line["event"] == "server_died"]
                return sum(line["worker"] == 0 for line in told) == death

            await running.until(died)
            await running.engine.revive()
        code, body = await deadly
        assert (code, body["error"]["code"]) == (400, "quarantined")
        seen = len(running.engine.seen)

        async def ready() -> bool:
            one = await status_of(running, 1)
            return bool(one["backends"][0]["ready"] and one["common"]["error"] is None)

        await running.until(ready)
        await heard_by(running, "w1.1", lambda words: bool(words["w0.1"].strikes))
        assert (await lines.ask(1, 20, 2))[0] == 200, "others are served"
        code, body = await lines.ask(1, 77, 5)
        assert (code, body["error"]["code"]) == (400, "quarantined")
        assert len(running.engine.seen) == seen + 1
        first, _ = await running.pids()
        os.kill(first, signal.SIGKILL)

        async def anew() -> bool:
            one = (await running.status())["workers"][0]
            return bool(one["starts"] == 2 and one["state"] == "ready")

        await running.until(anew, 30)
        async with Lines(running) as again:
            await all_hear(running)
            code, body = await again.ask(0, 77, 5)
            assert (code, body["error"]["code"]) == (400, "quarantined")
