"""Streams that have begun and are silent: the engine keeps a tool's arguments back until they are whole."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from gateway.edge import backend, backends
from gateway.upstream import connection
from gateway.upstream.life import Pace
from tests.cases.test_streams import SSE, chunk
from tests.edge.rig import API_CHAT, CHAT, chat, events, lines
from tests.fakes.behaviour import Behaviour
from tests.fakes.typed import MESSAGES

ASK = chat(max_tokens=5, stream=True)
IDLE_S = 0.2
BEAT = b": writing\n\n"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_AGAIN_S", 0.05)
    monkeypatch.setattr(backend, "SETTLE_S", 0.0)
    monkeypatch.setattr(backend, "COUNTED_S", 0.3)
    monkeypatch.setattr(backends, "Pace", partial(Pace, loads_s=0.05))


def limits(answer_s: float) -> dict[str, Any]:
    return {"limits": {"idle_s": IDLE_S, "answer_s": answer_s}}


@pytest.mark.parametrize("admission", ["on", "shadow", "off"])
async def test_a_stream_that_the_engine_still_counts_is_not_cut(start, admission: str) -> None:
    """Thrice its limit: an agent whose long file is cut asks for it again, and is cut again."""
    async with start(limits(answer_s=60) | {"admission": admission}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=4, hold=leave, hold_at=2)
        asked = asyncio.ensure_future(rig.post(CHAT, ASK))
        done, _ = await asyncio.wait([asked], timeout=3 * IDLE_S + 0.4)
        assert not done
        leave.set()
        assert events((await asked).body)[-1] == "[DONE]"
        assert rig.records[0]["outcome"] == "completed"


async def test_each_silence_is_measured_by_itself(start) -> None:
    """Two of half a second, where one may last eight tenths."""
    async with start(limits(answer_s=0.8)) as rig:
        rig.engine.default = Behaviour(tokens=3, gap_s=0.5)
        assert events((await rig.post(CHAT, ASK)).body)[-1] == "[DONE]"


async def test_one_that_the_engine_has_lost_is_cut_soon(start) -> None:
    async with start(limits(answer_s=60), quiet=False) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=4, hold=leave, hold_at=2)
        asked = asyncio.ensure_future(rig.post(CHAT, ASK))
        await rig.until(lambda: rig.engine.seen and rig.engine.seen[0].events == 2)
        lost = list(rig.engine._held)
        rig.engine._held.clear()  # its loads have nothing any more
        async with asyncio.timeout(IDLE_S + 2):
            told = events((await asked).body)
        assert told[-1]["error"]["code"] == "upstream_error"
        rig.engine._held.extend(lost)
        leave.set()
        await rig.at_rest()


async def test_it_ends_after_the_longest_time_for_an_answer(start) -> None:
    """Whatever is counted: somebody else's requests are counted too."""
    async with start(limits(answer_s=0.6)) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=4, hold=leave, hold_at=2)
        began = asyncio.get_running_loop().time()
        told = events((await rig.post(CHAT, ASK)).body)
        assert told[-1]["error"]["code"] == "upstream_error"
        assert asyncio.get_running_loop().time() - began > 0.6
        leave.set()


# ---- what its client hears ---------------------------------------------------------------------


async def heard(rig, path: str, body: Any, behaviour: Behaviour, beats: int, mark: bytes) -> bytes:
    """All of an answer whose server is silent until `mark` has come `beats` times."""
    rig.engine.default = behaviour
    async with rig.http.post(rig.app.listen_url + path, json=body) as answer:
        data = b""
        while data.count(mark) < beats:
            async with asyncio.timeout(3):
                data += await answer.content.readany()
        assert behaviour.hold is not None
        behaviour.hold.set()
        return data + await answer.read()


def texts(data: bytes) -> list[Any]:
    return [one if one == "[DONE]" else one["choices"] for one in events(data)]


async def test_it_beats_between_events_and_nothing_else_differs(start) -> None:
    async with start() as rig:
        rig.engine.default = Behaviour(tokens=4)
        plain = (await rig.post(CHAT, ASK)).body
    async with start({"queue": {"heartbeat_s": 0.05}}) as rig:
        stops = Behaviour(tokens=4, hold=asyncio.Event(), hold_at=2)
        data = await heard(rig, CHAT, ASK, stops, 3, BEAT)
        assert texts(data.replace(BEAT, b"")) == texts(plain)
        before, _, after = data.partition(BEAT)
        assert before.endswith(b"\n\n"), "never inside an event"
        assert after.rstrip(b"\n").endswith(b"data: [DONE]")


async def test_it_does_not_beat_inside_an_event(start) -> None:
    """Half an event with a comment behind it would be read as one."""
    async with start({"queue": {"heartbeat_s": 0.05}}) as rig:
        half = chunk("one") + chunk("two")[:30]
        leave = asyncio.Event()
        rig.engine.default = Behaviour(raw=SSE + half, hold=leave, hold_at=1)
        async with rig.http.post(rig.app.listen_url + CHAT, json=ASK) as answer:
            assert await answer.content.readexactly(len(half)) == half
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await answer.content.readany()
            leave.set()
            rest = await answer.read()
        assert BEAT not in rest
        assert b'"error"' in rest


async def test_messages_get_a_ping_and_ollama_an_empty_piece(start) -> None:
    turns = [{"role": "user", "content": "a b c"}]
    async with start({"queue": {"heartbeat_s": 0.05}}) as rig:
        stops = Behaviour(tokens=4, hold=asyncio.Event(), hold_at=2)
        ask = {"model": "tiny", "messages": turns, "max_tokens": 5, "stream": True}
        data = await heard(rig, MESSAGES, ask, stops, 2, b"event: ping\n")
        assert data.count(b"event: message_stop") == 1
        stops = Behaviour(tokens=4, hold=asyncio.Event(), hold_at=2)
        ask = {"model": "tiny", "messages": turns, "options": {"num_predict": 5}}
        data = await heard(rig, API_CHAT, ask, stops, 2, b'"content":""},"done":false}\n')
        told = lines(data)
        assert told[-1]["done"]
        assert sum(bool(line["message"]["content"]) for line in told) == 4


async def test_what_passes_undecided_is_known_by_its_sequences(start) -> None:
    """The engine's count has each of them in it."""
    async with start({"admission": "off"}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        asked = asyncio.ensure_future(rig.post(CHAT, chat(max_tokens=5, stream=True, n=3)))
        await rig.engine.arrived()
        assert rig.app.fleet.backends["gpu0"].sequences == 3
        leave.set()
        assert (await asked).status == 200
        assert rig.app.fleet.backends["gpu0"].sequences == 0
