"""`queue.heartbeat_s`: a stream that waits is told so, and what comes after is as without it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.edge import handler
from gateway.edge.heartbeat import Heart
from tests.edge.rig import CHAT, GENERATE, TEXT, chat, events, request
from tests.edge.test_cancellation import MOST, Cutter, _ask
from tests.edge.test_refusals import Busy
from tests.fakes.behaviour import Behaviour, queue_full, refuse
from tests.gate.steps import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

BEATS = {"queue": {"heartbeat_s": 0.02}}
BEAT = b": waiting, position 1\n\n"
READS = b": reading the prompt\n\n"
ASK = chat(max_tokens=5, stream=True)


async def first_beat(answer) -> bytes:
    return bytes(await answer.content.readexactly(len(BEAT)))


def asking(rig, path: str = CHAT, body: Any = ASK):
    return rig.http.post(rig.app.listen_url + path, json=body)


@pytest.fixture
def hearts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[object]]:
    """What is going on of hearts now: timers of a first beat that have not been cancelled, and tasks."""
    begun: list[Heart] = []
    beat = Heart.beat

    def noted(self: Heart) -> None:
        begun.append(self)
        beat(self)

    monkeypatch.setattr(Heart, "beat", noted)

    def going() -> list[object]:
        timers = [one._timer for one in begun if one._timer is not None]
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("heartbeat")]
        return [*timers, *tasks]

    return going


def after_beats(data: bytes) -> bytes:
    while data.startswith((BEAT, READS)):
        data = data.removeprefix(BEAT).removeprefix(READS)
    return data


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, ASK), (TEXT, {"prompt": [1] * 9, "max_tokens": 5, "stream": True})]
)
async def test_it_beats_while_it_waits_and_then_the_answer_follows_byte_by_byte(
    start, path: str, body: Any
) -> None:
    async with start(BEATS) as rig:
        raw = b'data: {"choices":[{"index":0,"text":"a","delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        async with Busy(rig) as busy:
            rig.engine.queue.append(Behaviour(raw=head + raw))
            async with asking(rig, path, body) as answer:
                assert answer.status == 200
                assert answer.headers["content-type"] == "text/event-stream"
                assert answer.headers["x-kvgate-prompt-tokens"]
                assert not {"x-kvgate-backend", "x-kvgate-queue-ms"} & set(answer.headers)
                assert await first_beat(answer) == await first_beat(answer) == BEAT
                busy.hold.set()
                assert after_beats(await answer.read()) == raw
        assert [record["outcome"] for record in rig.records] == ["completed"] * 2


async def test_the_place_is_told(start) -> None:
    async with start(BEATS) as rig, Busy(rig) as busy:
        rig.engine.default = Behaviour(tokens=1)
        async with asking(rig) as first:
            await first_beat(first)
            async with asking(rig) as second:
                assert await first_beat(second) == BEAT.replace(b"1", b"2")
                busy.hold.set()
                await second.read()
            await first.read()


async def test_who_need_not_wait_sees_nothing_of_it(start) -> None:
    async with start({"queue": {"heartbeat_s": 10}}) as rig:
        got = await rig.chat(max_tokens=5, stream=True)
        assert got.body.startswith(b"data: ")
        assert got.headers["x-kvgate-backend"] == "gpu0"
        rig.engine.default = refuse(400, "no")
        assert (await rig.chat(max_tokens=5, stream=True)).status == 400


@pytest.mark.parametrize("how", ["answers", "breaks", "refuses"])
async def test_it_beats_while_its_prompt_is_read(start, how: str) -> None:
    """A long prompt is silent for minutes, and what stands between cuts silence after one: H04, H06."""
    async with start(BEATS) as rig:
        leave = asyncio.Event()
        answers = {
            "answers": Behaviour(tokens=2, hold=leave),
            "breaks": Behaviour(hold=leave, error=(500, "boom")),
            "refuses": Behaviour(hold=leave, error=(400, "no")),
        }
        rig.engine.queue.append(answers[how])
        async with asking(rig) as answer:
            assert answer.status == 200
            assert answer.headers["x-kvgate-backend"] == "gpu0", "granted, so it is known"
            assert answer.headers["x-kvgate-max-tokens"] == "5"
            for _ in range(2):
                assert await answer.content.readexactly(len(READS)) == READS
            leave.set()
            data = await answer.read()
        data = after_beats(data)
        assert READS not in data, "none between events"
        assert data.endswith(b"data: [DONE]\n\n") == (how == "answers")
        assert (b'"error"' in data) == (how != "answers")
        await rig.ready()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(max_tokens=5)),
        (GENERATE, {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 5}}),
    ],
)
async def test_others_keep_their_status(start, path: str, body: Any) -> None:
    async with start({"queue": {"heartbeat_s": 0.02, "max_wait_s": 0.1}}) as rig, Busy(rig):
        assert (await rig.post(path, body)).status == 503


async def test_a_refusal_after_a_beat_is_one_event_without_done(start) -> None:
    async with start({"queue": {"heartbeat_s": 0.02, "max_wait_s": 0.1}}) as rig, Busy(rig):
        async with asking(rig) as answer:
            data = await answer.read()
        assert data.startswith(BEAT)
        (event,) = events(after_beats(data))
        assert event["error"]["code"] == "queue_timeout"
        record = rig.records[0]
        assert (record["outcome"], record["code"]) == ("evicted", "queue_timeout")


@pytest.mark.parametrize(
    "engine", [refuse(400, "the engine says no"), Behaviour(raw=b"no HTTP\r\n\r\n")]
)
async def test_an_error_of_the_engine_after_a_beat_is_one_event(start, engine) -> None:
    async with start(BEATS) as rig, Busy(rig) as busy:
        rig.engine.queue.append(engine)
        async with asking(rig) as answer:
            await first_beat(answer)
            busy.hold.set()
            (event,) = events(after_beats(await answer.read()))
            assert event["error"]["message"]
            if engine.error:
                assert event["error"]["message"] == "the engine says no"


async def test_the_heart_of_a_client_that_leaves_stops_at_once(start, hearts) -> None:
    """Not at its next beat: a crowd that gave up would be kept in memory for as long."""
    async with start({"queue": {"heartbeat_s": 3600}}) as rig, Busy(rig):
        asked = asyncio.ensure_future(rig.post(CHAT, ASK))
        await rig.queued()
        assert hearts()
        asked.cancel()
        await rig.until(lambda: rig.app.gate.view().queue.requests == 0)
        await rig.until(lambda: not hearts())


async def test_a_client_that_leaves_while_it_beats_leaves_the_queue(start) -> None:
    async with start(BEATS) as rig, Busy(rig):
        async with rig.socket() as peer:
            await peer.send(request(CHAT, ASK))
            await peer.head()
            await peer.reader.readuntil(BEAT)
            await rig.queued()
            peer.reset()
            await rig.queued(0)
        await rig.until(lambda: rig.records)
        assert rig.records[0]["outcome"] == "cancelled"


async def test_what_the_engine_pushed_back_beats(start, monkeypatch) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.1)
    async with start(BEATS) as rig:
        rig.engine.default = Behaviour(tokens=2)
        rig.engine.queue.append(queue_full())
        async with asking(rig) as answer:
            assert await first_beat(answer) == BEAT
            assert "x-kvgate-backend" not in answer.headers
            assert events(after_beats(await answer.read()))[-1] == "[DONE]"
        assert rig.records[0]["attempts"] == 2


async def test_what_is_put_back_after_a_death_beats_on(start) -> None:
    async with start(BEATS) as rig:
        pool = rig.app.fleet.backends["gpu0"].pools[0]
        died = asyncio.Event()

        def dies(_: Any) -> Behaviour:
            """The server is written off when it has the request, and takes no other."""
            rig.app.gate.void(pool)
            rig.app.gate.set_open(pool, is_open=False)
            rig.engine.script = lambda _: None
            died.set()
            return Behaviour(reset_at=0)

        async with Busy(rig) as busy, asking(rig) as answer:
            await first_beat(answer)
            rig.engine.script = dies
            busy.hold.set()
            await busy.running
            await died.wait()
            await rig.queued()
            for _ in range(8):  # more than can have been on the way
                assert await first_beat(answer) == BEAT
            rig.app.gate.set_open(pool, is_open=True)
            assert events(after_beats(await answer.read()))[-1] == "[DONE]"
        assert rig.records[0]["attempts"] > 1


@pytest.mark.parametrize("late", [False, True])
async def test_cancelled_at_every_await_it_leaves_nothing(start, monkeypatch, late: bool) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.03)
    async with start({"queue": {"heartbeat_s": 0.01}}) as rig:
        cutter = Cutter(rig, late=late)
        cuts = 0
        for cutter.at in range(1, MOST):
            rig.engine.queue.append(queue_full())
            rig.engine.default = Behaviour(tokens=3, gap_s=0.003)
            await _ask(rig, CHAT, ASK)
            await rig.at_rest()
            await rig.until(lambda: not beating())
            rig.engine.queue.clear()
            if cutter.outcome is not Cancelled:
                break
            cuts += 1
        assert 2 < cuts < MOST - 2, "from the first await to the last"


def beating() -> bool:
    return any(task.get_name().startswith("heartbeat") for task in asyncio.all_tasks())
