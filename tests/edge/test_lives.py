"""What befalls a request on its way: a full server, a dead one, a client that leaves."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from gateway.edge import handler, reaper
from tests.edge.rig import CHAT, GENERATE, TEXT, chat, events, request
from tests.fakes.behaviour import Behaviour, queue_full

IDS = {"prompt": [1] * 20, "max_tokens": 5}


def full_pool(**fields: Any) -> dict[str, Any]:
    """A request that takes all there is."""
    return {"prompt": [1] * 20, "max_tokens": 5000, "stream": True, **fields}


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.02)


# ---- back-pressure ---------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])
async def test_a_full_server_is_back_pressure_and_the_client_never_hears_of_it(
    rig, path: str, stream: bool
) -> None:
    """Class E: 503 as JSON, and as the first event of a 200. Put back, served later, not sick."""
    body = {CHAT: chat(max_tokens=3), TEXT: IDS, GENERATE: {"text": "a"}}[path]
    rig.engine.queue.extend([queue_full()] * 3)
    got = await rig.post(path, body | {"stream": stream})
    assert got.status == 200
    assert b"error" not in got.body
    record = rig.records[0]
    assert (record["outcome"], record["attempts"]) == ("completed", 4)
    rids = [seen.body["rid"] for seen in rig.engine.seen]
    assert len({str(rid) for rid in rids}) == 4, "an id of its own for each attempt"
    assert len({len(str(rid)) for rid in rids}) == 1, "none the beginning of another"
    assert rig.app.fleet.any_ready


async def test_ids_keep_their_length_whatever_the_number_of_attempts(rig, monkeypatch) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.003)
    rig.engine.queue.extend([queue_full()] * 104)
    assert (await rig.post(TEXT, IDS)).status == 200
    assert {len(seen.body["rid"]) for seen in rig.engine.seen} == {32}
    assert len({seen.body["rid"] for seen in rig.engine.seen}) == 105


async def test_a_server_that_stays_full_costs_the_queue_s_time_and_no_more(
    start, monkeypatch
) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.05)
    async with start({"queue": {"max_wait_s": 0.3}}) as rig:
        rig.engine.default = queue_full()
        got = await rig.post(TEXT, IDS)
        assert (got.status, got.code) == (503, "queue_timeout")
        assert 1 <= int(got.headers["retry-after"]) <= 60
        assert got.headers["x-kvgate-error-source"] == "gateway"
        assert rig.records[0]["outcome"] == "evicted"
        assert rig.app.fleet.any_ready


# ---- servers that die ------------------------------------------------------------------------


async def test_a_refused_connection_puts_the_request_back_until_the_server_lives(rig) -> None:
    """Nothing was sent, so it can be sent again; its place is kept."""
    await rig.engine.die()
    asked = asyncio.ensure_future(rig.post(TEXT, IDS))
    await rig.queued()
    await rig.engine.revive()
    got = await asked
    assert got.status == 200
    assert rig.records[0]["attempts"] == 2


async def test_a_request_that_met_a_full_server_may_still_meet_a_dead_one(rig, monkeypatch) -> None:
    """Attempts that found the server full are no connections that failed."""
    monkeypatch.setattr(handler, "PAUSE_S", 0.02)
    rig.engine.queue.extend([queue_full()] * 4)
    dead = asyncio.Event()
    rig.engine.queue.append(Behaviour(error=(503, "The request queue is full."), hold=dead))
    asked = asyncio.ensure_future(rig.post(TEXT, IDS))
    seen = await rig.engine.arrived(5)
    monkeypatch.setattr(handler, "PAUSE_S", 0.2)
    dead.set()
    await seen.ended.wait()
    await rig.engine.die()
    await rig.until(lambda: not rig.app.fleet.any_ready)
    await rig.engine.revive()
    assert (await asked).status == 200


async def test_no_server_is_a_503_at_once(rig) -> None:
    """Class E: not saturation, so not 429."""
    await rig.engine.die()
    await rig.until(lambda: not rig.app.fleet.any_ready, 5)
    got = await rig.chat()
    assert (got.status, got.code) == (503, "no_backend")
    assert 1 <= int(got.headers["retry-after"]) <= 60
    assert "gpu0" in got.error["message"]
    async with rig.http.get(rig.app.listen_url + "/v1/models") as answer:
        assert answer.status == 503


async def test_a_restart_with_a_smaller_pool_judges_those_that_wait_anew(rig) -> None:
    """What waits is refused with the new numbers, or served with a smaller cap; nothing leaks."""
    rig.engine.queue.append(Behaviour(tokens=9, gap_s=0.01, hold=asyncio.Event(), hold_at=3))
    running = asyncio.ensure_future(rig.post(TEXT, full_pool()))
    await rig.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 3)
    large = asyncio.ensure_future(rig.post(TEXT, {"prompt": [1] * 1200, "max_tokens": 5}))
    small = asyncio.ensure_future(rig.post(TEXT, {"prompt": [1] * 20, "max_tokens": 1900}))
    await rig.queued(2)
    await rig.engine.die()
    await rig.engine.revive(pool=1024)
    broken = await running
    assert events(broken.body)[-1]["error"]["type"] == "server_error"
    refused = await large
    assert (refused.status, refused.code) == (400, "context_length_exceeded")
    served = await small
    assert served.status == 200
    cap = rig.engine.seen[-1].body["max_tokens"]
    assert cap < 1024
    assert served.headers["x-kvgate-clamped-from"] == "1900"
    (backend,) = (await rig.status())["backends"]
    assert (backend["pool_tokens"], backend["starts"]) == (1024, 2)
    voided = {"backend": "gpu0", "why": "voided"}
    assert rig.app.metrics.registry.get_sample_value("kvgate_released_total", voided) == 1


async def test_a_restart_with_fewer_ranks_forgets_the_others(start) -> None:
    async with start(dp=2) as rig:
        for _ in range(2):
            assert (await rig.post(TEXT, IDS)).status == 200
        await rig.engine.die()
        await rig.until(lambda: not rig.app.fleet.any_ready, 5)
        await rig.engine.revive(dp=1)
        await rig.until(lambda: rig.app.fleet.any_ready, 5)
        assert (await rig.post(TEXT, IDS)).status == 200
        told = rig.engine.seen[-1].body
        assert "routed_dp_rank" not in told
        (backend,) = (await rig.status())["backends"]
        assert len(backend["ranks"]) == 1
        assert backend["ledgers"]["kv"]["limit"] == rig.app.gate.view().pools[0].kv.limit


# ---- clients that leave ----------------------------------------------------------------------


async def test_a_client_that_leaves_the_queue_is_never_sent(rig) -> None:
    """Class F, queued."""
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=2, hold=hold, hold_at=1))
    running = asyncio.ensure_future(rig.post(TEXT, full_pool()))
    await rig.engine.arrived()
    async with rig.socket() as peer:
        await peer.send(request(TEXT, IDS))
        await rig.queued()
        peer.reset()
        await rig.queued(0)
    assert rig.records[0]["outcome"] == "cancelled"
    hold.set()
    await running
    assert len(rig.engine.seen) == 1


# Whether streamed, and after how many tokens; 0: before the head.
PHASES = {
    "before the head, streamed": (True, 0),
    "before the head, whole": (False, 0),
    "in the stream": (True, 3),
    "in the whole answer": (False, 3),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("polite", [False, True])
async def test_a_client_that_leaves_is_aborted_at_once(rig, phase: str, polite: bool) -> None:
    """Class F: the engine hears of it within a second in every phase, and the ledger is zero."""
    stream, at = PHASES[phase]
    rig.engine.default = Behaviour(tokens=9, hold=asyncio.Event(), hold_at=at)
    async with rig.socket() as peer:
        await peer.send(request(TEXT, IDS | {"stream": stream, "max_tokens": 9}))
        seen = await rig.engine.arrived()
        await rig.engine.until(lambda: seen.events == at)
        assert rig.reserved > 0
        peer.writer.close() if polite else peer.reset()
        async with asyncio.timeout(1):
            await seen.ended.wait()
    assert seen.how == "aborted"
    assert rig.engine.aborts == [seen.rid]
    await rig.until(lambda: rig.reserved == 0, 1)
    assert rig.records[0]["outcome"] == "cancelled"
    released = rig.app.metrics.registry.get_sample_value(
        "kvgate_released_total", {"backend": "gpu0", "why": "confirmed"}
    )
    assert released == 1


@pytest.mark.parametrize(
    ("version", "stream"), [("0.5.6", True), ("0.5.12", False), ("0.5.17", True)]
)
async def test_an_abort_the_engine_ignores_is_held_until_the_engine_shows_it_gone(
    start, monkeypatch, version: str, stream: bool
) -> None:
    """Class F: nothing is freed merely because we hung up. It may run on for as long as it likes."""
    monkeypatch.setattr(reaper, "DRAIN_S", 0.1)
    async with start(version=version) as rig:
        rig.engine.aborts_work, rig.engine.notice_s = False, None
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=9, hold=hold, hold_at=3)
        async with rig.socket() as peer:
            await peer.send(request(TEXT, IDS | {"stream": stream, "max_tokens": 9}))
            seen = await rig.engine.arrived()
            await rig.engine.until(lambda: seen.events == 3)
            peer.reset()
        async with asyncio.timeout(2):
            await seen.gone.wait()
        loads = "/get_load" if version == "0.5.6" else "/v1/loads"
        asked = rig.engine.calls[loads]
        await rig.engine.until(lambda: rig.engine.calls[loads] >= asked + 3)
        assert rig.reserved == 20 + 9 + 1
        assert (await rig.status())["abandoned"] == 1
        hold.set()
        await rig.until(lambda: rig.reserved == 0)


async def test_others_go_on_when_one_leaves(rig) -> None:
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=4, hold=hold, hold_at=2)
    asked = [asyncio.ensure_future(rig.chat(stream=True, max_tokens=4)) for _ in range(3)]
    async with rig.socket() as peer:
        await rig.engine.arrived(3)
        await peer.send(request(TEXT, IDS))
        seen = await rig.engine.arrived(4)
        peer.reset()
        await seen.ended.wait()
    hold.set()
    for got in await asyncio.gather(*asked):
        assert got.body.endswith(b"data: [DONE]\n\n")


async def test_a_client_with_a_second_request_in_the_pipe_is_seen_to_leave(rig) -> None:
    """Class F: unread bytes on its connection hide nothing."""
    rig.engine.default = Behaviour(never=True)
    async with rig.socket() as peer:
        await peer.send(request(TEXT, IDS) * 3)
        seen = await rig.engine.arrived()
        peer.reset()
        async with asyncio.timeout(1):
            await seen.ended.wait()
    assert len(rig.engine.seen) == 1
    assert rig.handled == 1


async def test_pipelined_requests_are_answered_in_order(rig) -> None:
    async with rig.socket() as peer:
        bodies = [IDS | {"max_tokens": n} for n in (3, 1, 2)]
        await peer.send(b"".join(request(TEXT, body) for body in bodies))
        for body in bodies:
            status, fields = await peer.head()
            answer = json.loads(await peer.reader.readexactly(int(fields["content-length"])))
            assert status == 200
            assert answer["usage"]["completion_tokens"] == body["max_tokens"]


async def test_a_kept_connection_carries_one_request_after_the_other(rig) -> None:
    async with rig.socket() as peer:
        for n in range(1, 20):
            await peer.send(request(TEXT, IDS | {"max_tokens": n % 5 + 1}))
            status, fields = await peer.head()
            await peer.reader.readexactly(int(fields["content-length"]))
            assert status == 200
    assert rig.app.fleet.backends["gpu0"].client.stats.created <= 4


async def test_ninety_lives_at_random(rig) -> None:
    """Class G: clients come, leave and break, the server is full and resets; nothing is left."""
    dice = random.Random(7)

    def behave(seen) -> Behaviour:
        roll = dice.random()
        if roll < 0.1:
            return queue_full()
        if roll < 0.15 and len(rig.engine.seen) > 20:
            return Behaviour(tokens=5, close_at=2)
        return Behaviour(tokens=dice.randrange(1, 30), gap_s=dice.choice([0, 0.002]))

    rig.engine.script = behave
    handler.PAUSE_S, kept = 0.02, handler.PAUSE_S

    async def one() -> None:
        await asyncio.sleep(dice.random() * 0.5)
        body = {"prompt": [1] * dice.randrange(1, 400), "max_tokens": dice.randrange(1, 600)}
        async with rig.socket() as peer:
            await peer.send(
                request(TEXT, body | {"stream": dice.random() < 0.6}, "connection: close")
            )
            if dice.random() < 0.4:
                await asyncio.sleep(dice.random() * 0.1)
                peer.reset()
            else:
                async with asyncio.timeout(15):
                    await peer.rest()

    try:
        await asyncio.gather(*(one() for _ in range(90)))
    finally:
        handler.PAUSE_S = kept
    await rig.until(lambda: rig.handled == len(rig.records), 5)
