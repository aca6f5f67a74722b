"""Anthropic's messages: forwarded as they came, told apart in their own words, counted for nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.edge import handler, reaper
from tests.edge.rig import COUNT
from tests.edge.test_refusals import Busy
from tests.fakes.behaviour import Behaviour, queue_full, refuse
from tests.fakes.typed import MESSAGES

TOOLS = [{"name": "read", "description": "reads a file", "input_schema": {"type": "object"}}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def message(words: int = 16, **fields: Any) -> dict[str, Any]:
    content = " ".join(["w"] * words)
    turns = [{"role": "user", "content": content}]
    return {"model": "tiny", "messages": turns, "max_tokens": 5, **fields}


def told(body: bytes) -> list[Any]:
    """(name, data) of each event."""
    found = []
    for event in body.split(b"\n\n"):
        if event.startswith(b"event: "):
            name, data = event.split(b"\n")
            found.append((name.decode()[7:], json.loads(data.removeprefix(b"data: "))))
    return found


def error_of(got: Any) -> Any:
    """The error of a body in Anthropic's shape."""
    body = got.json()
    assert body["type"] == "error"
    return body["error"]


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_forwarded_and_its_usage_is_read(rig, stream: bool) -> None:
    system = [{"type": "text", "text": "be brief"}]
    thinking = {"type": "enabled", "budget_tokens": 2048}
    asked = message(tools=TOOLS, system=system, thinking=thinking, stream=stream, rid="a", x=1)
    got = await rig.post(MESSAGES + "?beta=true", asked)
    assert got.status == 200, got.body
    seen = rig.engine.seen[0]
    assert seen.received.path == MESSAGES
    assert seen.body == {key: value for key, value in asked.items() if key != "rid"}
    record = rig.records[0]
    assert (record["dialect"], record["streamed"], record["outcome"]) == (
        "messages",
        stream,
        "completed",
    )
    assert record["prompt_tokens"] == record["usage_prompt_tokens"] == sum(seen.job.prompts)
    assert (record["output_tokens"], got.headers["x-kvgate-max-tokens"]) == (5, "5")
    accuracy = rig.app.fleet.backends["gpu0"].counter.accuracy
    assert (accuracy.requests, accuracy.exact) == (1, 1)
    if stream:
        assert told(got.body)[-1] == ("message_stop", {"type": "message_stop"})


async def test_earlier_thoughts_are_counted_and_compared_with_nothing(rig) -> None:
    """A server without a reasoning parser drops them: its number would make all others doubted."""
    thought = {"type": "thinking", "thinking": "a b c d", "signature": "s"}
    turns = [{"role": "assistant", "content": [thought]}, {"role": "user", "content": "e"}]
    await rig.post(MESSAGES, message(messages=turns))
    assert rig.records[0]["count_method"] == "estimate"
    assert rig.records[0]["prompt_tokens"] > 8 + 4
    accuracy = rig.app.fleet.backends["gpu0"].counter.accuracy
    assert (accuracy.requests, accuracy.margin) == (0, 0)


async def test_images_are_priced(rig) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    turns = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    got = await rig.post(MESSAGES, message(messages=turns))
    assert got.status == 400, "an image of unknown price is taken for the largest there is"
    assert error_of(got)["code"] == "context_length_exceeded"


async def test_a_refusal_is_in_its_own_shape(rig) -> None:
    got = await rig.post(MESSAGES, message(3000))
    error = error_of(got)
    assert got.status == 400
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert (error["needed"], error["available"]) == (3004, 2041)
    assert got.headers["x-should-retry"] == "false"
    got = await rig.post(MESSAGES, {"model": "tiny", "max_tokens": 5, "messages": []})
    assert (got.status, error_of(got)["param"]) == (400, "messages")
    got = await rig.post(MESSAGES, b"{")
    assert (got.status, error_of(got)["type"]) == (400, "invalid_request_error")


async def test_overload_is_429_or_529_with_a_time(start) -> None:
    async with start({"queue": {"max_requests": 1}}) as rig:
        async with Busy(rig):
            waiting = asyncio.ensure_future(rig.post(MESSAGES, message()))
            await rig.queued()
            got = await rig.post(MESSAGES, message())
            assert (got.status, error_of(got)["type"]) == (429, "rate_limit_error")
            assert error_of(got)["code"] == "queue_full"
            assert 1 <= int(got.headers["retry-after"]) <= 60
        assert (await waiting).status == 200
        await rig.control("/drain", "POST")
        got = await rig.post(MESSAGES, message())
        assert (got.status, error_of(got)["type"]) == (529, "overloaded_error")
        assert error_of(got)["code"] == "draining"
        assert 1 <= int(got.headers["retry-after"]) <= 60


async def test_an_unknown_key_is_an_authentication_error(start, tmp_path) -> None:
    (tmp_path / "key").write_text("sk-abcdefghijklmnop")
    clients = [{"name": "a", "key_file": "key"}]
    async with start({"clients": clients}) as rig:
        for path in (MESSAGES, COUNT):
            got = await rig.post(path, message(), headers={"x-api-key": "no"})
            assert (got.status, error_of(got)["type"]) == (401, "authentication_error")
            got = await rig.post(path, message(), headers={"x-api-key": "sk-abcdefghijklmnop"})
            assert got.status == 200


async def test_a_full_queue_of_the_engine_is_waited_out(rig, monkeypatch) -> None:
    """It is told inside a 200, after the event that every stream begins with."""
    monkeypatch.setattr(handler, "PAUSE_S", 0.01)
    rig.engine.queue.append(queue_full())
    got = await rig.post(MESSAGES, message(stream=True))
    assert [name for name, _ in told(got.body)].count("message_start") == 1
    assert told(got.body)[-1][0] == "message_stop"
    assert (len(rig.engine.seen), rig.records[0]["attempts"]) == (2, 2)


async def test_an_error_before_any_text_gets_its_status(rig) -> None:
    events = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":0}}}\n\n'
        b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error","message":"no such"}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    rig.engine.queue.append(Behaviour(raw=head + events))
    got = await rig.post(MESSAGES, message(stream=True))
    assert (got.status, error_of(got)["type"]) == (400, "invalid_request_error")
    assert error_of(got)["message"] == "no such"
    assert got.headers["x-kvgate-error-source"] == "upstream"


async def test_the_engines_own_refusal_passes_as_it_is(rig) -> None:
    rig.engine.queue.append(refuse(400, "thinking.budget_tokens must be >= 1024"))
    got = await rig.post(MESSAGES, message(stream=True))
    assert (got.status, error_of(got)["message"]) == (400, "thinking.budget_tokens must be >= 1024")
    assert rig.records[0]["outcome"] == "completed", "a client's mistake is no failure of a server"


@pytest.mark.parametrize("how", ["reset_at", "close_at"])
async def test_a_stream_that_breaks_ends_with_one_error_event(rig, how: str) -> None:
    rig.engine.queue.append(Behaviour(tokens=5, **{how: 2}))
    events = told((await rig.post(MESSAGES, message(stream=True))).body)
    names = [name for name, _ in events]
    assert names[-1] == "error"
    assert (names.count("error"), "message_stop" in names) == (1, False)
    assert events[-1][1]["type"] == "error"
    assert events[-1][1]["error"]["type"] == "api_error"
    assert rig.records[0]["outcome"] == "failed"


async def test_a_stream_that_waits_gets_pings(start) -> None:
    async with start({"queue": {"heartbeat_s": 0.02}}) as rig:
        async with Busy(rig) as busy:
            url = rig.app.listen_url + MESSAGES
            async with rig.http.post(url, json=message(stream=True)) as answer:
                ping = b'event: ping\ndata: {"type": "ping"}\n\n'
                assert await answer.content.readexactly(2 * len(ping)) == 2 * ping
                busy.hold.set()
                names = [name for name, _ in told(await answer.read())]
        assert next(name for name in names if name != "ping") == "message_start"
        assert names[-1] == "message_stop"


async def test_a_stream_that_waited_too_long_is_told_inside_it(start) -> None:
    policy = {"queue": {"heartbeat_s": 0.02, "max_wait_s": 0.1}}
    async with start(policy) as rig, Busy(rig):
        got = await rig.post(MESSAGES, message(stream=True))
        events = told(got.body)
        assert (got.status, events[0][0], events[-1][0]) == (200, "ping", "error")
        error = events[-1][1]["error"]
        assert (error["type"], error["code"]) == ("overloaded_error", "queue_timeout")


async def test_a_server_without_the_route_is_told_of(start) -> None:
    async with start(version="0.5.6") as rig:
        got = await rig.post(MESSAGES, message())
        assert (got.status, error_of(got)["type"]) == (404, "not_found_error")
        assert "gpu0 runs SGLang 0.5.6" in error_of(got)["message"]
        assert "0.5.12" in error_of(got)["message"]
        assert rig.engine.seen == []


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_is_hung_up_on_and_its_memory_counts_until_it_is_gone(
    rig, stream: bool
) -> None:
    """No id of ours is in the body, so nothing is aborted by one."""
    rig.engine.default = Behaviour(never=True)
    rig.engine.notice_s = None
    async with rig.socket() as peer:
        data = json.dumps(message(stream=stream)).encode()
        head = f"POST {MESSAGES} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        await peer.send(head.encode() + data)
        seen = await rig.engine.arrived()
        peer.reset()
    await asyncio.wait_for(seen.gone.wait(), 2)
    assert rig.engine.aborts == []
    assert rig.reserved > 0
    assert rig.app.reaper.dying == 1
    seen.abort.set()  # the engine notices
    await rig.at_rest(reaper.DRAIN_S + 2)


async def test_its_rank_is_told_in_a_header(start) -> None:
    async with start(dp=2) as rig:
        for _ in range(2):
            await rig.post(MESSAGES, message())
        sent = {seen.headers.get("x-data-parallel-rank") for seen in rig.engine.seen}
        ranks = {str(record["rank"]) for record in rig.records}
        assert sent == ranks <= {"0", "1"}
        got = await rig.post("/v1/embeddings", {"input": "a"})
        assert got.status == 404
        assert "2 data-parallel ranks" in got.error["message"]


async def test_a_count_is_the_number_that_admission_uses(rig) -> None:
    asked = message(tools=TOOLS, system="be brief")
    counted = await rig.post(COUNT, {key: asked[key] for key in asked if key != "max_tokens"})
    assert counted.status == 200
    assert counted.headers["x-kvgate-count-method"] == "exact"
    await rig.post(MESSAGES, asked)
    assert counted.json() == {"input_tokens": rig.records[0]["prompt_tokens"]}
    assert rig.engine.calls[COUNT] == 0
    assert len(rig.engine.seen) == 1


async def test_a_count_that_is_a_bound_says_so(rig) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://a.example/b.png"}}
    turn = {"role": "user", "content": [image]}
    counted = await rig.post(COUNT, {"model": "tiny", "messages": [turn]})
    assert counted.headers["x-kvgate-count-method"] == "bound"


async def test_a_count_that_can_not_be_made_says_so(start) -> None:
    async with start({"limits": {"body_bytes": 2000}}) as rig:
        for body, status, kind in (
            (b"[", 400, "invalid_request_error"),
            ({"messages": "w"}, 400, "invalid_request_error"),
            ({"messages": [{"role": "user", "content": 7}]}, 400, "invalid_request_error"),
            (message(2000), 413, "request_too_large"),
        ):
            got = await rig.post(COUNT, body)
            assert (got.status, error_of(got)["type"]) == (status, kind)
        await rig.engine.die()
        await rig.until(lambda: not rig.app.fleet.any_ready, 8)
        got = await rig.post(COUNT, message())
        assert (got.status, error_of(got)["type"]) == (529, "overloaded_error")
        assert rig.records == []


async def test_others_run_beside_it_in_one_ledger(rig) -> None:
    """A message waits for what a completion holds."""
    async with Busy(rig) as busy:
        waiting = asyncio.ensure_future(rig.post(MESSAGES, message()))
        await rig.queued()
        assert len(rig.engine.seen) == 1
        busy.hold.set()
        assert (await waiting).status == 200


@pytest.mark.parametrize("field", ["top_p", "top_k"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_parameter_out_of_its_range_is_refused_at_the_door(
    rig, field: str, stream: bool
) -> None:
    """A genuine 0.5.12 has begun its stream when it looks, and breaks it off; others say 400."""
    bad, good = {"top_p": (2, 0.5), "top_k": (-2, -1)}[field]
    got = await rig.post(MESSAGES, message(stream=stream, **{field: bad}))
    assert (got.status, error_of(got)["param"]) == (400, field)
    assert rig.engine.seen == []
    assert (await rig.post(MESSAGES, message(stream=stream, **{field: good}))).status == 200
