"""Discovery and watch against the fake engine: real sockets, real resets, short paces."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from gateway.upstream.abort import AbortResult, abort
from gateway.upstream.client import Client
from gateway.upstream.discover import DiscoveryError, discover
from gateway.upstream.watch import Life, Pace, Watch
from tests.fakes.behaviour import Behaviour
from tests.fakes.sglang import FakeSGLang

QUICK = Pace(
    loads_s=0.02,
    probe_s=0.05,
    retry_s=0.02,
    ask_s=0.1,
    discover_s=0.3,
    backoff_s=(0.01, 0.05),
    silent_for_s=0.3,
)


@asynccontextmanager
async def connected(engine: FakeSGLang):
    client = Client(engine.url)
    try:
        yield client
    finally:
        await client.close()


class Followed:
    """A watch of one fake engine, and what it told."""

    def __init__(self, client: Client) -> None:
        self.pools: list[int] = []
        self.reasons: list[str] = []
        self.running: list[int] = []
        self.moved = asyncio.Event()
        self.watch = Watch(
            client,
            name="fake",
            api_key=None,
            on_up=lambda facts: self._note(self.pools, facts.pool_tokens),
            on_down=lambda reason: self._note(self.reasons, reason),
            on_loads=lambda loads: self._note(self.running, loads.running),
            pace=QUICK,
        )

    def _note(self, told: list, what: object) -> None:
        told.append(what)
        self.moved.set()

    async def until(self, condition) -> None:
        while not condition():
            self.moved.clear()
            await self.moved.wait()


@asynccontextmanager
async def following(engine: FakeSGLang):
    async with connected(engine) as client:
        followed = Followed(client)
        followed.watch.start()
        try:
            await followed.until(lambda: followed.pools)
            yield followed
        finally:
            await followed.watch.stop()


@pytest.mark.parametrize("version", ["0.5.6", "0.5.12", "0.5.17", "0.5.23"])
async def test_discovers_each_version(version):
    profile = {"pool": 3000, "context": 4000, "page": 16, "dp": 2}
    async with FakeSGLang(version=version, **profile) as engine, connected(engine) as client:
        facts = await discover(client, api_key=None, timeout_s=5.0)
    assert facts.version_text == version
    assert (facts.pool_tokens, facts.context, facts.page, facts.dp) == (3000, 4000, 16, 2)
    assert facts.max_input == 3000 - 6


async def test_key_opens_and_its_lack_is_said():
    fake = FakeSGLang(api_key="sk-one", admin_api_key="sk-two")
    async with fake as engine, connected(engine) as client:
        with pytest.raises(DiscoveryError) as caught:
            await discover(client, api_key=None, timeout_s=5.0)
        assert caught.value.kind == "unauthorized"
        facts = await discover(client, api_key="sk-one", timeout_s=5.0)
    assert "sk-" not in repr(facts)


async def test_death_and_revival_with_a_smaller_pool():
    async with FakeSGLang(pool=2048) as engine, following(engine) as followed:
        await engine.die()
        await followed.until(lambda: followed.reasons)
        assert followed.watch.snapshot().state is Life.DOWN
        await engine.revive(pool=1024)
        await followed.until(lambda: len(followed.pools) == 2)
        assert followed.pools == [2048, 1024]
        assert followed.watch.starts == 2


async def test_mute_engine_goes_down_and_comes_back_as_the_same_start():
    async with FakeSGLang() as engine, following(engine) as followed:
        engine.mute()
        await followed.until(lambda: followed.reasons)
        assert "accepts connections" in followed.reasons[0]
        engine.unmute()
        await followed.until(lambda: len(followed.pools) == 2)
        assert followed.watch.starts == 1


async def test_loads_show_a_request_come_and_go_by_abort():
    async with FakeSGLang() as engine, following(engine) as followed, connected(engine) as client:
        engine.default = Behaviour(hold=asyncio.Event(), hold_at=1)
        rid = "0123456789abcdef"
        body = {"prompt": "a b c", "max_tokens": 2, "stream": True, "rid": rid}
        reply = await client.request("POST", "/v1/completions", (), json.dumps(body).encode())
        await followed.until(lambda: followed.running[-1:] == [1])
        assert await abort(client, rid, api_key=None, timeout_s=5.0) is AbortResult.TOLD
        assert b'"abort"' in await reply.read_all(1 << 20)
        await followed.until(lambda: followed.running[-1] == 0)
        assert engine.seen[0].how == "aborted"
        assert engine.calls["/server_info"] == 1


async def test_abort_of_a_dead_engine_is_a_word():
    async with FakeSGLang() as engine, connected(engine) as client:
        await engine.die()
        result = await abort(client, "0123456789abcdef", api_key=None, timeout_s=5.0)
        assert result is AbortResult.UNHEARD
