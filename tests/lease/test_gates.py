"""Two gates, one engine, one store: what is granted together stays inside the engine's budget."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.amount import NOTHING
from tests.fakes.behaviour import Behaviour
from tests.lease.fleet import LIMIT, gates, settle, table_of
from tests.lease.server import RedisServer, needs_server

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
