"""The fake engine does what its tests-to-be believe it does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.fakes.behaviour import Behaviour, queue_full, refuse
from tests.fakes.sglang import FakeSGLang

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}]}


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def engine():
    async with FakeSGLang() as fake:
        yield fake


def chat(engine: FakeSGLang, http: aiohttp.ClientSession, **fields: Any):
    return http.post(f"{engine.url}/v1/chat/completions", json=CHAT | fields)


async def events(reply: aiohttp.ClientResponse) -> list[Any]:
    text = (await reply.read()).decode()
    datas = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert datas[-1] == "[DONE]"
    return [json.loads(data) for data in datas[:-1]]


async def test_usage_and_tokenize_follow_one_rule(engine, http):
    async with chat(engine, http, max_tokens=5) as reply:
        answer = await reply.json()
    assert answer["usage"] == {
        "prompt_tokens": 3 + 4,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": None,
    }
    assert answer["choices"][0]["finish_reason"] == "length"
    async with http.post(f"{engine.url}/tokenize", json=CHAT) as reply:
        assert (await reply.json())["count"] == 7


async def test_stream_names_the_role_counts_tokens_and_ends(engine, http):
    options = {"include_usage": True}
    async with chat(engine, http, stream=True, max_tokens=50, stream_options=options) as reply:
        got = await events(reply)
    assert got[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [e["choices"][0]["finish_reason"] for e in got[1:-1]] == [None] * 8 + ["stop"]
    assert got[-1]["usage"]["completion_tokens"] == 8
    assert engine.seen[0].how == "finished"


async def test_prompts_times_n_sequences(engine, http):
    body = {"prompt": ["a b", "c"], "n": 2, "max_tokens": 1, "stream": True}
    async with http.post(f"{engine.url}/v1/completions", json=body) as reply:
        got = await events(reply)
    assert [e["choices"][0]["index"] for e in got] == [0, 1, 2, 3] * 2


async def test_generate_repeats_text_so_far(engine, http):
    body = {"text": "a b", "sampling_params": {"max_new_tokens": 2}, "stream": True}
    async with http.post(f"{engine.url}/generate", json=body) as reply:
        got = await events(reply)
    assert [len(e["text"].split()) for e in got] == [1, 2]
    assert got[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


async def test_loads_hold_a_request_until_it_ends(engine, http):
    release = asyncio.Event()
    engine.default = Behaviour(tokens=3, hold=release, hold_at=2)
    async with chat(engine, http, stream=True) as reply:
        await engine.until(lambda: engine.use()[0].used == 7 + 2)
        async with http.get(f"{engine.url}/v1/loads") as loads:
            row = (await loads.json())["loads"][0]
        assert (row["num_running_reqs"], row["num_used_tokens"]) == (1, 9)
        release.set()
        await events(reply)
    await engine.seen[0].ended.wait()
    assert engine.use()[0].running == 0


async def test_abort_matches_by_prefix(engine, http):
    engine.default = Behaviour(hold=asyncio.Event(), hold_at=1)
    replies = [await chat(engine, http, stream=True, rid=rid) for rid in ("abc-1", "abc-2")]
    async with http.post(f"{engine.url}/abort_request", json={"rid": "abc"}) as reply:
        assert reply.status == 200
    for aborted in replies:
        assert (await events(aborted))[-1]["choices"][0]["finish_reason"] == "abort"
    assert engine.aborts == ["abc"]


async def test_notices_when_the_peer_leaves(engine, http):
    engine.default = Behaviour(never=True)
    reply = asyncio.get_running_loop().create_task(chat(engine, http).__aenter__())
    seen = await engine.arrived()
    reply.cancel()
    await seen.ended.wait()
    assert seen.gone.is_set()
    assert seen.how == "abandoned"


async def test_queue_full_is_an_event_on_a_stream_and_a_status_otherwise(engine, http):
    engine.queue.extend([queue_full(), queue_full()])
    async with chat(engine, http) as reply:
        assert (reply.status, (await reply.json())["code"]) == (503, 503)
    async with chat(engine, http, stream=True) as reply:
        assert reply.status == 200
        assert (await events(reply))[0]["error"]["message"] == "The request queue is full."
    async with chat(engine, http) as reply:
        assert reply.status == 200


async def test_refuse_is_a_status_even_on_a_stream(engine, http):
    engine.default = refuse(400, "too long")
    async with chat(engine, http, stream=True) as reply:
        assert (reply.status, (await reply.json())["message"]) == (400, "too long")


@pytest.mark.parametrize("broken", [Behaviour(reset_at=2), Behaviour(close_at=2)])
@pytest.mark.parametrize("stream", [True, False])
async def test_cut_in_the_middle(engine, http, broken, stream):
    engine.default = broken
    async with chat(engine, http, stream=stream) as reply:
        with pytest.raises(aiohttp.ClientError):
            await reply.read()
    await engine.seen[0].ended.wait()
    assert engine.seen[0].how == "broken"
    assert not engine.seen[0].gone.is_set()


async def test_reset_before_the_head(engine, http):
    engine.default = Behaviour(reset_at=0)
    with pytest.raises(aiohttp.ClientError):
        await chat(engine, http)


async def test_raw_bytes_gzip_and_connection_close(engine, http):
    engine.queue.extend(
        [
            Behaviour(raw=b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"),
            Behaviour(gzip=True),
            Behaviour(close_connection=True),
        ]
    )
    async with chat(engine, http) as reply:
        assert reply.status == 204
    async with chat(engine, http) as reply:
        assert reply.headers["content-encoding"] == "gzip"
        assert (await reply.json())["choices"]
    async with chat(engine, http) as reply:
        assert reply.headers["connection"] == "close"
    async with chat(engine, http):
        assert engine.connections == 3  # the raw answer and the last one closed theirs


async def test_error_in_the_middle_of_a_stream(engine, http):
    engine.default = Behaviour(error=(500, "gone wrong"), error_at=2)
    async with chat(engine, http, stream=True) as reply:
        got = await events(reply)
    assert len(got) == 1 + 2 + 1
    assert got[-1]["error"]["code"] == 500


async def test_death_breaks_what_runs_and_revival_is_another_start(engine, http):
    engine.default = Behaviour(hold=asyncio.Event(), hold_at=1)
    before = engine.start
    async with chat(engine, http, stream=True) as reply:
        await engine.die()
        with pytest.raises(aiohttp.ClientError):
            await reply.read()
    assert engine.seen[0].how == "broken"
    with pytest.raises(aiohttp.ClientConnectorError):
        await http.get(f"{engine.url}/v1/models")
    await engine.revive(pool=512)
    async with http.get(f"{engine.url}/server_info") as reply:
        info = await reply.json()
    assert info["max_total_num_tokens"] == 512
    assert engine.start != before


async def test_frozen_loads_are_stale_and_server_info_hangs(engine, http):
    engine.freeze()
    async with http.get(f"{engine.url}/v1/loads") as reply:
        assert reply.status == 200
    with pytest.raises(TimeoutError):
        await http.get(f"{engine.url}/server_info", timeout=aiohttp.ClientTimeout(total=0.05))
    engine.thaw()
    async with http.get(f"{engine.url}/server_info") as reply:
        assert reply.status == 200


async def test_mute_accepts_and_says_nothing(engine, http):
    engine.mute()
    with pytest.raises(TimeoutError):
        await http.get(f"{engine.url}/v1/models", timeout=aiohttp.ClientTimeout(total=0.05))
    assert engine.connections == 1


async def test_old_engine_has_the_old_routes_only(http):
    async with FakeSGLang(version="0.5.6") as engine:
        for path, status in [
            ("/server_info", 404),
            ("/get_server_info", 200),
            ("/v1/loads", 404),
            ("/get_load", 200),
        ]:
            async with http.get(engine.url + path) as reply:
                assert reply.status == status, path


async def test_key_is_needed_everywhere_but_health(http):
    async with FakeSGLang(api_key="s3cret") as engine:
        async with http.get(f"{engine.url}/v1/models") as reply:
            assert reply.status == 401
        async with http.get(f"{engine.url}/health") as reply:
            assert reply.status == 200
        bearer = {"authorization": "Bearer s3cret"}
        async with http.get(f"{engine.url}/v1/models", headers=bearer) as reply:
            assert reply.status == 200


async def test_refuses_what_the_engine_refuses(engine, http):
    async with chat(engine, http, max_tokens=8192) as reply:
        assert (reply.status, "context length" in (await reply.json())["message"]) == (400, True)
    engine.default = Behaviour(hold=asyncio.Event(), hold_at=1)
    first = await chat(engine, http, stream=True, rid="one")
    async with chat(engine, http, rid="one") as reply:
        assert "Duplicate" in (await reply.json())["message"]
    first.close()
    assert len(engine.seen) == 1


async def test_peak_remembers_the_most_that_was_held(engine, http):
    async with chat(engine, http, max_tokens=5) as reply:
        await reply.read()
    async with chat(engine, http, max_tokens=2) as reply:
        await reply.read()
    assert engine.peak == 7 + 5
