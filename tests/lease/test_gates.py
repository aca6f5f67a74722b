"""Two gates, one engine, one store: what is granted together stays inside the engine's budget."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from gateway.core.admission import NO_USE
from gateway.core.amount import NOTHING
from gateway.core.quarantine import FORGET_S
from gateway.edge import common
from gateway.lease.redis import RedisStore
from gateway.lease.words import decode
from gateway.upstream import reply
from tests.fakes.behaviour import Behaviour
from tests.lease.fleet import LIMIT, gates, settle, table_of
from tests.lease.server import RedisServer, needs_server

if TYPE_CHECKING:
    from gateway.core.others import Strikes, Words

pytestmark = needs_server


async def test_two_gates_fill_one_pool_and_never_more(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        async with gates(tmp_path, server) as both:
            hold = asyncio.Event()
            both.engine.default = Behaviour(hold=hold, hold_at=1)
            first, _ = both.apps
            asked = [task for app in both.apps for task in both.asks(app, 3, 500, 400)]
            await both.until(lambda: min(both.held()) == 3 * 901)
            asked += [task for app in both.apps for task in both.asks(app, 12, 500, 400)]
            await both.until(lambda: sum(both.held()) > LIMIT - 901)
            table = await table_of(server, "gpu0")
            assert LIMIT >= table.shares.kv >= sum(both.held())
            lease = (await both.status(first))["lease"]
            assert lease["replicas"] == 2
            assert lease["settled"]
            # Whatever each gate holds back for itself while it does not know that the server is well.
            assert lease["budget"] == {"kv": LIMIT, "prefill": 9000, "slots": 100}
            assert not lease["budgets_differ"]
            assert lease["error"] is None
            hold.set()
            await both.until(lambda: all(task.done() for task in asked))
            assert {task.result() for task in asked} == {200}
            assert both.engine.peak <= LIMIT
        assert (await table_of(server, "gpu0")).entries == {}  # both have given back what they had


async def test_a_request_larger_than_the_share_borrows(tmp_path) -> None:
    """Two of three quarters of the pool each, in the same moment at two gates: one after the other."""
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        async with gates(tmp_path, server) as both:
            both.engine.default = Behaviour(gap_s=0.02)
            asked = [task for app in both.apps for task in both.asks(app, 2, 3000, 4400)]
            await both.until(lambda: all(task.done() for task in asked))
            assert {task.result() for task in asked} == {200}
            assert both.engine.peak <= LIMIT


async def test_a_store_that_stops_and_comes_back_empty_costs_nobody_an_answer(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        async with gates(tmp_path, server) as both:
            both.engine.default = Behaviour(gap_s=0.01)
            warm = [task for app in both.apps for task in both.asks(app, 4, 500, 400)]
            await both.until(lambda: all(task.done() for task in warm))
            server.stop()
            asked = [task for app in both.apps for task in both.asks(app, 8, 500, 400)]
            await both.until(lambda: all(task.done() for task in asked))  # in the shares there were
            error = (await both.status(both.apps[0]))["lease"]["error"]
            while error is None:  # it is asked every second
                await asyncio.sleep(0.05)
                error = (await both.status(both.apps[0]))["lease"]["error"]
            assert "does not answer" in error
            server.start()
            more = [task for app in both.apps for task in both.asks(app, 8, 500, 400)]
            await both.until(lambda: all(task.done() for task in more))
            assert {task.result() for task in (*warm, *asked, *more)} == {200}
            lease = None  # as it is until the gate has written into the empty store
            while lease is None or lease["error"] is not None:
                await asyncio.sleep(0.05)
                lease = (await both.status(both.apps[0]))["lease"]
            assert (await table_of(server, "gpu0")).unclaimed is None  # nobody grows yet
            assert both.engine.peak <= LIMIT


async def test_without_the_store_nothing_starts_and_everything_waits(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        server.stop()
        async with gates(tmp_path, server, count=1) as alone:
            (app,) = alone.apps
            (asked,) = alone.asks(app, 1, 100, 100)
            await alone.until(lambda: app.gate.view().queue.requests == 1)
            server.start()
            await settle(server, "gpu0")
            await alone.until(asked.done)
            assert asked.result() == 200


async def test_who_hangs_up_is_found_gone_beside_the_requests_of_another_gate(tmp_path) -> None:
    """The engine counts those too: they are known from the table."""
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        async with gates(tmp_path, server) as both:
            hold = asyncio.Event()
            both.engine.default = Behaviour(hold=hold, hold_at=1)
            first, second = both.apps
            running = both.asks(second, 3, 500, 400)
            (left,) = both.asks(first, 1, 500, 400)
            await both.until(lambda: min(both.held()) > 0)
            left.cancel()
            await both.until(lambda: both.held()[0] == 0)
            hold.set()
            await both.until(lambda: all(task.done() for task in running))


@pytest.mark.slow  # its lease must be over
async def test_the_share_of_a_gate_that_was_killed_comes_back(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        async with gates(tmp_path, server) as both:
            dead, other = both.apps
            assert dead.leases is not None
            warm = both.asks(dead, 4, 500, 400)
            await both.until(lambda: all(task.done() for task in warm))
            dead.leases._task.cancel()  # it renews no more, and nobody told the store
            dead.leases._leave = lambda *_: asyncio.sleep(0)  # type: ignore[method-assign]
            (large,) = both.asks(other, 1, 8000, 1800)
            await both.until(large.done, within_s=30)
            assert large.result() == 200
            table = await table_of(server, "gpu0")
            assert list(table.entries) == [other.leases.me]
            assert table.unclaimed == NOTHING


# ---- what is known in common beside leases -------------------------------------------------------


async def board(server: RedisServer) -> dict[str, Words]:
    """What hangs there, at time zero."""
    store = RedisStore(server.url)
    told = await store.post("reader", b"s", b"{}", 0.001)
    await store.close()
    return {who: decode(said, 0.0) for who, said in told.of.items() if who != "stranger"}


ONE = {"name": "anyone", "quota": {"tokens": 1000, "window_s": 600}}


async def test_two_gates_count_one_quota_also_while_the_store_is_gone(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        async with gates(tmp_path, server, clients=[ONE]) as both:
            first, second = both.apps
            assert first.common is not None
            assert second.common is not None
            others = second.gate.core.others
            (task,) = both.asks(first, 1, 1200, 20)
            await both.until(task.done)
            assert task.result() == 200
            await both.until(
                lambda: any(w.clients.get("anyone", NO_USE).used >= 1208 for w in others)
            )
            assert await both.ask(second, 1, 1) == 429
            assert second.common.status() == {"others": 1, "error": None}
            server.stop()
            await both.until(lambda: second.common.status()["error"] is not None)
            assert await both.ask(second, 1, 1) == 429, "tokens used stay used"
            server.start()
            await both.until(lambda: second.common.status() == {"others": 1, "error": None})
            assert await both.ask(second, 1, 1) == 429
            assert first.deaths.marks.salt == second.deaths.marks.salt


async def test_a_gate_that_ends_leaves_what_its_clients_used(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        async with gates(tmp_path / "a", server, count=1, clients=[ONE]) as alone:
            (task,) = alone.asks(alone.apps[0], 1, 1200, 20)
            await alone.until(task.done)
            assert task.result() == 200
        (left,) = (await board(server)).values()
        assert left.clients["anyone"].used == 1208
        assert 500 < left.until < 600, "the window's end"
        async with gates(tmp_path / "b", server, count=1, clients=[ONE]) as after:
            (app,) = after.apps
            await after.until(lambda: len(app.gate.core.others) == 1)
            assert await after.ask(app, 1, 1) == 429


async def test_one_death_that_two_gates_saw_is_one(tmp_path, monkeypatch) -> None:
    """The very request was in flight at both, and both are told of the other's strike."""
    monkeypatch.setattr(reply, "_RACE_S", -1.0)
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        async with gates(tmp_path, server) as both:
            both.engine.default = Behaviour(never=True)
            asked = [task for app in both.apps for task in both.asks(app, 1, 300, 20)]
            await both.engine.arrived(2)
            await both.engine.die()
            lost = [app.gate.core.others for app in both.apps]
            await both.until(lambda: all(any(w.strikes for w in others) for others in lost))
            for app in both.apps:
                (mark,) = app.deaths.quarantine.strikes
                assert next(iter(app.gate.core.others)).strikes[mark].deaths == 1
                assert app.deaths.quarantine.deaths(mark, app.gate.now()) == 1
            both.engine.default = Behaviour(tokens=2)
            await both.engine.revive()
            await both.until(lambda: all(task.done() for task in asked))
            assert {task.result() for task in asked} == {200}


async def test_a_death_is_said_at_once_and_what_cannot_be_understood_is_told_once(
    tmp_path, monkeypatch
) -> None:
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        with capture_logs() as logs:
            async with gates(tmp_path, server, count=1) as alone:
                (app,) = alone.apps
                assert app.common is not None
                assert app.leases is not None
                stranger = RedisStore(server.url)
                await stranger.post("stranger", b"s", b'{"form":"kvgate-common-9"}', 60.0)

                def told() -> int:
                    # Of the stranger: who reads the board leaves a word there for a millisecond, too.
                    odd = [line for line in logs if line["event"] == "common_not_understood"]
                    return sum(line["replica"] == "stranger" for line in odd)

                await alone.until(lambda: told() == 1)
                monkeypatch.setattr(common, "ROUND_S", 1000.0)
                app.common._soon.set()
                await alone.until(lambda: not app.common._soon.is_set())
                alone.engine.default = Behaviour(never=True)
                (asked,) = alone.asks(app, 1, 300, 20)
                await alone.engine.arrived()
                await alone.engine.die()
                alone.engine.default = Behaviour(tokens=2)
                strikes: dict[bytes, Strikes] = {}
                while not strikes:
                    await asyncio.sleep(0.01)
                    words = (await board(server)).get(app.leases.me)
                    strikes = {} if words is None else dict(words.strikes)
                ((_mark, strike),) = strikes.items()
                assert strike.deaths == 1
                assert words.until > FORGET_S - 60
                await alone.engine.revive()
                await alone.until(asked.done)
                assert asked.result() == 200
                await stranger.close()
        assert told() == 1
        assert app.common.status()["error"] is None
