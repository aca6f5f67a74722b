"""Many clients: nobody takes everything, nobody who runs is cut, and control never waits."""

from __future__ import annotations

import asyncio

from tests.cases.world import LIMIT, ids, kv, together
from tests.edge.rig import TEXT, request
from tests.fakes.behaviour import Behaviour


async def test_o09_a_stream_that_runs_is_never_cut_for_the_budget(world) -> None:
    async with world({"queue": {"max_tokens": 1}}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=9, hold=leave, hold_at=3)
        size = ids(4000, 8000, n=8)
        first = asyncio.ensure_future(rig.post(TEXT, size))
        await rig.engine.arrived()
        second = await rig.post(TEXT, size)
        assert (second.status, second.code) == (429, "queue_full")
        assert not first.done()
        leave.set()
        assert (await first).body.endswith(b"data: [DONE]\n\n")


async def test_n07_while_the_queue_is_full_control_and_streams_go_on(world) -> None:
    async with world({"queue": {"max_requests": 2}}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=40, hold=leave, hold_at=3)
        size = ids(4000, 8000, n=8)
        async with rig.socket() as peer:
            await peer.send(request(TEXT, size))
            await rig.engine.arrived()
            waiting = together(rig, TEXT, [size] * 2)
            await rig.queued(2)
            for path in ("/healthz", "/metrics", "/status", "/readyz"):
                async with asyncio.timeout(1):
                    assert (await rig.control(path)).status == 200
            refused = await rig.post(TEXT, size)
            # N09: who is in the way, how many are ahead, when to come back.
            assert (refused.status, refused.code) == (429, "queue_full")
            assert refused.error["position"] == 3
            assert refused.error["needed"] == 8 * kv(4000, 8000)
            assert int(refused.headers["retry-after"]) >= 1
            rig.engine.default = Behaviour(tokens=1)
            leave.set()
            async with asyncio.timeout(5):
                head = await peer.reader.readuntil(b"\r\n\r\n")
                await peer.reader.readuntil(b"0\r\n\r\n")
            assert b"200 OK" in head
            assert {got.status for got in await asyncio.gather(*waiting)} == {200}


async def test_n03_one_client_cannot_take_everything(world) -> None:
    clients = [
        {
            "name": "a",
            "header": {"name": "x-who", "value": "a"},
            "max_inflight": 4,
            "max_held_tokens": 40_000,
        },
        {"name": "b", "header": {"name": "x-who", "value": "b"}},
    ]
    async with world({"clients": clients, "queue": {"max_requests": 100}}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        flood = together(rig, TEXT, [ids(5000, 4000)] * 40, headers={"x-who": "a"})
        await rig.queued(36)
        assert len(rig.engine.seen) == 4
        assert rig.reserved == 4 * kv(5000, 4000) <= 40_000
        rig.engine.queue.append(Behaviour(tokens=1))
        async with asyncio.timeout(2):
            alone = await rig.post(TEXT, ids(5000, 4000), headers={"x-who": "b"})
        assert alone.status == 200
        leave.set()
        rig.engine.default = Behaviour(tokens=1)
        assert {got.status for got in await asyncio.gather(*flood)} == {200}


async def test_l13_background_calls_do_not_stand_before_a_users_chat(world) -> None:
    """Ten users each with one chat and three background calls: each user's first goes first."""
    names = ["busy", *(f"u{i}" for i in range(10))]
    clients = [{"name": name, "header": {"name": "x-who", "value": name}} for name in names]
    policy = {"clients": clients, "backend": {"slots": 10}, "queue": {"max_requests": 99}}
    async with world(policy) as rig:
        until = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=until, hold_at=1)
        before = together(rig, TEXT, [ids(9, 9)] * 10, headers={"x-who": "busy"})
        await rig.engine.arrived(10)
        asked = []
        for name in names[1:]:
            calls = [ids(50, 9), *[ids(20, 9)] * 3]
            asked += together(rig, TEXT, calls, headers={"x-who": name})
        await rig.queued(40)
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        until.set()
        await asyncio.gather(*before)
        await rig.engine.arrived(20)
        assert {client.inflight for client in rig.app.gate.view().clients} == {1}
        leave.set()
        assert {got.status for got in await asyncio.gather(*asked)} == {200}


def test_the_largest_request_of_these_tests_takes_nearly_all() -> None:
    assert LIMIT // 2 < 8 * kv(4000, 8000) <= LIMIT
