"""Several gates in one process before one fake engine, with a real store between them."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

from gateway.app import App
from gateway.core.amount import NOTHING
from gateway.core.lease import Table
from gateway.lease.redis import RedisStore
from gateway.lease.wire import decode, encode
from tests.edge.rig import READY_S, written
from tests.fakes.sglang import FakeSGLang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.lease.server import RedisServer

POOL = 10_000
LIMIT = POOL - 1 - POOL // 100
TTL_S = 10.0


async def settle(server: RedisServer, *pools: str) -> None:
    """Put an empty table there that was written in this life of the store: as if gates had come and
    gone, so that nobody has to wait as one does before a store that is new."""
    store = RedisStore(server.url)
    for pool in pools:
        answer = await store.swap(pool, "", None, b"")
        table = encode(Table(answer.run, "before", 0, NOTHING))
        while not answer.taken:  # a gate that runs already may have written there first
            answer = await store.swap(pool, answer.run, answer.document, table)
    await store.close()


async def table_of(server: RedisServer, pool: str) -> Table:
    """As it stands there."""
    store = RedisStore(server.url)
    document = (await store.swap(pool, "", None, b"")).document
    await store.close()
    assert document is not None
    return decode(document)


class Gates:
    def __init__(self, apps: list[App], engine: FakeSGLang, http: aiohttp.ClientSession) -> None:
        self.apps = apps
        self.engine = engine
        self.http = http

    async def ask(self, app: App, prompt: int, cap: int) -> int:
        body = json.dumps({"prompt": [1] * prompt, "max_tokens": cap, "stream": True})
        url = f"{app.listen_url}/v1/completions"
        headers = {"content-type": "application/json"}
        async with self.http.post(url, data=body, headers=headers) as answer:
            await answer.read()
            return answer.status

    def asks(self, app: App, count: int, prompt: int, cap: int) -> list[asyncio.Task[int]]:
        return [asyncio.ensure_future(self.ask(app, prompt, cap)) for _ in range(count)]

    async def status(self, app: App) -> Any:
        async with self.http.get(f"{app.control_url}/status") as answer:
            return (await answer.json())["backends"][0]

    def held(self) -> list[int]:
        return [sum(p.kv.reserved for p in app.gate.view().pools) for app in self.apps]

    async def until(self, condition: Any, within_s: float = 15.0) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        while not condition():
            assert sum(self.held()) <= LIMIT, self.held()
            assert loop.time() < end, f"not in {within_s} s: {self.held()}"
            await asyncio.sleep(0.005)


@asynccontextmanager
async def gates(
    tmp_path: Path, server: RedisServer, count: int = 2, **policy: Any
) -> AsyncIterator[Gates]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeSGLang(pool=POOL, context=POOL))
        apps = []
        for index in range(count):
            folder = tmp_path / f"gate{index}"
            folder.mkdir(parents=True)
            of = {"prefill_tokens": 9000, "slots": 100, **policy.pop("backend", {})}
            extra = {"leases": {"url": server.url, "ttl_s": TTL_S}, "backend": of, **policy}
            source = written(folder, engine.url, extra)
            app = App(source.load(), source)
            apps.append(app)
            stack.push_async_callback(app.stop)
            await app.start()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        both = Gates(apps, engine, http)
        await both.until(lambda: all(app.fleet.any_ready for app in apps), READY_S)
        yield both
