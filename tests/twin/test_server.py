"""The HTTP face: shapes, statuses and timing as the genuine server showed them."""

import asyncio
import contextlib
import itertools
import json
import time

import aiohttp
import pytest

from gateway.twin.profiles import TINY_CPU
from gateway.twin.server import TwinServer
from gateway.upstream.facts import parse_server

SPEED = 40.0
SLOW = 0.2  # 400 tokens take ten seconds, a step a fortieth
CRAWL = 1e-6  # a token takes an hour: what runs goes on running, however busy the machine is
HELLO = [{"role": "user", "content": "Hello there"}]
USAGE_17 = {
    "prompt_tokens": int,
    "total_tokens": int,
    "completion_tokens": int,
    "prompt_tokens_details": None,
    "reasoning_tokens": int,
}


def shape(value):
    """Keys in order, and types of the leaves; strings that are words of the protocol stay."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return None if value is None else type(value)


def keys(value):
    return list(value)


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


def twin(profile=TINY_CPU, **more):
    return TwinServer(profile, speed=more.pop("speed", SPEED), **more)


async def post(http, server, path, **body):
    async with http.post(server.url + path, json=body) as answer:
        return answer.status, await answer.json()


async def stream(http, server, path, **body):
    """Status, headers, decoded events and the raw lines."""
    async with http.post(server.url + path, json={**body, "stream": True}) as answer:
        raw = await answer.text()
    lines = [line for line in raw.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    events = [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]
    return answer, events, lines


def pace(server, speed):
    """From here on the engine's time runs at this speed."""
    now = server.now()
    server.speed = speed
    server._epoch = asyncio.get_running_loop().time() - now / speed
    server.pump()


async def until(condition, limit=30.0):
    """Poll for an effect that has no event of its own."""
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.002)


# ---- whole answers


@pytest.mark.parametrize("version", ["0.5.6", "0.5.12", "0.5.17", "0.5.23"])
async def test_chat(http, version):
    async with twin(version=version) as server:
        status, body = await post(
            http, server, "/v1/chat/completions", messages=HELLO, max_tokens=5
        )
    message = {"role": str, "content": str, "reasoning_content": None}
    usage = dict(USAGE_17)
    metadata = {"weight_version": str}
    if version == "0.5.23":
        usage["completion_tokens_details"] = None
        metadata["weight_versions"] = [{"version": str, "start": int, "end": int}]
    else:
        message["tool_calls"] = None
    assert status == 200
    assert shape(body) == {
        "id": str,
        "object": str,
        "created": int,
        "model": str,
        "choices": [
            {
                "index": int,
                "message": message,
                "logprobs": None,
                "finish_reason": str,
                "matched_stop": None,
            }
        ],
        "usage": usage,
        "metadata": metadata,
    }
    assert keys(body) == ["id", "object", "created", "model", "choices", "usage", "metadata"]
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 5


async def test_a_model_that_stops_by_itself(http):
    async with twin() as server:
        _, body = await post(
            http, server, "/v1/chat/completions", messages=HELLO, twin_output_tokens=3
        )
    choice = body["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", 151645)
    assert body["usage"]["completion_tokens"] == 3


async def test_n_and_prompt_lists_multiply(http):
    async with twin() as server:
        _, chat = await post(
            http, server, "/v1/chat/completions", messages=HELLO, max_tokens=4, n=3
        )
        _, one = await post(http, server, "/v1/chat/completions", messages=HELLO, max_tokens=4)
        _, many = await post(
            http, server, "/v1/completions", prompt=["first one", "123456789"], max_tokens=4
        )
        _, ids = await post(http, server, "/v1/completions", prompt=[1, 2, 3], max_tokens=4)
    assert [choice["index"] for choice in chat["choices"]] == [0, 1, 2]
    assert chat["usage"]["completion_tokens"] == 12
    assert chat["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert chat["id"].count("_") == 1
    assert many["usage"] == {**many["usage"], "prompt_tokens": 3 + 3, "completion_tokens": 8}
    assert ids["usage"]["prompt_tokens"] == 3


async def test_several_streams_on_generate_say_which_is_which(http):
    """SGLang numbers the sequences of a batch in its stream, and a single one not (0.5.17)."""
    several = {"text": ["a", "b"], "sampling_params": {"n": 2, "max_new_tokens": 3}}
    for body, indexes in ((several, {0, 1, 2, 3}), ({**several, "text": "a"}, {0, 1})):
        async with twin() as server:
            _, events, _ = await stream(http, server, "/generate", **body)
        assert {event["index"] for event in events} == indexes
    async with twin() as server:
        params = {"max_new_tokens": 3}
        _, events, _ = await stream(http, server, "/generate", text="a", sampling_params=params)
    assert events
    assert all("index" not in event for event in events)


async def test_defaults_of_an_absent_cap(http):
    async with twin() as server:
        _, completion = await post(http, server, "/v1/completions", prompt="x" * 400)
        _, generate = await post(http, server, "/generate", text="x" * 400)
        _, chat = await post(
            http, server, "/v1/chat/completions", messages=[{"role": "user", "content": "x" * 400}]
        )
    assert completion["usage"]["completion_tokens"] == 16
    assert generate["meta_info"]["completion_tokens"] == 128
    prompt = chat["usage"]["prompt_tokens"]
    assert chat["usage"]["completion_tokens"] == 2048 - prompt - 2  # everything that is left


@pytest.mark.parametrize(
    ("version", "fields", "tokens"),
    [
        ("0.5.17", {"max_tokens": 0}, 0),
        ("0.5.17", {"max_completion_tokens": 0, "twin_output_tokens": 9}, 9),
        ("0.5.17", {"max_completion_tokens": 3, "max_tokens": 5}, 3),
        ("0.5.6", {"max_tokens": 0, "twin_output_tokens": 9}, 9),
        ("0.5.6", {"max_completion_tokens": 3, "max_tokens": 5}, 5),
        ("0.5.17", {"max_tokens": "7"}, 7),
    ],
)
async def test_which_cap_binds(http, version, fields, tokens):
    async with twin(version=version) as server:
        status, body = await post(http, server, "/v1/chat/completions", messages=HELLO, **fields)
    assert status == 200
    assert body["usage"]["completion_tokens"] == tokens


async def test_a_message_takes_nothing_from_a_chats_body(http):
    """SGLang makes a chat of Anthropic's own fields, and of no others."""
    odd = {"max_completion_tokens": 50, "min_tokens": 40, "input_ids": [1] * 90}
    async with twin() as server:
        status, got = await post(
            http, server, "/v1/messages", model="tiny", messages=HELLO, max_tokens=3, **odd
        )
    assert (status, got["usage"]["output_tokens"]) == (200, 3)
    assert got["usage"]["input_tokens"] < 90


async def test_generate_and_its_meta_info(http):
    async with twin() as server:
        _, body = await post(
            http, server, "/generate", text="Hello there", sampling_params={"max_new_tokens": 4}
        )
        _, several = await post(
            http, server, "/generate", text=["a", "b"], sampling_params={"max_new_tokens": 2}
        )
    assert keys(body) == ["text", "output_ids", "meta_info"]
    meta = body["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert len(body["output_ids"]) == meta["completion_tokens"] == 4
    for key in (
        "id",
        "prompt_tokens",
        "num_retractions",
        "queue_time",
        "cached_tokens",
        "e2e_latency",
    ):
        assert key in meta
    assert [item["meta_info"]["completion_tokens"] for item in several] == [2, 2]


async def test_a_second_turn_finds_its_prefix_cached(http):
    async with twin() as server:
        text = "The same beginning. " * 20
        await post(http, server, "/generate", text=text + "A")
        _, body = await post(http, server, "/generate", text=text + "B")
    meta = body["meta_info"]
    assert meta["cached_tokens"] == 100
    assert meta["cached_tokens_details"] == {"device": 100, "host": 0}


# ---- streams


async def test_chat_stream(http):
    async with twin() as server:
        answer, events, lines = await stream(
            http,
            server,
            "/v1/chat/completions",
            messages=HELLO,
            max_tokens=3,
            stream_options={"include_usage": True},
        )
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert lines[-1] == "data: [DONE]"
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas[0] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert [keys(delta) for delta in deltas[1:4]] == [["reasoning_content", "content"]] * 3
    assert deltas[4] == {"reasoning_content": None}
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * 4 + [
        "length"
    ]
    assert events[-1]["choices"] == []
    assert shape(events[-1]["usage"]) == USAGE_17
    assert len({event["id"] for event in events}) == 1


async def test_no_usage_unless_asked(http):
    async with twin() as server:
        _, chat, _ = await stream(
            http, server, "/v1/chat/completions", messages=HELLO, max_tokens=2
        )
        _, completion, _ = await stream(http, server, "/v1/completions", prompt="x", max_tokens=2)
    assert all("usage" not in event for event in chat)
    assert all(event["usage"] is None for event in completion)
    assert completion[-1]["choices"][0]["finish_reason"] == "length"


async def test_continuous_usage_counts_up(http):
    async with twin() as server:
        _, events, _ = await stream(
            http,
            server,
            "/v1/chat/completions",
            messages=HELLO,
            max_tokens=3,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )
    counts = [event["usage"]["completion_tokens"] for event in events if "usage" in event]
    assert counts == [1, 2, 3, 3]


async def test_generate_stream_is_cumulative(http):
    async with twin() as server:
        _, events, lines = await stream(
            http, server, "/generate", text="x", sampling_params={"max_new_tokens": 3}
        )
    texts = [event["text"] for event in events]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert [event["meta_info"]["completion_tokens"] for event in events] == [1, 2, 3]
    assert lines[-1] == "data: [DONE]"


async def test_a_stream_with_n_names_its_choices(http):
    async with twin() as server:
        _, events, _ = await stream(
            http, server, "/v1/chat/completions", messages=HELLO, max_tokens=2, n=2
        )
    by_choice = {0: 0, 1: 0}
    for event in events:
        choice = event["choices"][0]
        by_choice[choice["index"]] += 1
    assert by_choice == {0: 4, 1: 4}  # role, two tokens, finish


async def test_headers_wait_for_the_first_token_from_0_5_12(http):
    """Behind a request that holds the only slot, the headers come when that one is done."""
    for version, waits in (("0.5.6", False), ("0.5.17", True)):
        # The second answers before the first is done only where it need not wait for that.
        speed = 10.0 if waits else 0.5
        async with twin(TINY_CPU.with_(max_running=1), version=version, speed=speed) as server:
            body = {"messages": HELLO, "stream": True, "max_tokens": 400}
            async with http.post(server.url + "/v1/chat/completions", json=body) as first:
                await first.content.readline()
                async with http.post(server.url + "/v1/chat/completions", json=body):
                    done = server.engine.counters.finished
            assert (done > 0) is waits, version


# ---- refusals


async def test_too_long_for_the_context(http):
    async with twin() as server:
        status, body = await post(http, server, "/v1/completions", prompt=[7] * 9000)
        assert (status, body) == (
            400,
            {
                "object": "error",
                "message": "The input (9000 tokens) is longer than the model's context length "
                "(8192 tokens).",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
        )
        status, body = await post(http, server, "/v1/completions", prompt=[7], max_tokens=100000)
        assert status == 400
        assert body["message"].startswith(
            "Requested token count exceeds the model's maximum context length of 8192 tokens. You "
            "requested a total of 100001 tokens: 1 tokens from the input messages and 100000 tokens"
        )
        status, body = await post(http, server, "/generate", input_ids=[7] * 9000)
        assert (status, keys(body), keys(body["error"])) == (400, ["error"], ["message"])
        answer, events, lines = await stream(http, server, "/generate", input_ids=[7] * 9000)
        assert answer.status == 200
        assert events[0]["error"]["code"] == 400
        assert lines[-1] == "data: [DONE]"


async def test_too_long_for_the_pool_comes_late_and_inside_a_200_stream(http):
    async with twin() as server:
        status, body = await post(http, server, "/v1/completions", prompt=[7] * 3000)
        assert status == 400
        assert body["message"] == (
            "Input length (3000 tokens) exceeds the maximum allowed length (2042 tokens). Use a "
            "shorter input or enable --allow-auto-truncate."
        )
        answer, _, lines = await stream(http, server, "/v1/completions", prompt=[7] * 3000)
        assert answer.status == 200
        assert lines[0].startswith('data: {"error": {"object": "error", "message": "Input length')
        assert '"type": "BAD_REQUEST", "param": null, "code": 400}}' in lines[0]
        assert lines[1:] == ["data: [DONE]"]
        _, events, _ = await stream(http, server, "/generate", input_ids=[7] * 3000)
        reason = events[-1]["meta_info"]["finish_reason"]
        assert (reason["type"], reason["status_code"]) == ("abort", 400)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", {}, "'missing', 'loc': ('body', 'messages')"),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": "abc"}, "int_parsing"),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": -1}, "at least 0, got -1"),
        ("/v1/completions", {}, "'missing', 'loc': ('body', 'prompt')"),
        ("/abort_request", {"rid": 5}, "string_type"),
    ],
)
async def test_bodies_it_refuses(http, path, body, words):
    async with twin() as server:
        status, answer = await post(http, server, path, **body)
    assert status == 400
    assert words in answer["message"]
    assert keys(answer) == ["object", "message", "type", "param", "code"]


async def test_bad_json_is_a_400(http):
    asked = {"data": b'{"text": ', "headers": {"content-type": "application/json"}}
    async with twin() as server, http.post(server.url + "/generate", **asked) as answer:
        assert answer.status == 400
        assert "JSON decode error" in (await answer.json())["message"]


async def test_a_full_queue(http):
    profile = TINY_CPU.with_(max_running=1, max_queued=0)
    async with twin(profile, speed=1.0) as server:
        long = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 1500}}
        async with http.post(server.url + "/generate", json=long) as running:
            await running.content.readline()
            status, body = await post(
                http, server, "/v1/chat/completions", messages=HELLO, max_tokens=5
            )
            assert (status, body) == (
                503,
                {
                    "object": "error",
                    "message": "The request queue is full.",
                    "type": "503",
                    "param": None,
                    "code": 503,
                },
            )
            answer, _, lines = await stream(
                http, server, "/v1/chat/completions", messages=HELLO, max_tokens=5
            )
            assert answer.status == 200
            assert "retry-after" not in answer.headers
            assert lines == [
                (
                    'data: {"error": {"object": "error", "message": "The request queue is full.", '
                    '"type": "SERVICE_UNAVAILABLE", "param": null, "code": 503}}'
                ),
                "data: [DONE]",
            ]
            _, events, _ = await stream(http, server, "/generate", text="x")
            assert events[0]["meta_info"]["finish_reason"]["status_code"] == 503
            assert "prompt_tokens" not in events[0]["meta_info"]


async def test_routes_it_does_not_have(http):
    async with twin(version="0.5.23") as server, http.get(server.url + "/get_load") as answer:
        assert (answer.status, await answer.json()) == (404, {"detail": "Not Found"})


# ---- disconnects and aborts


async def test_a_flowing_stream_is_freed_at_once_and_a_silent_request_at_the_poll(http):
    async with twin(speed=0.5) as server:
        text = {"text": "x", "sampling_params": {"max_new_tokens": 2000}}
        answer = await http.post(server.url + "/generate", json={**text, "stream": True})
        await answer.content.readline()
        answer.close()
        left = server.now()
        await until(lambda: server.engine.idle)
        assert server.now() - left < 2.0  # measured: 25 ms

        pace(server, 2.0)
        asked = server.now()
        task = asyncio.create_task(post(http, server, "/generate", **text))
        await until(lambda: server.engine.running)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: server.engine.idle)
        assert server.now() - asked > 3.5  # the poll comes every 4 s, the answer would take 10
        assert server.engine.counters.aborted == 2


async def test_streams_with_n_outlive_their_client_until_0_5_12(http):
    for version, survives in (("0.5.12", True), ("0.5.17", False)):
        async with twin(version=version, speed=1.0) as server:
            body = {"messages": HELLO, "n": 2, "stream": True, "max_tokens": 600}
            answer = await http.post(server.url + "/v1/chat/completions", json=body)
            await answer.content.readline()
            answer.close()
            if survives:
                pace(server, SPEED)
            await until(lambda: server.engine.idle)
            assert (server.engine.counters.finished == 2) is survives, version


async def test_who_hangs_up_in_the_middle_is_no_error_in_the_log(http, monkeypatch, caplog):
    async def closing(*_):
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    async with twin() as server:
        monkeypatch.setattr(aiohttp.web.StreamResponse, "write", closing)
        body = {"messages": HELLO, "stream": True, "max_tokens": 9}
        with contextlib.suppress(aiohttp.ClientError):
            await post(http, server, "/v1/chat/completions", **body)
        await until(lambda: server.engine.idle)
    assert [one.message for one in caplog.records if one.levelname == "ERROR"] == []


async def test_abort_request_matches_by_prefix(http):
    async with twin(speed=SLOW) as server:
        asks = [
            asyncio.create_task(
                post(
                    http,
                    server,
                    "/generate",
                    text="x",
                    rid=rid,
                    sampling_params={"max_new_tokens": 400},
                )
            )
            for rid in ("job-1", "job-2", "other")
        ]
        await until(lambda: server.engine.running == 3)
        async with http.post(server.url + "/abort_request", json={"rid": "job"}) as answer:
            assert answer.status == 200
        pace(server, SPEED)
        first, second, other = await asyncio.gather(*asks)
    assert first[1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert second[1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert other[1]["meta_info"]["finish_reason"] == {"type": "length", "length": 400}


async def test_a_rid_in_use_is_refused_and_names_the_answer(http):
    async with twin() as server:
        _, body = await post(
            http, server, "/v1/chat/completions", messages=HELLO, max_tokens=2, rid="mine"
        )
        assert body["id"] == "mine"
        pace(server, CRAWL)
        slow = asyncio.create_task(
            post(http, server, "/v1/chat/completions", messages=HELLO, max_tokens=900, rid="mine")
        )
        await until(lambda: server.engine.running)
        status, body = await post(http, server, "/v1/chat/completions", messages=HELLO, rid="mine")
        assert (status, body["message"]) == (400, "Duplicate request ID detected: mine")
        pace(server, SPEED)
        await slow


# ---- faults


async def test_the_story_of_a_killed_scheduler(http):
    async with twin(restart_s=4000.0, pool_after_restart=(1500,)) as server:
        body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 2000}}
        async with http.post(server.url + "/generate", json=body) as answer:
            await answer.content.readline()
            killed = time.monotonic()
            server.kill()
            with pytest.raises(aiohttp.ClientError):  # accepted, silent, then reset
                await post(http, server, "/generate", text="y")
            assert time.monotonic() - killed > 5.0 / SPEED
            with pytest.raises(aiohttp.ClientPayloadError):  # truncated without a word
                await answer.read()
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(server.url + "/v1/models")
        pace(server, 100 * SPEED)
        await until(lambda: server.process.starts == 1 and server._turning is None)
        pace(server, SPEED)
        async with http.get(server.url + "/server_info") as info:
            assert (await info.json())["max_total_num_tokens"] == 1500
        assert server.crashes == 1
        assert (await post(http, server, "/generate", text="y"))[0] == 200


async def test_a_frozen_scheduler_leaves_half_the_face_alive(http):
    async with twin(speed=CRAWL) as server:
        asked = asyncio.create_task(post(http, server, "/generate", text="x"))
        await until(lambda: server.engine.running)
        server.freeze()
        pace(server, SPEED)
        for path in ("/v1/models", "/v1/loads", "/metrics", "/model_info"):
            async with http.get(server.url + path) as answer:
                assert answer.status == 200
        began = server.now()
        async with http.get(server.url + "/health") as answer:
            assert answer.status == 503
        assert server.now() - began >= 20
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await http.get(server.url + "/server_info")
        pace(server, 5.0)
        server.thaw()
        assert (await asked)[0] == 200
        async with http.get(server.url + "/health") as answer:
            assert answer.status == 200


async def test_sigterm_drains(http):
    async with twin(speed=CRAWL) as server:
        asked = asyncio.create_task(post(http, server, "/generate", text="x"))
        await until(lambda: server.engine.running)
        server.terminate()
        async with http.get(server.url + "/health") as answer:
            assert answer.status == 503
        late = asyncio.create_task(post(http, server, "/generate", text="late"))
        await until(lambda: len(server.inboxes) == 2)
        pace(server, SPEED)
        assert (await late)[0] == 200
        assert (await asked)[0] == 200
        await until(lambda: server.process.life == "gone" and server._turning is None)
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(server.url + "/v1/models")


# ---- what it says about itself


@pytest.mark.parametrize("version", ["0.5.6", "0.5.12", "0.5.17", "0.5.23"])
async def test_introspection(http, version):
    async with twin(version=version) as server:

        async def get(path):
            async with http.get(server.url + path) as answer:
                return answer.status, (await answer.json() if answer.status == 200 else None)

        _, models = await get("/v1/models")
        assert models["data"][0]["max_model_len"] == 8192
        _, info = await get("/get_server_info")
        assert (info["max_total_num_tokens"], info["max_req_input_len"]) == (2048, 2042)
        assert info["version"] == version
        effective = info["internal_states"][0].get("effective_max_running_requests_per_dp")
        assert effective == (None if version == "0.5.6" else 1024)
        status, loads = await get("/v1/loads")
        assert status == (404 if version == "0.5.6" else 200)
        if loads:
            assert loads["loads"][0]["max_total_num_tokens"] == 2048
            assert ("aggregate" in loads) is (version == "0.5.12")
        status, load = await get("/get_load")
        assert status == (404 if version == "0.5.23" else 200)
        if load:
            assert load[0]["num_reqs"] == 0


async def test_loads_count_what_runs_waits_and_is_used(http):
    async with twin(TINY_CPU.with_(max_running=2), speed=SLOW) as server:
        asks = [
            asyncio.create_task(
                post(
                    http,
                    server,
                    "/generate",
                    input_ids=[index] * 50,
                    sampling_params={"max_new_tokens": 200},
                )
            )
            for index in range(5)
        ]
        await until(lambda: len(server.inboxes) == 5 and server.engine.snapshot.running == 2)
        async with http.get(server.url + "/v1/loads") as answer:
            load = (await answer.json())["loads"][0]
        pace(server, SPEED)
        await asyncio.gather(*asks)
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (2, 3)
    assert 100 <= load["num_used_tokens"] < 600
    assert load["num_total_tokens"] == load["num_used_tokens"] + 150


async def test_an_idle_scheduler_publishes_and_a_frozen_one_does_not(http):
    async with twin() as server:

        async def published() -> float:
            async with http.get(server.url + "/v1/loads") as answer:
                return (await answer.json())["loads"][0]["timestamp"]

        await post(http, server, "/generate", text="a", sampling_params={"max_new_tokens": 2})
        began = time.time()
        assert began - 0.001 <= await published() <= time.time()
        server.freeze()
        stands = time.time()
        await asyncio.sleep(0.05)
        assert await published() < stands + 0.05 / 2


async def test_tokenize_counts_what_admission_counts(http):
    async with twin() as server:
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        for path in ("/tokenize", "/v1/tokenize"):
            _, counted = await post(http, server, path, messages=HELLO, tools=tools)
            _, chat = await post(
                http, server, "/v1/chat/completions", messages=HELLO, tools=tools, max_tokens=1
            )
            assert counted["count"] == len(counted["tokens"]) == chat["usage"]["prompt_tokens"]
        _, plain = await post(http, server, "/tokenize", prompt="This is a test")
        assert plain == {"tokens": plain["tokens"], "count": 4, "max_model_len": 8192}
        _, several = await post(http, server, "/tokenize", prompt=["one", "two words"])
        assert several["count"] == [1, 3]


async def test_0_5_6_tokenizes_only_prompts(http):
    async with twin(version="0.5.6") as server:
        status, body = await post(http, server, "/tokenize", messages=HELLO)
        assert status == 400
        assert "'missing', 'loc': ('body', 'prompt')" in body["message"]
        _, body = await post(http, server, "/tokenize", prompt="12345678")
        assert body["count"] == 2


async def test_flush_cache_only_at_rest(http):
    async with twin(speed=CRAWL) as server:
        long = {"text": "x" * 400, "sampling_params": {"max_new_tokens": 1500}}
        asked = asyncio.create_task(post(http, server, "/generate", **long))
        await until(lambda: server.engine.running)
        async with http.post(server.url + "/flush_cache") as answer:
            assert answer.status == 400
        pace(server, SPEED)
        await asked
        assert server.engine.memory.cache.held > 0
        async with http.post(server.url + "/flush_cache") as answer:
            assert answer.status == 200
        assert server.engine.memory.cache.held == 0


async def test_metrics_speak_prometheus(http):
    async with twin() as server:
        await post(http, server, "/generate", text="x", sampling_params={"max_new_tokens": 5})
        async with http.get(server.url + "/metrics") as answer:
            text = await answer.text()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    value = {name.split("{")[0]: float(number) for name, number in lines.items()}
    assert value["sglang:max_total_num_tokens"] == 2048
    assert value["sglang:generation_tokens_total"] == 5


async def test_the_scaled_incident_over_http(http):
    """Twelve chats of about 560 tokens on a pool of 2048, with a cap of 300 and without."""

    async def ask(server, index, **cap):
        content = f"{index} " + "word " * 440
        _, body = await post(
            http,
            server,
            "/v1/chat/completions",
            messages=[{"role": "user", "content": content}],
            **cap,
        )
        return body["usage"]

    async with twin(speed=100.0) as server:
        server.freeze()  # so that all are there when the first pass begins
        asks = [asyncio.create_task(ask(server, index, max_tokens=300)) for index in range(12)]
        await until(lambda: len(server.inboxes) == 12)
        server.thaw()
        capped = await asyncio.gather(*asks)
        assert {usage["completion_tokens"] for usage in capped} == {300}
        assert server.peak_waiting == 12
        assert server.engine.counters.peak_running == 3
        assert 1 <= server.retractions <= 4
        retracted = server.retractions
        free = await asyncio.gather(*(ask(server, index) for index in range(12)))
        assert {usage["completion_tokens"] for usage in free} == {
            2048 - 2 - usage["prompt_tokens"] for usage in free
        }
        assert server.retractions == retracted
        assert server.crashes == 0


async def test_nobody_is_left_hanging_by_a_death(http):
    """Whoever connects while the socket closes is cut too, and nothing stays open."""
    async with twin(restart_s=1e6) as server:

        async def ask():
            with pytest.raises(aiohttp.ClientError):
                await post(http, server, "/generate", text="x")

        server.kill()
        asked = []
        while server.process.life != "gone":
            asked.append(asyncio.create_task(ask()))
            await asyncio.sleep(0.005)
        async with asyncio.timeout(5):
            await asyncio.gather(*asked)
        await until(lambda: not server._runner.server.connections)


@pytest.mark.parametrize("version", ["0.5.12", "0.5.17"])
async def test_two_twins_are_told_apart_as_two_servers_are(http, version) -> None:
    told = []
    for _ in range(2):
        async with twin(version=version) as server, http.get(server.url + "/server_info") as info:
            told.append(await info.json())
    first, second = (parse_server(info).started_key for info in told)
    assert first != second
    assert all(("startup_time" in info) is (version == "0.5.17") for info in told)
