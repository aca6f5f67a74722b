"""What servers do to requests: full, broken, silent, restarted, or beside one that is well."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from gateway.edge import handler
from tests.cases.world import ids, kv, together
from tests.edge.rig import CHAT, TEXT, Rig, chat, events
from tests.fakes.behaviour import Behaviour, queue_full, refuse

if TYPE_CHECKING:
    from tests.fakes.sglang import FakeSGLang

FIVE = ids(20, 5, stream=False)
SHORT_WAITS = {"limits": {"first_byte_s": 0.2, "answer_s": 0.2, "idle_s": 0.3}}


def streamed(**fields):
    return chat(5, stream=True, max_tokens=9, **fields)


async def gone(rig: Rig, engine: FakeSGLang, name: str) -> None:
    """A server dies, and the gate has noticed."""
    await engine.die()
    rig.app.fleet.backends[name].suspect("it died")
    assert not rig.app.fleet.backends[name].ready


def polled_often(rig: Rig) -> None:
    """Loads are asked for as often as while somebody waits for them."""
    watch = rig.app.fleet.backends["gpu0"].watch
    assert watch is not None
    watch.want_loads(asyncio.get_running_loop().time() + 5)


# How the server breaks, the request, its status (None: the connection breaks), its outcome.
BROKEN = [
    pytest.param(refuse(504, "gateway time-out"), FIVE, 504, "failed", id="G01-504"),
    pytest.param(Behaviour(reset_at=0), FIVE, 502, "failed", id="G01-reset"),
    pytest.param(Behaviour(never=True), FIVE, 504, "failed", id="G01-silence"),
    pytest.param(refuse(502, "bad gateway"), FIVE, 502, "failed", id="G01-502"),
    pytest.param(Behaviour(raw=b"garbage\r\n\r\n"), FIVE, 502, "failed", id="G01-no-http"),
    pytest.param(refuse(400, "x" * 200), FIVE | {"stream": True}, 400, "completed", id="J04"),
]


@pytest.mark.parametrize(("behaviour", "body", "status", "outcome"), BROKEN)
async def test_however_it_breaks_the_next_one_runs(
    world, behaviour: Behaviour, body, status: int, outcome: str
) -> None:
    """One slot: a reservation that was not given back would be missed at once."""
    async with world({**SHORT_WAITS, "backend": {"slots": 1}}) as rig:
        rig.engine.default = behaviour
        got = await rig.post(TEXT, body)
        sent = len(rig.engine.seen)
        assert sent <= 1 + rig.app.fleet.backends["gpu0"].client.stats.retries
        assert got.status == status
        assert got.json(), "whole JSON, whatever length the server named"
        assert int(got.headers["content-length"]) == len(got.body)
        assert got.headers["x-kvgate-error-source"] == "upstream"
        assert rig.records[0]["outcome"] == outcome
        await rig.ready()
        rig.engine.default = Behaviour(tokens=1)
        async with asyncio.timeout(3):
            assert (await rig.post(TEXT, FIVE)).status == 200
        assert len(rig.engine.seen) == sent + 1


# How a stream that has begun comes to its end, and what the last event of it is.
CUT = [
    pytest.param(Behaviour(tokens=9, reset_at=3), id="H07-reset"),
    pytest.param(Behaviour(tokens=9, close_at=3), id="H09-closed"),
    pytest.param(Behaviour(tokens=9, reset_at=1), id="O10-one-attempt"),
]


@pytest.mark.parametrize("behaviour", CUT)
async def test_a_stream_that_breaks_is_told_once_in_band_and_never_tried_again(
    world, behaviour: Behaviour
) -> None:
    async with world() as rig:
        rig.engine.queue.append(behaviour)
        got = await rig.post(CHAT, streamed())
        *before, last = events(got.body)
        assert last["error"]["type"] == "server_error"
        assert all("error" not in event for event in before)
        assert "finish_reason" not in str(last)
        assert b"[DONE]" not in got.body
        assert rig.records[0]["outcome"] == "failed"
        ended = rig.app.metrics.registry.get_sample_value
        labels = {"client": "anyone", "outcome": "completed", "phase": "done"}
        assert not ended("kvgate_ended_total", labels)
        assert len(rig.engine.seen) == 1
        await rig.ready()


@pytest.mark.parametrize("stream", [False, True])
async def test_p01_a_resend_never_meets_its_own_first_try(world, stream: bool) -> None:
    """A kept connection breaks after the engine has taken the request: nobody's fault at all."""
    async with world(quiet=False) as rig:
        rig.engine.default = Behaviour(tokens=1)
        assert (await rig.post(TEXT, FIVE)).status == 200  # a connection to be used again
        rig.engine.notice_s = None
        leave = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=1, hold=leave))
        asked = asyncio.ensure_future(rig.post(TEXT, FIVE | {"stream": stream}))
        seen = await rig.engine.arrived(2)
        seen.wire.reset()
        got = await asked
        leave.set()
        assert b"Duplicate request ID" not in got.body


async def test_h09_a_stream_that_ends_in_order_without_its_end_mark_is_not_complete(world) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    event = b'data: {"choices":[{"index":0,"delta":{"content":"w"},"finish_reason":null}]}\n\n'
    async with world() as rig:
        rig.engine.queue.append(Behaviour(raw=head + event))
        got = await rig.post(CHAT, streamed())
        assert events(got.body)[-1]["error"]["type"] == "server_error"
        assert rig.records[0]["outcome"] == "failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_e06_a_full_server_is_back_pressure_and_stays_in_service(
    world, monkeypatch, stream: bool
) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.02)
    async with world() as rig:
        rig.engine.queue.extend([queue_full()] * 5)
        rig.engine.default = Behaviour(tokens=1)
        asked = together(rig, TEXT, [FIVE | {"stream": stream}] * 3)
        assert {got.status for got in await asyncio.gather(*asked)} == {200}
        assert rig.app.fleet.any_ready
        assert (await rig.status())["backends"][0]["state"] == "ready"


async def test_e07_one_clients_errors_cost_nobody_else(world) -> None:
    clients = [{"name": name, "header": {"name": "x-who", "value": name}} for name in "ab"]
    async with world({"clients": clients}) as rig:
        rig.engine.script = lambda seen: (
            refuse(500, "internal") if len(seen.job.prompts) and seen.job.prompts[0] == 66 else None
        )
        rig.engine.default = Behaviour(tokens=1)
        assert (await rig.post(TEXT, FIVE, headers={"x-who": "b"})).status == 200
        for number in range(8):
            bad = together(rig, TEXT, [ids(66, 5)] * 10, headers={"x-who": "a"})
            good = await rig.post(TEXT, FIVE, headers={"x-who": "b"})
            assert good.status == 200
            statuses = {got.status for got in await asyncio.gather(*bad)}
            # Of the first ten some may come so late that five others have failed by then.
            assert statuses - {429} == ({500} if number == 0 else set()), "the client cools down"
            assert statuses
        (backend,) = (await rig.status())["backends"]
        assert (backend["state"], list(backend["cooling"])) == ("ready", ["a"])


async def test_e09_no_server_is_a_503_at_once_and_not_too_many_requests(world) -> None:
    async with world() as rig:
        await gone(rig, rig.engine, "gpu0")
        async with asyncio.timeout(1):
            got = await rig.chat(max_tokens=5)
        assert (got.status, got.code) == (503, "no_backend")
        assert 1 <= int(got.headers["retry-after"]) <= 60


async def test_e10_loads_that_hang_change_nothing(world) -> None:
    async with world() as rig:
        answer = rig.engine._introspect

        async def hangs(received):
            if received.path == "/v1/loads":
                await asyncio.Event().wait()
            return await answer(received)

        rig.engine._introspect = hangs
        polled_often(rig)
        asked = rig.engine.calls["/v1/loads"]
        await rig.engine.until(lambda: rig.engine.calls["/v1/loads"] > asked)
        rig.engine.default = Behaviour(tokens=1)
        for _ in range(3):
            assert (await rig.post(TEXT, FIVE)).status == 200
        assert rig.app.fleet.any_ready


async def test_e04_readiness_costs_the_engine_no_generation(world) -> None:
    """Frequent probes that generate have killed servers: here there are none at all."""
    async with world() as rig:
        polled_often(rig)
        await rig.engine.until(lambda: rig.engine.calls["/v1/loads"] >= 3)
        assert rig.engine.seen == []
        assert not {"/health", "/health_generate"} & set(rig.engine.calls)


async def test_e12_a_silent_server_slows_nobody_on_another(two) -> None:
    async with two({"limits": {"first_byte_s": 1.0, "answer_s": 1.0}}) as (rig, second):
        second.default = Behaviour(tokens=1)
        rig.engine.default = Behaviour(never=True)
        silent = together(rig, TEXT, [FIVE | {"model": "m0"}] * 4)
        await rig.engine.arrived(4)
        for _ in range(20):
            assert (await rig.post(TEXT, FIVE | {"model": "m1"})).status == 200
        assert not any(one.done() for one in silent)
        assert {got.status for got in await asyncio.gather(*silent)} == {504}
        assert {len(rig.engine.seen), len(second.seen)} == {4, 20}


async def test_n04_load_comes_before_everything_else(two) -> None:
    async with two() as (rig, second):
        leave = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=2, hold=leave, hold_at=1))
        full = ids(12_000, 8000, n=4, model="m0")
        first = asyncio.ensure_future(rig.post(TEXT, full))
        await rig.engine.arrived()
        second.default = Behaviour(tokens=1)
        for _ in range(5):
            assert (await rig.post(TEXT, ids(12_000, 8000, model="?"))).status == 200
        assert (len(rig.engine.seen), len(second.seen)) == (1, 5)
        leave.set()
        await first


async def test_n12_a_server_that_is_away_takes_part_in_no_decision(two) -> None:
    async with two() as (rig, second):
        await gone(rig, second, "gpu1")
        rig.engine.default = Behaviour(tokens=1)
        for _ in range(5):
            got = await rig.post(TEXT, FIVE)
            assert (got.status, got.headers["x-kvgate-backend"]) == (200, "gpu0")


async def test_g06_a_server_that_flaps_changes_no_reservation(world) -> None:
    async with world({"queue": {"max_requests": 20}}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=3, hold=leave, hold_at=1)
        asked = together(rig, TEXT, [ids(100, 50)] * 10)
        await rig.engine.arrived(10)
        held = rig.reserved
        assert held == 10 * kv(100, 50)
        backend = rig.app.fleet.backends["gpu0"]
        for _ in range(20):
            backend.suspect("a probe failed")
            assert not backend.ready
            assert rig.reserved == held
            await rig.ready()
            assert rig.reserved == held
        leave.set()
        assert {got.status for got in await asyncio.gather(*asked)} == {200}


async def test_i07_a_server_that_closes_after_each_reply_costs_nobody_anything(world) -> None:
    async with world({"observe": {"recent": 300}}) as rig:
        rig.engine.default = Behaviour(tokens=1, close_connection=True)
        for _ in range(100):
            assert (await rig.post(TEXT, FIVE)).status == 200
        stats = rig.app.fleet.backends["gpu0"].client.stats
        assert stats.retries <= 100
        assert len(rig.engine.seen) == 100, "no request reached the engine twice"


async def test_i10_the_client_towards_the_engine_has_no_limit_of_its_own(world) -> None:
    async with world({"observe": {"recent": 400}}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        asked = together(rig, TEXT, [ids(9, 9)] * 130)
        await rig.engine.until(lambda: len(rig.engine._held) == 130)
        assert rig.app.fleet.backends["gpu0"].client.stats.open >= 130
        leave.set()
        assert {got.status for got in await asyncio.gather(*asked)} == {200}


@pytest.mark.parametrize(
    ("gaps", "ends"),
    [pytest.param(0.05, True, id="I03-slow"), pytest.param(1.0, False, id="I03-silent")],
)
async def test_silence_is_bounded_and_length_is_not(world, gaps: float, ends: bool) -> None:
    """The limit is on the silence between two bytes; twelve gaps are twice as long as the limit."""
    async with world(SHORT_WAITS) as rig:
        rig.engine.default = Behaviour(tokens=12, gap_s=gaps)
        got = await rig.post(CHAT, chat(5, stream=True, max_tokens=12))
        assert (b"[DONE]" in got.body) == ends
        assert ends or events(got.body)[-1]["error"]["type"] == "server_error"
        await rig.ready()


def test_i01_nothing_bounds_the_whole_of_an_answer(world) -> None:
    """Every limit of the client is on one wait: to connect, for the head, between two bytes."""
    import inspect

    from gateway.upstream.client import Client

    limits = [name for name in inspect.signature(Client.send).parameters if "timeout" in name]
    assert limits == ["first_byte_timeout_s", "idle_timeout_s"]


async def test_i04_waiting_ends_in_words_and_leaves_nothing_at_the_server(world) -> None:
    async with world({"queue": {"max_wait_s": 0.2}}) as rig:
        leave = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=2, hold=leave, hold_at=1))
        first = asyncio.ensure_future(rig.post(TEXT, ids(4000, 8000, n=8)))
        await rig.engine.arrived()
        got = await rig.post(TEXT, ids(4000, 8000, n=8))
        assert (got.status, got.code) == (503, "queue_timeout")
        assert 1 <= int(got.headers["retry-after"]) <= 60
        assert len(rig.engine.seen) == 1
        leave.set()
        await first


async def test_o07_a_503_of_the_server_and_one_of_ours_are_told_apart(world) -> None:
    async with world(SHORT_WAITS) as rig:
        rig.engine.queue.append(refuse(500, "boom"))
        theirs = await rig.post(TEXT, FIVE)
        await gone(rig, rig.engine, "gpu0")
        ours = await rig.post(TEXT, FIVE)
        assert theirs.headers["x-kvgate-error-source"] == "upstream"
        assert ours.headers["x-kvgate-error-source"] == "gateway"
        counted = rig.app.metrics.registry.get_sample_value
        labels = {"code": "no_backend", "source": "gateway"}
        assert counted("kvgate_refused_total", labels) == 1
