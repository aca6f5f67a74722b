"""A server that dies: what had not started goes on, what had ends once, and the books are right."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gateway.core import quarantine
from gateway.edge import backends, handler
from gateway.upstream import reply
from gateway.upstream.life import Pace
from tests.edge.rig import CHAT, GENERATE, TEXT, chat, events, request
from tests.edge.test_streams import STREAM_HEAD
from tests.fakes.behaviour import Behaviour
from tests.fakes.profile import Start
from tests.fakes.sglang import FakeSGLang

IDS = {"prompt": [1] * 20, "max_tokens": 5}
BODIES: dict[str, Any] = {CHAT: chat(max_tokens=5), TEXT: IDS, GENERATE: {"text": "a b"}}


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.02)
    pace = partial(Pace, backoff_s=(0.02, 0.1), loads_s=0.1)
    monkeypatch.setattr(backends, "Pace", pace)
    monkeypatch.setattr(reply, "_RACE_S", -1.0)  # a reset on a kept connection is no lost race


def ask(rig, path: str = TEXT, **fields: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(rig.post(path, BODIES[path] | fields))


def deaths_of(rig) -> int:
    released = rig.app.metrics.registry.get_sample_value
    return int(released("kvgate_released_total", {"backend": "gpu0", "why": "voided"}) or 0)


# ---- what had not started ----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])
async def test_what_had_not_been_answered_is_answered_by_the_next_start(
    rig, path: str, stream: bool
) -> None:
    """Class D: nothing is lost that had not started. The client sees one good answer."""
    rig.engine.queue.append(Behaviour(never=True))
    asked = ask(rig, path, stream=stream)
    await rig.engine.arrived()
    await rig.engine.die()
    await rig.until(lambda: deaths_of(rig) == 1, 5)
    assert rig.reserved == 0, "written off at once, not at the next start"
    await rig.queued(1)
    await rig.engine.revive()
    got = await asked
    assert got.status == 200
    assert b"error" not in got.body
    record = rig.records[0]
    assert (record["outcome"], record["attempts"]) == ("completed", 2)
    first, second = (str(seen.body["rid"]) for seen in rig.engine.seen)
    assert first != second


async def test_a_restart_so_quick_that_the_door_was_never_shut(rig) -> None:
    """Another process behind the door is as good as none: the reservation goes with the old one."""
    rig.engine.queue.append(Behaviour(never=True))
    asked = ask(rig)
    await rig.engine.arrived()
    await rig.engine.die()
    await rig.engine.revive()
    assert (await asked).status == 200
    assert deaths_of(rig) == 1
    (backend,) = (await rig.status())["backends"]
    assert backend["starts"] == 2


STREAM = STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n"
HALF_AN_EVENT = STREAM + b'8\r\ndata: {"\r\n'
HEAD_OF_A_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"


@pytest.mark.parametrize(
    ("stream", "raw"), [(True, STREAM), (True, HALF_AN_EVENT), (False, HEAD_OF_A_WHOLE)]
)
async def test_an_answer_that_had_begun_for_us_and_not_for_the_client_may_go_again(
    rig, stream: bool, raw: bytes
) -> None:
    """A head came, and half an event: no byte of it has gone on."""
    rig.engine.queue.append(Behaviour(raw=raw, hold=asyncio.Event(), hold_at=1))
    asked = ask(rig, CHAT, stream=stream)
    seen = await rig.engine.arrived()
    await rig.until(
        lambda: any(f.reply and f.reply.status for f in rig.app.reaper._running.values())
    )
    await rig.engine.die()
    assert seen.how == "broken"
    await rig.engine.revive()
    got = await asked
    assert got.status == 200
    assert b"error" not in got.body


async def test_places_are_kept(rig) -> None:
    """Those put back go before those that came later, in their old order."""
    rig.engine.default = Behaviour(never=True)
    big = {"prompt": [1] * 20, "max_tokens": 900}
    asked = []
    for number in range(2):  # one after the other: two connections at once may come in any order
        asked.append(asyncio.ensure_future(rig.post(TEXT, big | {"user": str(number)})))
        await rig.engine.arrived(number + 1)
    late = asyncio.ensure_future(rig.post(TEXT, big | {"user": "2"}))
    await rig.queued(1)
    await rig.engine.die()
    await rig.queued(3)
    rig.engine.default = Behaviour(tokens=1)
    await rig.engine.revive(max_running=1)
    assert {got.status for got in await asyncio.gather(*asked, late)} == {200}
    assert [seen.body["user"] for seen in rig.engine.seen] == ["0", "1", "0", "1", "2"]


async def test_a_server_that_lives_is_not_asked_again(rig) -> None:
    """A reset under a request of a living server: the engine may be at it, so the client is told."""
    rig.engine.default = Behaviour(reset_at=0, head_delay_s=0.02)
    got = await rig.post(TEXT, IDS)
    assert (got.status, got.code) == (502, "upstream_error")
    assert len(rig.engine.seen) <= 2, "once more at most, where the connection had been kept"
    assert deaths_of(rig) == 0
    (backend,) = (await rig.status())["backends"]
    assert backend["starts"] == 1


async def test_the_wait_for_a_verdict_ends_with_the_queue_s_time(start) -> None:
    """A door that neither answers nor shuts: the client hears of it when its time is over."""
    async with start({"queue": {"max_wait_s": 0.5}}) as rig:
        rig.engine.queue.append(Behaviour(never=True))
        asked = ask(rig)
        seen = await rig.engine.arrived()
        rig.engine.mute()
        seen.wire.reset()
        got = await asked
        assert (got.status, got.code) == (502, "upstream_error")
        rig.engine.unmute()
        await rig.ready()


async def test_a_server_that_does_not_come_back_costs_the_queue_s_time(start) -> None:
    async with start({"queue": {"max_wait_s": 0.6}}) as rig:
        rig.engine.queue.append(Behaviour(never=True))
        asked = ask(rig)
        await rig.engine.arrived()
        await rig.engine.die()
        got = await asked
        assert (got.status, got.code) == (503, "queue_timeout")
        assert 1 <= int(got.headers["retry-after"]) <= 60
        await rig.engine.revive()
        await rig.until(lambda: rig.app.fleet.any_ready, 5)


@pytest.mark.parametrize("phase", ["before the verdict", "in the queue again"])
async def test_a_client_that_leaves_meanwhile_is_not_sent_again(rig, phase: str) -> None:
    rig.engine.queue.append(Behaviour(never=True))
    async with rig.socket() as peer:
        await peer.send(request(TEXT, IDS))
        seen = await rig.engine.arrived()
        if phase == "before the verdict":
            rig.engine.mute()
            seen.wire.reset()
            await rig.until(lambda: not rig.app.fleet.any_ready)
        else:
            await rig.engine.die()
            await rig.queued(1)
        peer.reset()
        await rig.until(lambda: len(rig.records) == 1)
    assert rig.records[0]["outcome"] == "cancelled"
    if phase == "before the verdict":
        await rig.engine.die()
    await rig.engine.revive()
    await rig.until(lambda: rig.app.fleet.any_ready, 5)
    assert len(rig.engine.seen) == 1


async def test_a_gate_that_drains_sends_nothing_again(start) -> None:
    async with start({"drain_s": 5}, quiet=False) as rig:
        rig.engine.queue.append(Behaviour(never=True))
        asked = ask(rig)
        await rig.engine.arrived()
        stopping = rig.stop()
        await rig.until(lambda: rig.app.draining.begun)
        await rig.engine.die()
        got = await asked
        assert (got.status, got.code) == (503, "draining")
        assert (await stopping).cut == 0


async def test_what_no_longer_fits_is_refused_with_the_new_numbers(rig) -> None:
    rig.engine.default = Behaviour(never=True)
    large = asyncio.ensure_future(rig.post(TEXT, {"prompt": [1] * 1200, "max_tokens": 5}))
    small = asyncio.ensure_future(rig.post(TEXT, {"prompt": [1] * 20, "max_tokens": 780}))
    await rig.engine.arrived(2)
    await rig.engine.die()
    rig.engine.default = Behaviour(tokens=2)
    await rig.engine.revive(pool=600)
    refused, served = await large, await small
    assert (refused.status, refused.code) == (400, "context_length_exceeded")
    assert refused.error["available"] < 600
    assert served.status == 200
    assert served.headers["x-kvgate-clamped-from"] == "780"
    assert rig.engine.seen[-1].body["max_tokens"] < 600


async def test_another_server_takes_over_what_had_not_started(tmp_path, start) -> None:
    """It does not wait for the dead one to come back."""
    async with FakeSGLang() as other:
        backends = [{"url": other.url, "name": "gpu1"}]
        async with start({"more": backends}) as rig:
            await rig.until(lambda: all(one.ready for one in rig.app.fleet))
            rig.engine.default = other.default = Behaviour(never=True)
            asked = [ask(rig, user=str(n)) for n in range(4)]
            await rig.until(lambda: len(rig.engine.seen) + len(other.seen) == 4)
            rig.engine.default = other.default = Behaviour(tokens=2)
            mine = [seen.body["user"] for seen in rig.engine.seen]
            assert mine
            await rig.engine.die()
            await asyncio.gather(*(asked[int(n)] for n in mine))
            again = {seen.body["user"] for seen in other.seen[4 - len(mine) :]}
            assert again == set(mine)
            for seen in other.seen[: 4 - len(mine)]:
                seen.abort.set()
            assert {got.status for got in await asyncio.gather(*asked)} == {200}
            await rig.engine.revive()
            await rig.until(lambda: all(one.ready for one in rig.app.fleet), 5)


# ---- what had started --------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])
async def test_each_started_stream_ends_once_and_truthfully(rig, path: str) -> None:
    rig.engine.default = Behaviour(tokens=9, hold=asyncio.Event(), hold_at=3)
    asked = [ask(rig, path, stream=True, user=str(n)) for n in range(3)]
    await rig.engine.arrived(3)
    await rig.until(lambda: all(seen.events == 3 for seen in rig.engine.seen))
    rig.engine.default = Behaviour(tokens=2)
    await rig.engine.die()
    for got in await asyncio.gather(*asked):
        assert got.status == 200
        assert b"[DONE]" not in got.body
        found = events(got.body)
        assert [event["error"]["code"] for event in found if "error" in event] == ["upstream_error"]
        assert "error" in found[-1]
    await rig.until(lambda: rig.reserved == 0, 5)
    assert deaths_of(rig) == 3, "each reservation written off, once"
    assert {record["outcome"] for record in rig.records} == {"failed"}
    await rig.engine.revive()
    await rig.until(lambda: rig.app.fleet.any_ready, 5)
    assert len(rig.engine.seen) == 3, "never sent again after a byte"


async def test_a_machine_that_falls_silent_and_is_replaced_frees_those_that_wait(rig) -> None:
    """No reset ever comes: the new process behind the door is the proof, and they are told."""
    rig.engine.queue.append(Behaviour(tokens=9, hold=asyncio.Event(), hold_at=2))
    rig.engine.queue.append(Behaviour(never=True))
    stream = ask(rig, CHAT, stream=True)
    await rig.engine.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 2)
    unsent = ask(rig)
    await rig.engine.arrived(2)
    rig.engine.profile = replace(rig.engine.profile, pool=4096)  # same sockets, another process
    rig.engine.start = Start.of(rig.engine.profile)
    broken, served = await stream, await unsent
    assert events(broken.body)[-1]["error"]["message"].startswith("The answer broke off")
    assert served.status == 200


async def test_a_grant_that_is_written_off_before_it_is_written_is_never_sent(
    rig, monkeypatch
) -> None:
    """Between the grant and the first byte lies a connect: who dies in it takes the reservation."""
    pool_of = rig.app.fleet.backends["gpu0"].client
    connect, reached, go_on = pool_of._connect, asyncio.Event(), asyncio.Event()

    async def slowly(*, sent: bool) -> Any:
        connection = await connect(sent=sent)
        if not go_on.is_set():
            reached.set()
            await go_on.wait()
        return connection

    monkeypatch.setattr(pool_of, "_connect", slowly)
    monkeypatch.setattr(pool_of, "_take_idle", lambda: None)
    asked = ask(rig)
    await reached.wait()
    pool = rig.app.fleet.backends["gpu0"].pools[0]
    rig.app.gate.void(pool)
    held_at_write = []
    rig.engine.script = lambda seen: held_at_write.append(rig.reserved)
    go_on.set()
    assert (await asked).status == 200
    assert held_at_write == [26], "sent once, and with a reservation"


async def test_a_client_that_leaves_during_the_connect_was_never_sent(rig, monkeypatch) -> None:
    pool_of = rig.app.fleet.backends["gpu0"].client
    reached = asyncio.Event()

    async def never(*, sent: bool) -> Any:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(pool_of, "_take_idle", lambda: None)
        patch.setattr(pool_of, "_connect", never)
        async with rig.socket() as peer:
            await peer.send(request(TEXT, IDS))
            await reached.wait()
            peer.reset()
            await rig.until(lambda: rig.reserved == 0)
    assert rig.engine.aborts == []
    released = rig.app.metrics.registry.get_sample_value
    assert released("kvgate_released_total", {"backend": "gpu0", "why": "unsent"}) == 1
    await rig.until(lambda: len(rig.records) == 1)


async def test_sixty_lives_and_three_deaths_at_random(rig, monkeypatch) -> None:
    """Class G: whatever dies when, each request has one end, and nothing is left in any book."""
    monkeypatch.setattr(quarantine, "HOLD_S", 0.05)  # three deaths are a crash loop
    dice = random.Random(11)

    def behave(_seen) -> Behaviour:
        return Behaviour(tokens=dice.randrange(1, 30), gap_s=dice.choice([0, 0.002, 0.01]))

    rig.engine.script = behave
    statuses = []

    async def one(number: int) -> None:
        await asyncio.sleep(dice.random() * 2.5)
        body = {"prompt": [1] * dice.randrange(1, 400), "max_tokens": dice.randrange(1, 600)}
        body |= {"stream": dice.random() < 0.5, "user": str(number)}
        async with rig.socket() as peer:
            await peer.send(request(TEXT, body, "connection: close"))
            if dice.random() < 0.25:
                await asyncio.sleep(dice.random() * 0.2)
                peer.reset()
                return
            async with asyncio.timeout(20):
                answer = await peer.rest()
            statuses.append((body["stream"], answer))

    async def fate() -> None:
        for _ in range(3):
            await asyncio.sleep(0.3 + dice.random() * 0.3)
            await rig.engine.die()
            if dice.random() < 0.5:
                await asyncio.sleep(dice.random() * 0.6)
            await rig.engine.revive(pool=dice.choice([2048, 1536]))
            await rig.until(lambda: rig.app.fleet.any_ready, 10)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fate())
        for number in range(60):
            tasks.create_task(one(number))
    await rig.until(lambda: rig.handled == len(rig.records), 5)
    for streamed, answer in statuses:
        status = int(answer.split(b" ", 2)[1])
        assert status in (200, 400, 503), answer[:200]
        assert status != 400 or b'"quarantined"' in answer, "a bystander of two deaths"
        ends = answer.count(b"[DONE]") + answer.count(b'"code":"upstream_error"')
        assert ends == (1 if streamed and status == 200 else 0)
