"""One URL, several servers: a balancer or a name with two addresses in the place of one server."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.starts import SEVERAL, SEVERAL_S, Starts
from gateway.upstream.watch import Life
from tests.fakes.profile import RankUse, Start
from tests.upstream.scripted import ScriptedClient
from tests.upstream.test_discover_facts import facts
from tests.upstream.test_watch import watching

pytestmark = pytest.mark.looptime


class Balancer(ScriptedClient):
    """Each question goes to the next of several servers, who have done different things so far."""

    def __init__(self, servers: int, **changes) -> None:
        super().__init__(**changes)
        self.boots = [Start.of(self.profile) for _ in range(servers)]
        self.turn = 0

    async def request(self, method, target, headers, body=b""):
        self.turn = (self.turn + 1) % len(self.boots)
        self.boot = self.boots[self.turn]
        self.use = [RankUse(prefilled=1000 * (self.turn + 1))]
        return await super().request(method, target, headers, body)


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("version", ["0.5.23", "0.5.17", "0.5.13"])
async def test_who_comes_back_was_never_replaced(servers: int, version: str) -> None:
    """They are not taken for restarts for ever: each would write off what runs, and be held against
    the requests that are in flight."""
    client = Balancer(servers, version=version)
    async with watching(client) as (watch, told):
        await asyncio.sleep(30)
        watch.suspect("a connection broke")
        await asyncio.sleep(30)
        for _ in range(20):
            watch.suspect("a connection broke")
            await asyncio.sleep(5)
        assert watch.starts <= servers
        assert SEVERAL in told.up[-1].warnings
        assert watch.snapshot().state is Life.READY
        before = len(told.down)
        await asyncio.sleep(60)
        assert len(told.down) == before, (
            "loads of another of them are no sign of a restart any more"
        )


async def test_a_server_that_is_restarted_again_and_again_is_one() -> None:
    client = ScriptedClient()
    async with watching(client) as (watch, told):
        for _ in range(5):
            await asyncio.sleep(5)
            client.restart()
            watch.suspect("a connection broke")
        await asyncio.sleep(5)
        assert watch.starts == 6
        assert not any(SEVERAL in facts.warnings for facts in told.up)


async def test_loads_that_seem_anothers_once_are_no_sign_of_several() -> None:
    client = ScriptedClient()
    client.use = [RankUse(prefilled=5000)]
    async with watching(client) as (watch, told):
        await asyncio.sleep(5)
        client.use = [RankUse(prefilled=10)]
        await asyncio.sleep(5)
        assert (watch.starts, len(told.down)) == (1, 1)
        assert SEVERAL not in told.up[-1].warnings


async def test_a_pinned_seed_that_was_there_before_is_another_start_behind_a_shut_door() -> None:
    """Before 0.5.17 a server may come back with a pool, and so with a key, that it had once before."""
    client = ScriptedClient(version="0.5.13", random_seed=7, pool=5000)
    async with watching(client) as (watch, told):
        for pool in (5001, 5000, 5001):
            await asyncio.sleep(5)
            client.mood = "refused"
            watch.suspect("a connection broke")
            await asyncio.sleep(1)
            client.restart(pool=pool)
            client.mood = "up"
        await asyncio.sleep(5)
        assert watch.starts == 4
        assert not any(SEVERAL in facts.warnings for facts in told.up)


async def test_once_only_one_is_met_for_long_it_is_one_again() -> None:
    client = Balancer(2)
    async with watching(client) as (watch, told):
        await asyncio.sleep(30)
        assert SEVERAL in told.up[-1].warnings
        del client.boots[0]
        await asyncio.sleep(SEVERAL_S + 5)
        watch.suspect("a connection broke")
        await asyncio.sleep(5)
        assert SEVERAL not in told.up[-1].warnings


def test_loads_of_another_start_say_nothing_where_starts_cannot_be_told_apart() -> None:
    """Twice odd within moments are several servers only where each start has a key of its own."""
    for version, several in (("0.5.12", False), ("0.5.23", True)):
        starts, who = Starts(), facts(version)
        starts.met(who, 0.0, was_shut=False)
        starts.met(who, 10.0, was_shut=False, loads_of_another=True)
        assert not starts.several(10.0)
        starts.met(who, 20.0, was_shut=False, loads_of_another=True)
        assert starts.several(20.0) == several, version
