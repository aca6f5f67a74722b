"""Ollama's API through a gate: asked of the engine as chats, told in lines, refused in its words."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from gateway.core.model import Demand, Grant, PoolId, RequestId
from gateway.edge import handler
from gateway.edge.dialects import Engine, Invalid
from gateway.edge.dialects.ollama import OllamaChat, OllamaGenerate
from gateway.edge.dialects.teller import OllamaTeller
from gateway.tokens.request import read
from tests.edge.rig import API_CHAT, API_GENERATE, lines, request
from tests.edge.test_callers import key, keyed
from tests.edge.test_refusals import Busy
from tests.fakes import profile
from tests.fakes.behaviour import Behaviour, queue_full, refuse

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x20\0\0\0\x20\x08\x02\0\0\0").decode()
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def asked(cap: int | None = 5, **fields: Any) -> dict[str, Any]:
    """A chat of 7 tokens by the fake engine's rule."""
    turns = [{"role": "user", "content": "a b c"}]
    options = {} if cap is None else {"options": {"num_predict": cap}}
    return {"model": "tiny", "messages": turns, **options, **fields}


def prompt(cap: int = 5, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "a b c", "options": {"num_predict": cap}, **fields}


def text(line: Any) -> str:
    return str(line["message"]["content"] if "message" in line else line["response"])


BOTH = pytest.mark.parametrize(
    ("path", "body"),
    [(API_CHAT, asked()), (API_GENERATE, prompt()), (API_GENERATE, prompt(raw=True))],
)


@BOTH
async def test_a_stream_and_a_whole_answer(rig, path: str, body: Any) -> None:
    got = await rig.post(path, body)
    assert (got.status, got.headers["content-type"]) == (200, "application/x-ndjson")
    assert got.headers["x-kvgate-max-tokens"] == "5"
    found = lines(got.body)
    assert "".join(map(text, found)).split() == ["w"] * 5
    assert [line["done"] for line in found] == [False] * 5 + [True]
    whole = await rig.post(path, {**body, "stream": False})
    assert whole.headers["content-type"] == "application/json"
    assert text(whole.json()).split() == ["w"] * 5
    for last, record in zip((found[-1], whole.json()), reversed(rig.records), strict=True):
        assert (last["done_reason"], last["eval_count"], last["model"]) == ("length", 5, "tiny")
        assert last["prompt_eval_count"] == record["usage_prompt_tokens"] == record["prompt_tokens"]
        parts = ("load_duration", "prompt_eval_duration", "eval_duration")
        assert sum(last[part] for part in parts) == pytest.approx(last["total_duration"], abs=2)
        assert (record["outcome"], record["output_tokens"]) == ("completed", 5)
        assert (record["count_method"], record["kv_reserved"]) == (
            "exact",
            record["prompt_tokens"] + 6,
        )


async def test_whatever_it_came_as_the_engine_is_told_what_it_is(rig) -> None:
    """curl calls every body a form."""
    headers = {"content-type": "application/x-www-form-urlencoded", "accept": "text/x"}
    got = await rig.post(API_CHAT + "?x=1", asked(), headers=headers)
    assert got.status == 200
    seen = rig.engine.seen[0]
    assert seen.received.target == "/v1/chat/completions"
    assert seen.headers["content-type"] == "application/json"
    assert "accept" not in seen.headers
    assert seen.rid.startswith(rig.records[0]["id"])


async def test_a_refusal_is_a_text_with_its_numbers_beside_it(start) -> None:
    async with start({"queue": {"max_requests": 1, "max_wait_s": 0.2}}) as rig, Busy(rig):
        waiting = asyncio.ensure_future(rig.post(API_CHAT, asked()))
        await rig.queued()
        full, late = await rig.post(API_GENERATE, prompt()), await waiting
        assert (full.status, full.code) == (429, "queue_full")
        assert (late.status, late.code) == (503, "queue_timeout")
        for got in (full, late):
            assert isinstance(got.error, str)
            assert 1 <= int(got.headers["retry-after"]) <= 60
        long = await rig.post(API_CHAT, asked(messages=[{"role": "user", "content": "w " * 9000}]))
        assert (long.status, long.code) == (400, "context_length_exceeded")
        assert long.json()["needed"] > long.json()["available"]
        assert long.headers["x-should-retry"] == "false"


async def test_the_names_of_fields_stay_as_clients_write_them(rig) -> None:
    for path, fields, words in (
        (API_CHAT, {"options": {"num_predict": 1.5}}, "options.num_predict must be"),
        (API_CHAT, {"messages": [{"role": "user", "content": 7}]}, "messages[0].content must be"),
        ("/v1/responses", {"input": [7]}, "`input` must have an item"),
        ("/v1/chat/completions", {"messages": []}, "messages must be a list"),
        ("/v1/messages", {"messages": [{}]}, "max_tokens: Field required"),
    ):
        got = await rig.post(path, fields)
        said = got.error if isinstance(got.error, str) else got.error["message"]
        assert (got.status, said[: len(words)]) == (400, words)


async def test_the_engines_own_refusal_and_its_push_back(rig, monkeypatch) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.01)
    rig.engine.queue.extend([refuse(400, "top_k must be -1"), queue_full(), queue_full()])
    for stream in (True, False):
        got = await rig.post(API_CHAT, asked(stream=stream))
        if stream:
            assert (got.status, got.error) == (400, "top_k must be -1")
            assert got.headers["x-kvgate-error-source"] == "upstream"
        else:
            assert (got.status, rig.records[0]["attempts"]) == (200, 3)


@pytest.mark.parametrize("how", ["reset_at", "close_at"])
async def test_a_stream_that_breaks_ends_with_an_error_and_nothing_done(rig, how: str) -> None:
    rig.engine.queue.append(Behaviour(tokens=5, **{how: 2}))
    found = lines((await rig.post(API_CHAT, asked())).body)
    assert found[-1]["code"] == "upstream_error"
    assert not any(line.get("done") for line in found)
    assert rig.records[0]["outcome"] == "failed"


async def test_what_came_to_its_end_is_done_without_the_mark(rig) -> None:
    """As with a chat: the finish reason has come, [DONE] has not."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    rig.engine.queue.append(Behaviour(raw=head + event))
    found = lines((await rig.post(API_CHAT, asked())).body)
    assert [(text(line), line["done"]) for line in found] == [("a", False), ("", True)]
    assert rig.records[0]["outcome"] == "completed"


async def test_a_raw_prompt_has_not_the_small_default_of_completions(rig) -> None:
    for body in (prompt(-1, raw=True), prompt(-1), asked(None)):
        assert (await rig.post(API_GENERATE if "prompt" in body else API_CHAT, body)).status == 200
        assert rig.records[0]["cap_source"] == "injected"
        assert rig.records[0]["cap_forwarded"] > 100


async def test_an_error_in_mid_stream_is_told_once(rig) -> None:
    rig.engine.queue.append(Behaviour(tokens=5, error=(500, "gone wrong"), error_at=2))
    found = lines((await rig.post(API_GENERATE, prompt())).body)
    assert [text(line) for line in found[:-1]] == [" w", " w"]
    assert found[-1] == {"error": "gone wrong", "code": 500}
    assert rig.records[0]["outcome"] == "failed"


@pytest.mark.parametrize("body", [b"no JSON", b'{"choices": []}'])
async def test_a_whole_answer_that_is_none_is_a_502(rig, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n"
    rig.engine.queue.append(Behaviour(raw=head + body))
    got = await rig.post(API_CHAT, asked(stream=False))
    assert (got.status, got.code) == (502, "upstream_error")


async def test_a_whole_answer_beyond_all_bounds_is_a_502(rig, monkeypatch) -> None:
    monkeypatch.setattr(OllamaTeller, "most_bytes", 2000)
    rig.engine.queue.append(Behaviour(tokens=5, pad=3000))
    got = await rig.post(API_CHAT, asked(stream=False))
    assert (got.status, got.code) == (502, "upstream_error")
    assert "larger than the limit" in got.error


async def test_a_whole_answer_that_breaks_off_is_a_502(rig) -> None:
    """Not half a document: nothing of it is out before it is whole."""
    rig.engine.queue.append(Behaviour(tokens=5, reset_at=1))
    got = await rig.post(API_CHAT, asked(stream=False))
    assert (got.status, got.code) == (502, "upstream_error")


async def test_a_client_that_leaves_ends_it_at_the_engine(rig) -> None:
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=5, hold=hold, hold_at=2))
    async with rig.socket() as peer:
        await peer.send(request(API_CHAT, asked()))
        await peer.head()
        await peer.reader.readuntil(b"\n")
        peer.reset()
        async with asyncio.timeout(2):
            await rig.engine.seen[0].ended.wait()
    await rig.until(lambda: rig.records)
    assert rig.records[0]["outcome"] == "cancelled"
    assert rig.engine.seen[0].how in ("aborted", "abandoned")


@BOTH
async def test_who_waits_gets_pieces_without_a_text(start, path: str, body: Any) -> None:
    async with start({"queue": {"heartbeat_s": 0.02}}) as rig, Busy(rig) as busy:
        async with rig.http.post(rig.app.listen_url + path, json=body) as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            beat = json.loads(await answer.content.readline())
            assert (text(beat), beat["done"]) == ("", False)
            busy.hold.set()
            found = lines(await answer.read())
        assert "".join(map(text, found)).split() == ["w"] * 5
        assert found[-1]["done"]
        assert beat["model"] == found[-1]["model"] == "tiny", "one answer, one name"


async def test_a_refusal_after_a_beat_is_one_line(start) -> None:
    policy = {"queue": {"heartbeat_s": 0.02, "max_wait_s": 0.1}}
    async with start(policy) as rig, Busy(rig):
        found = lines((await rig.post(API_CHAT, asked())).body)
        assert found[-1]["code"] == "queue_timeout"
        assert [line["done"] for line in found[:-1]] == [False] * len(found[:-1]) != []


async def test_a_request_without_a_prompt_loads_nothing_and_says_so(rig) -> None:
    for path, fields, reason in (
        (API_CHAT, {"messages": []}, "load"),
        (API_CHAT, {"keep_alive": 0}, "unload"),
        (API_GENERATE, {}, "load"),
        (API_GENERATE, {"prompt": "", "keep_alive": "0"}, "unload"),
        (API_GENERATE, {"keep_alive": "5m"}, "load"),
    ):
        got = await rig.post(path, {"model": "tiny", **fields})
        assert (got.status, text(got.json())) == (200, "")
        assert (got.json()["done"], got.json()["done_reason"]) == (True, reason)
        assert rig.records[0]["outcome"] == "completed"
    assert rig.engine.seen == []
    totals = (await rig.status())["totals"]
    assert (totals["admitted"], totals["completed"], totals["answered_here"]) == (0, 0, 5)
    await rig.engine.die()
    await rig.until(lambda: not rig.app.fleet.any_ready, 8)
    got = await rig.post(API_CHAT, {"model": "tiny"})
    assert (got.status, got.code) == (503, "no_backend")


async def test_names_and_tags(start) -> None:
    policy = {
        "clients": [keyed("a", models=["llama3.2:3b"]), keyed("b")],
        "models": {"llama3.2:3b": "tiny", "qwen": "tiny"},
    }
    async with start(policy) as rig:
        for name, who, status in (
            ("llama3.2:3b", "a", 200),
            ("tiny", "a", 403),
            ("qwen:latest", "a", 403),
            ("qwen:latest", "b", 200),
            ("tiny:latest", "b", 200),
            ("tiny:8b", "b", 400),
        ):
            got = await rig.post(API_CHAT, asked(model=name), headers=key(who))
            assert got.status == status, name
            assert isinstance(got.json()["error"], str) if status != 200 else True
        assert {seen.body["model"] for seen in rig.engine.seen} == {"tiny"}
        chat = {"model": "tiny:latest", "messages": asked()["messages"]}
        assert (await rig.post("/v1/chat/completions", chat, headers=key("b"))).status == 200


async def get(rig, path: str, **headers: str) -> Any:
    async with rig.http.get(rig.app.listen_url + path, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_what_front_ends_ask_first(start) -> None:
    policy = {
        "clients": [keyed("a", models=["llama3.2:3b"]), keyed("b")],
        "models": {"llama3.2:3b": "tiny"},
    }
    async with start(policy) as rig:
        for who, names in (("a", {"llama3.2:3b"}), ("b", {"tiny:latest", "llama3.2:3b"})):
            for path in ("/api/tags", "/api/ps"):
                status, told = await get(rig, path, **key(who))
                assert status == 200
                assert {one["name"] for one in told["models"]} == names
                assert all(one["model"] == one["name"] for one in told["models"])
        (one,) = (await get(rig, "/api/ps", **key("a")))[1]["models"]
        assert one["context_length"] == rig.app.fleet.backends["gpu0"].facts.context
        for asks, who, status in (
            ({"model": "tiny"}, "b", 200),
            ({"name": "tiny:latest"}, "b", 200),
            ({"model": "llama3.2:3b", "verbose": True}, "a", 200),
            ({"model": "tiny"}, "a", 404),
            ({"model": "other"}, "b", 404),
            ({}, "b", 400),
            (b"no", "b", 400),
            (b"x" * 70_000, "b", 413),
            ({"model": "tiny"}, "nobody", 401),
        ):
            got = await rig.post("/api/show", asks, headers=key(who))
            assert got.status == status, asks
            if status != 200:
                assert isinstance(got.error, str)
                continue
            told = got.json()
            family = told["model_info"]["general.architecture"]
            assert told["model_info"][f"{family}.context_length"] == one["context_length"]
            assert told["capabilities"] == ["completion"]
        assert (await get(rig, "/api/tags"))[0] == 401
        assert set((await get(rig, "/api/version"))[1]) == {"version"}
        status, told = await get(rig, "/api/blobs")
        assert (status, told["code"]) == (404, "not_found")
        assert isinstance(told["error"], str)
        assert rig.records == []


async def test_what_it_was_started_with_is_what_it_can(start, monkeypatch) -> None:
    parsers = {"tool_call_parser": "qwen25", "reasoning_parser": "qwen3"}
    info = profile.server_info
    monkeypatch.setattr(profile, "server_info", lambda *args: info(*args) | parsers)
    async with start() as rig:
        got = await rig.post("/api/show", {"model": "tiny"})
        assert got.json()["capabilities"] == ["completion", "tools", "thinking"]


@pytest.mark.parametrize("admission", ["off", "shadow"])
async def test_without_admission_it_is_put_into_other_words_all_the_same(
    start, admission: str
) -> None:
    async with start({"admission": admission}) as rig:
        for path, body, cap in (
            (API_CHAT, asked(), 5),
            (API_CHAT, asked(None), None),
            (API_GENERATE, prompt(raw=True), 5),
            (API_GENERATE, prompt(-1, raw=True), 2048),
        ):
            got = await rig.post(path, {**body, "model": "tiny:latest"})
            assert got.status == 200, got.body
            assert lines(got.body)[-1]["done"]
            sent = rig.engine.seen[-1].body
            assert (sent.get("max_tokens"), sent["model"]) == (cap, "tiny")
        assert (await rig.post(API_CHAT, asked(options=[1]))).status == 400
        assert (await rig.post(API_CHAT, {"model": "tiny"})).json()["done_reason"] == "load"
        assert len(rig.engine.seen) == 4
        own = rig.app.metrics.registry.get_sample_value
        assert own("kvgate_observe_errors_total", {"part": "shadow"}) is None


# ---- what is asked of the engine -------------------------------------------------------------------


def put(body: Any, dialect: Any = OllamaChat) -> Any:
    one = dialect()
    intent = one.read(body)
    put = intent.put(body)
    demand = Demand(cap=9, kv=99, prefill=9, slots=1)
    grant = Grant(RequestId("f" * 28), PoolId("gpu0"), demand, None, False, 0.0)
    return json.loads(one.write(put, intent, grant, "f" * 32, Engine((0, 5, 17))))


def test_a_conversation_with_tools_images_and_thoughts() -> None:
    body = asked(
        tools=[TOOL],
        messages=[
            {"role": "system", "content": "brief"},
            {
                "role": "user",
                "content": "look",
                "images": [PNG, "/9j/abc", "data:image/x;base64,a"],
            },
            {
                "role": "assistant",
                "content": "",
                "thinking": "hm",
                "tool_calls": [
                    {"function": {"name": "read", "arguments": {"path": "a"}}},
                    {"function": {"name": "now"}},
                    {"id": "mine", "function": {"name": "read", "arguments": {"path": "b"}}},
                ],
            },
            {"role": "tool", "content": "12:00", "tool_name": "now"},
            {"role": "tool", "content": "bytes", "tool_call_id": "mine"},
            {"role": "tool", "content": "other"},
            {"role": "tool", "content": "unasked", "tool_name": "x"},
        ],
    )
    sent = put(body)
    assert sent["tools"] == [TOOL]
    system, user, assistant, *results = sent["messages"]
    assert system == {"role": "system", "content": "brief"}
    urls = [part["image_url"]["url"] for part in user["content"][:-1]]
    kinds = [url.partition(";")[0] for url in urls]
    assert kinds == ["data:image/png", "data:image/jpeg", "data:image/x"]
    assert urls[0] == f"data:image/png;base64,{PNG}"
    assert user["content"][-1] == {"type": "text", "text": "look"}
    assert assistant["reasoning_content"] == "hm"
    calls = [(call["id"], call["function"]["arguments"]) for call in assistant["tool_calls"]]
    assert calls == [("call00000", '{"path":"a"}'), ("call00001", "{}"), ("mine", '{"path":"b"}')]
    answered = [(one["tool_call_id"], one.get("name")) for one in results]
    assert answered == [
        ("call00001", "now"), ("mine", None), ("call00000", "read"), ("call00000", "x"),
    ]  # fmt: skip
    intent = OllamaChat().read(body)
    media = read(intent.kind, intent.put(body)).media
    assert [one.source for one in media] == urls, "images are counted as the chat's"


ODD: list[tuple[Any, dict[str, Any], str]] = [
    (OllamaChat, {"messages": "a"}, "messages"),
    (OllamaChat, {"messages": ["a"]}, "messages"),
    (OllamaChat, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
    (OllamaChat, {"messages": [{"images": ["http://a/b.png"]}]}, "images"),
    (OllamaChat, {"messages": [{"images": "abc"}]}, "images"),
    (OllamaChat, {"messages": [{"tool_calls": {}}]}, "messages"),
    (OllamaChat, {"messages": [{"tool_calls": [{"function": {"name": 7}}]}]}, "messages"),
    (OllamaChat, asked(tools={"a": 1}), "tools"),
    (OllamaChat, asked(tools=["a"]), "tools"),
    (OllamaChat, asked(model=7), "model"),
    (OllamaChat, asked(think="none"), "think"),
    (OllamaChat, asked(stream="perhaps"), "stream"),
    (OllamaChat, {"options": {"num_predict": -3}}, "options.num_predict"),
    (OllamaGenerate, {"prompt": ["a"]}, "prompt"),
    (OllamaGenerate, prompt(raw=True, images=[PNG]), "images"),
    (OllamaGenerate, prompt(raw=True, logprobs=True), "logprobs"),
    (OllamaGenerate, prompt(system=7), "system"),
    (OllamaGenerate, prompt(raw="perhaps"), "raw"),
]


@pytest.mark.parametrize(("dialect", "body", "field"), ODD)
def test_what_is_odd_is_refused_by_name(dialect: Any, body: Any, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        dialect().read(body)
    assert refused.value.param == field
