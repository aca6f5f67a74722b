"""One broken connection makes a server doubtful, and new requests wait a moment for the answer: it is no
reason to send everybody away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.edge import backend, counting
from gateway.upstream import watch
from tests.edge.rig import COUNT, Rig, chat
from tests.fakes.behaviour import Behaviour


@pytest.mark.parametrize("admission", ["on", "shadow", "off"])
async def test_a_stream_that_a_live_server_cut_turns_nobody_away(start, admission: str) -> None:
    async with start({"admission": admission}) as rig:
        rig.engine.default = Behaviour(tokens=1)
        rig.engine.queue.append(Behaviour(tokens=3, reset_at=2))
        cut = await rig.chat(stream=True, max_tokens=3)
        assert b"upstream_error" in cut.body
        if admission == "on":  # otherwise nothing is known of a death, and nothing is doubted
            assert not rig.app.fleet.any_ready, "it is being asked"
        others = await asyncio.gather(*(rig.chat(max_tokens=1) for _ in range(5)))
        assert {got.status for got in others} == {200}
        rig.handled = 6


async def test_who_only_wants_a_count_waits_as_well(rig) -> None:
    rig.engine.default = Behaviour(tokens=1)
    rig.engine.queue.append(Behaviour(tokens=3, reset_at=2))
    await rig.chat(stream=True, max_tokens=3)
    assert not rig.app.fleet.any_ready, "it is being asked"
    got = await asyncio.gather(*(rig.post(COUNT, chat()) for _ in range(3)))
    assert [one.status for one in got] == [200] * 3
    rig.handled = 1


async def test_where_it_has_died_a_new_request_hears_so_at_once(rig, monkeypatch) -> None:
    monkeypatch.setattr(backend, "DOUBT_S", 60.0)  # nobody waits for that to be over
    rig.engine.default = Behaviour(tokens=9, hold=asyncio.Event(), hold_at=1)
    running = asyncio.ensure_future(rig.chat(stream=True, max_tokens=9))
    await rig.engine.arrived()
    await rig.engine.die()
    async with asyncio.timeout(5):
        got = await rig.chat(max_tokens=1)
    assert (got.status, got.code) == (503, "no_backend")
    running.cancel()
    rig.handled = 2


@pytest.fixture
async def silent(rig, monkeypatch):
    """A gate whose server cut a stream and does not say any more whether it lives."""

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    rig.engine.default = Behaviour(tokens=1)
    rig.engine.queue.append(Behaviour(tokens=3, reset_at=2))
    with monkeypatch.context() as patch:
        patch.setattr(watch, "discover", hang)
        await rig.chat(stream=True, max_tokens=3)
        yield rig
    rig.app.fleet.backends["gpu0"].watch._task.cancel()
    rig.app.fleet.backends["gpu0"].watch.start()


async def test_it_is_waited_for_no_longer_than_a_connection_takes(silent, monkeypatch) -> None:
    monkeypatch.setattr("gateway.edge.lobby.DOUBT_S", 0.1)
    got = await silent.chat(max_tokens=1)
    assert (got.status, got.code) == (503, "no_backend")
    silent.handled = 2


async def test_who_leaves_meanwhile_leaves_nothing(silent) -> None:
    way = silent.app.data.under_way
    waits = asyncio.ensure_future(silent.post(body=chat(max_tokens=1)))
    await silent.until(lambda: len(way._tasks) == 1)
    waits.cancel()
    await silent.until(lambda: not way._tasks)
    silent.handled = 2


async def test_a_doubt_that_comes_while_a_prompt_is_counted_turns_nobody_away_either(
    rig, monkeypatch
) -> None:
    rig.engine.default = Behaviour(tokens=1)
    count = counting.count
    cuts = [Behaviour(tokens=3, reset_at=2)]

    async def counted(*args: Any) -> Any:
        found = await count(*args)
        if cuts:
            rig.engine.queue.append(cuts.pop())
            await rig.chat(stream=True, max_tokens=3)
            assert not rig.app.fleet.any_ready, "it is being asked"
        return found

    monkeypatch.setattr(counting, "count", counted)
    assert (await rig.chat(max_tokens=1)).status == 200
    rig.handled = 2


async def test_who_waits_for_a_server_that_is_taken_out_hears_so_at_once(
    silent, monkeypatch
) -> None:
    monkeypatch.setattr(backend, "DOUBT_S", 60.0)
    monkeypatch.setattr("gateway.edge.lobby.DOUBT_S", 60.0)
    silent.app.fleet.backends["gpu0"]._expected_until += 60.0
    waits = asyncio.ensure_future(silent.chat(max_tokens=1))
    await silent.until(lambda: len(silent.app.data.under_way._tasks) == 1)
    policy = silent.app.policy
    silent.app.fleet.adopt(policy.model_copy(update={"backends": ()}), {})
    async with asyncio.timeout(5):
        got = await waits
    assert (got.status, got.code) == (503, "no_backend")
    silent.app.fleet.backends["gpu0"].leaving = False
    silent.handled = 2


async def _is_not_waited_for(_: Rig) -> None: ...


async def test_who_comes_while_the_gate_is_being_started_waits_for_the_first_look(
    start, monkeypatch
) -> None:
    """A restart of the gate, and an agent in the middle of its work: it was told to come back in ten
    seconds, for two in which a tokenizer is read."""
    looks, look = asyncio.Event(), watch.discover

    async def slow(*args: Any, **more: Any) -> Any:
        await looks.wait()
        return await look(*args, **more)

    monkeypatch.setattr(watch, "discover", slow)
    monkeypatch.setattr(Rig, "ready", _is_not_waited_for)
    async with start() as rig:
        rig.engine.default = Behaviour(tokens=1)
        waits = asyncio.ensure_future(rig.chat(max_tokens=1))
        await rig.until(lambda: len(rig.app.data.under_way._tasks) == 1)
        assert not rig.app.fleet.any_ready
        looks.set()
        assert (await waits).status == 200


async def test_who_comes_while_it_is_started_before_a_dead_server_hears_so_at_once(
    start, monkeypatch
) -> None:
    monkeypatch.setattr("gateway.edge.lobby.DOUBT_S", 60.0)  # nobody waits for that to be over
    monkeypatch.setattr(Rig, "ready", _is_not_waited_for)
    async with start({"backend": {"url": "http://127.0.0.1:9"}}, quiet=False) as rig:
        async with asyncio.timeout(5):
            got = await rig.chat(max_tokens=1)
        assert (got.status, got.code) == (503, "no_backend")


async def test_one_that_has_been_met_and_is_away_is_not_waited_for_as_if_it_were_new(
    rig, monkeypatch
) -> None:
    monkeypatch.setattr("gateway.edge.lobby.DOUBT_S", 60.0)
    one = rig.app.fleet.backends["gpu0"]
    rig.app.fleet._close(one)  # its watch found it silent: no request had doubted it
    async with asyncio.timeout(5):
        got = await rig.chat(max_tokens=1)
    assert (got.status, got.code) == (503, "no_backend")
    rig.handled = 1
    one.ready = True
