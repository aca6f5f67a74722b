"""Going down: what runs may finish; what does not is told so, aborted, and counted when it has ended."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.edge.rig import CHAT, GENERATE, TEXT, chat, events, request
from tests.fakes.behaviour import Behaviour

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
BODIES: dict[str, Any] = {
    CHAT: chat(max_tokens=9),
    TEXT: {"prompt": [1] * 20, "max_tokens": 9},
    GENERATE: {"text": "a b", "sampling_params": {"max_new_tokens": 9}},
    MESSAGES: {
        "model": "tiny",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "w w"}],
    },
    RESPONSES: {"model": "tiny", "input": "w w", "max_output_tokens": 9},
}


def drained_of(records: list[dict[str, Any]]) -> int:
    return sum((r["outcome"], r["reason"]) == ("failed", "drained") for r in records)


@pytest.mark.parametrize("path", list(BODIES))
async def test_a_stream_that_is_cut_ends_with_an_error_in_its_dialect(start, path: str) -> None:
    async with start(quiet=False) as rig:
        rig.engine.default = Behaviour(tokens=9, hold=asyncio.Event(), hold_at=2)
        asked = asyncio.ensure_future(rig.post(path, BODIES[path] | {"stream": True}))
        seen = await rig.engine.arrived()
        await rig.engine.until(lambda: seen.events == 2)
        drained = await rig.stop()
        assert (drained.finished, drained.cut) == (0, 1)
        got = await asked
        assert got.status == 200
        assert b"[DONE]" not in got.body
        *begun, last = [event for event in got.body.split(b"\n\n") if event]
        if path == RESPONSES:
            assert last.startswith(b"event: response.failed\n")
            *begun, last = begun
        assert begun, "what it had had stays"
        data = json.loads(last.rpartition(b"data: ")[2])
        assert data["error"]["code"] == "draining"
        assert " in 5 s" in data["error"]["message"], "no header can tell it any more"
        assert data.get("type", "error") == "error"
        async with asyncio.timeout(1):
            await seen.ended.wait()
        assert seen.how == "aborted" or path == MESSAGES  # whose engine is not told an id
        assert drained_of(rig.records) == len(rig.records) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
async def test_what_has_had_no_byte_is_given_a_whole_answer(start, path: str, stream: bool) -> None:
    async with start(quiet=False) as rig:
        rig.engine.default = Behaviour(never=True)
        asked = asyncio.ensure_future(rig.post(path, BODIES[path] | {"stream": stream}))
        await rig.engine.arrived()
        drained = await rig.stop()
        assert (drained.finished, drained.cut) == (0, 1)
        got = await asked
        assert got.status == (529 if path == MESSAGES else 503)
        assert got.code == "draining"
        assert 1 <= int(got.headers["retry-after"]) <= 60
        assert got.headers["x-kvgate-error-source"] == "gateway"
        assert drained_of(rig.records) == 1


async def test_the_limit_holds_whoever_asked(start) -> None:
    """POST /drain cuts as SIGTERM does, and a SIGTERM behind it does not begin anew."""
    async with start({"drain_s": 0.3}, quiet=False) as rig:
        rig.engine.default = Behaviour(tokens=9, hold=asyncio.Event(), hold_at=2)
        asked = asyncio.ensure_future(rig.post(CHAT, BODIES[CHAT] | {"stream": True}))
        seen = await rig.engine.arrived()
        await rig.engine.until(lambda: seen.events == 2)
        assert (await rig.control("/drain", "POST")).status == 200
        async with asyncio.timeout(3):
            got = await asked
        assert events(got.body)[-1]["error"]["code"] == "draining"
        assert (await rig.control("/healthz")).status == 200, "the process stays"
        assert (await rig.control("/drain", "POST")).status == 200
        drained = await rig.stop()
        assert (drained.finished, drained.cut) == (0, 1)
        assert drained_of(rig.records) == 1


async def test_a_balancer_that_asks_the_data_port_is_told_to_send_no_more(start) -> None:
    async with start(quiet=False) as rig:
        url = rig.app.listen_url + "/"
        async with aiohttp.ClientSession() as http:
            for method in ("GET", "HEAD"):
                async with http.request(method, url) as answer:
                    assert answer.status == 200
            assert (await rig.control("/drain", "POST")).status == 200
            for method in ("GET", "HEAD"):
                async with http.request(method, url) as answer:
                    assert answer.status == 503
                    assert int(answer.headers["retry-after"]) >= 1


async def test_half_an_answer_in_one_piece_breaks_visibly(start) -> None:
    half = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"id":'
    async with start(quiet=False) as rig:
        rig.engine.default = Behaviour(raw=half, hold=asyncio.Event(), hold_at=1)
        async with rig.socket() as peer:
            await peer.send(request(TEXT, BODIES[TEXT]))
            status, _ = await peer.head()
            assert status == 200
            drained = await rig.stop()
            rest = await peer.rest()
        assert drained.cut == 1
        assert b"error" not in rest
        assert drained_of(rig.records) == 1


async def test_one_that_waits_with_a_heartbeat_and_one_that_reads_nothing(start) -> None:
    """Whose stream was opened by a beat gets one event; who reads nothing holds nobody up."""
    async with start({"queue": {"heartbeat_s": 1}}, quiet=False) as rig:
        rig.engine.default = Behaviour(tokens=400, pad=60_000, gap_s=0.001)
        async with rig.socket() as deaf:
            body = {"prompt": [1] * 20, "max_tokens": 2000, "stream": True}
            await deaf.send(request(TEXT, body))
            await rig.engine.arrived()
            waits = asyncio.ensure_future(rig.post(TEXT, body))
            await rig.queued()
            await asyncio.wait([waits], timeout=1.2)
            drained = await rig.stop()
            got = await waits
        assert drained.cut == 1, "who waits is refused, not cut"
        assert (got.status, events(got.body)[-1]["error"]["code"]) == (200, "draining")
        assert drained_of(rig.records) == 1


async def test_they_are_counted_when_they_have_ended(start) -> None:
    """One finishes in time, two are cut, one client has left, one body never came."""
    async with start({"drain_s": 0.4}, quiet=False) as rig:
        slow, quick = asyncio.Event(), asyncio.Event()
        for hold in (quick, slow, slow, slow):
            rig.engine.queue.append(Behaviour(tokens=9, hold=hold, hold_at=2))
        asked = []
        for number in range(4):
            body = chat(8, max_tokens=9, stream=True, user=str(number))
            asked.append(asyncio.ensure_future(rig.post(CHAT, body)))
            await rig.engine.arrived(number + 1)
        async with rig.socket() as peer:
            await peer.send(request(CHAT, b"{" + b" " * 99)[:-50])
            await rig.until(lambda: rig.handled == 5)
            stopping = rig.stop()
            await rig.until(lambda: rig.app.draining.begun)
            quick.set()
            asked[3].cancel()
            drained = await stopping
            assert (await peer.head())[0] == 503
        assert (drained.finished, drained.cut) == (2, 2)
        got = await asyncio.gather(*asked[:3])
        assert got[0].body.endswith(b"data: [DONE]\n\n")
        assert [events(one.body)[-1]["error"]["code"] for one in got[1:]] == ["draining"] * 2
        assert drained_of(rig.records) == 3, "and whose body never came"


@pytest.mark.parametrize("admission", ["off", "shadow"])
async def test_nothing_is_cut_early_where_nothing_is_booked(start, admission: str) -> None:
    async with start({"drain_s": 5, "admission": admission}, quiet=False) as rig:
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
        asked = asyncio.ensure_future(rig.chat(max_tokens=2, stream=True))
        await rig.engine.arrived()
        stopping = rig.stop()
        await rig.until(lambda: rig.app.draining.begun)
        await asyncio.wait([stopping], timeout=0.1)
        hold.set()
        drained = await stopping
        assert (drained.finished, drained.cut) == (1, 0)
        assert (await asked).body.endswith(b"data: [DONE]\n\n")


async def test_answers_in_one_piece_survive_the_last_moment_of_draining(start) -> None:
    async with start({"drain_s": 5}, quiet=False) as rig:
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
        asked = asyncio.ensure_future(rig.chat(max_tokens=2))
        await rig.engine.arrived()
        stopping = rig.stop()
        await rig.until(lambda: rig.app.draining.begun)
        hold.set()
        assert (await stopping).cut == 0
        assert (await asked).status == 200


async def test_a_client_that_has_gone_by_then_is_not_written_to(start) -> None:
    async with start(quiet=False) as rig:
        rig.engine.default = Behaviour(tokens=9, hold=asyncio.Event(), hold_at=2)
        asked = asyncio.ensure_future(rig.chat(stream=True, max_tokens=9))
        seen = await rig.engine.arrived()
        await rig.engine.until(lambda: seen.events == 2)
        asked.cancel()
        with pytest.raises((asyncio.CancelledError, aiohttp.ClientError)):
            await asked
        drained = await rig.stop()
        assert drained.cut == 0
        assert [record["outcome"] for record in rig.records] == ["cancelled"]


async def test_from_then_on_each_answer_is_the_last_on_its_connection(start) -> None:
    """Who keeps its connection would be refused here for as long as anything runs, while another gate
    behind the same address answers."""
    async with start(quiet=False) as rig:
        rig.engine.default = Behaviour(tokens=9, hold=(held := asyncio.Event()), hold_at=2)
        async with rig.socket() as runs, rig.socket() as kept:
            await runs.send(request(TEXT, BODIES[TEXT] | {"stream": True}))
            await rig.engine.arrived()
            await kept.send(request("/v1/nothing", {}))
            status, headers = await kept.head()
            assert (status, headers.get("connection")) == (404, None), "so far it is kept"
            await kept.reader.readexactly(int(headers["content-length"]))
            assert (await rig.control("/drain", "POST")).status == 200
            await kept.send(request(TEXT, BODIES[TEXT]))
            status, headers = await kept.head()
            assert (status, headers.get("connection")) == (503, "close")
            async with asyncio.timeout(1):
                assert b"draining" in await kept.reader.read(), "and it ends"
            held.set()
            async with asyncio.timeout(5):
                assert b"[DONE]" in await runs.reader.read(), "what ran is whole, and ends as well"
