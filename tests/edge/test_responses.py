"""OpenAI's responses through the official client: streamed, whole, and what is kept out."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import openai
import orjson
import pytest

from gateway.edge import handler
from gateway.tokens.responses import PACKED, UNPACKED
from tests.edge.test_messages import told
from tests.edge.test_refusals import Busy
from tests.fakes.behaviour import Behaviour, queue_full
from tests.fakes.typed import RESPONSES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOOL: Any = {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False}
TURNS: Any = [
    {"role": "user", "content": [{"type": "input_text", "text": "read it"}]},
    {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "a b c"},
    {"role": "user", "content": "and now"},
]


@pytest.fixture
async def client(rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=rig.app.listen_url + "/v1", api_key="sk-any", max_retries=0
    ) as one:
        yield one


async def test_an_answer_and_a_stream(rig, client) -> None:
    answer = await client.responses.create(
        model="tiny", instructions="be brief", input=TURNS, tools=[TOOL], max_output_tokens=5
    )
    assert answer.output_text.split() == ["w"] * 5
    record = rig.records[0]
    assert (record["dialect"], record["output_tokens"]) == ("responses", 5)
    assert record["prompt_tokens"] == record["usage_prompt_tokens"] == rig.engine.seen[0].held - 5
    assert record["count_method"] == "estimate"
    sent = rig.engine.seen[0].body
    assert (sent["request_id"], sent["store"]) == (answer.id, False)
    assert sent["request_id"].startswith(record["id"])
    assert (sent["input"], sent["tools"]) == (TURNS, [TOOL])
    stream = await client.responses.create(
        model="tiny", input="a b", max_output_tokens=5, stream=True
    )
    events = [event async for event in stream]
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text.split() == ["w"] * 5
    record = rig.records[0]
    assert (record["outcome"], record["output_tokens"]) == ("completed", 5)
    assert record["ttft_ms"] is not None


async def test_no_cap_becomes_ours(rig, client) -> None:
    await client.responses.create(model="tiny", input="a b")
    cap = rig.engine.seen[0].body["max_output_tokens"]
    assert cap == rig.records[0]["cap_forwarded"] > 100


KEPT_OUT: list[dict[str, Any]] = [
    {"previous_response_id": "resp_1"},
    {"background": True},
    {"conversation": "conv_1"},
    {"tools": [{"type": "web_search"}]},
    {"tools": [{"type": "namespace", "name": "n", "tools": [TOOL]}, {"type": "mcp"}]},
    {"tools": {"a": 1}},
    {"tools": [TOOL, {"name": "b"}]},
    {"tools": [TOOL, {"type": ["function"]}]},
    {"tools": [TOOL, 7]},
    {"max_output_tokens": 1},
    {"input": ""},
    {"input": [7]},
]


async def test_what_the_gate_could_not_follow_is_refused(rig) -> None:
    for fields in KEPT_OUT:
        got = await rig.post(RESPONSES, {"model": "tiny", "input": "a", **fields})
        assert (got.status, got.code) == (400, "invalid_request"), fields
    assert rig.engine.seen == []


TAKES_TEXT: Any = {"type": "custom", "name": "patch", "description": "Edits."}
CODEX: Any = [
    {"type": "namespace", "name": "agents", "tools": [TOOL]},
    TOOL,
    {"type": "web_search", "external_web_access": False},
    TAKES_TEXT,
    {"type": "local_shell"},
]


@pytest.mark.parametrize("stream", [False, True])
async def test_of_an_agent_s_tools_those_go_on_that_it_runs_itself(rig, stream: bool) -> None:
    """Codex lists a search of the web and others beside its own, whoever serves it."""
    body = {"model": "tiny", "input": "a", "tools": CODEX, "stream": stream}
    got = await rig.post(RESPONSES, {**body, "store": False, "max_output_tokens": 5})
    assert got.status == 200
    assert rig.engine.seen[0].body["tools"] == [TOOL, TAKES_TEXT]
    fewer = await rig.post(RESPONSES, {**body, "tools": [TOOL, TAKES_TEXT]})
    assert fewer.headers["x-kvgate-prompt-tokens"] == got.headers["x-kvgate-prompt-tokens"]


LEFT_OUT = "local_shell=1 namespace=1 web_search=1"


@pytest.mark.parametrize("stream", [False, True])
async def test_which_tools_were_left_out_is_told(rig, stream: bool) -> None:
    body = {"input": "a", "max_output_tokens": 5, "stream": stream}
    got = await rig.post(RESPONSES, {**body, "tools": CODEX})
    assert got.headers["x-kvgate-tools-left-out"] == LEFT_OUT
    assert rig.records[0]["tools_left_out"] == LEFT_OUT
    for tools in ({"tools": [TOOL, TAKES_TEXT]}, {"tools": []}, {"tools": None}, {}):
        got = await rig.post(RESPONSES, {**body, **tools})
        assert got.status == 200
        assert "x-kvgate-tools-left-out" not in got.headers
        assert rig.records[0]["tools_left_out"] is None


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        (["mcp", "shell", "mcp"], "mcp=2 shell=1"),
        (
            ["web_search_2025_08_26", "web_search", "web_search_preview"],
            "web_search=2 web_search_preview=1",
        ),
        (
            [
                "sk-secret",
                "a_secret",
                "",
                "Web_Search",
                "web_search_2025",
                "mcp ",
                "mcp\r\nx: y",
                "é" * 900,
            ],
            "other=8",
        ),
    ],
)
async def test_of_a_client_s_words_only_known_ones_are_told(
    rig, logged, kinds: list[str], told: str
) -> None:
    """They come into log, record and header."""
    tools = [TOOL, *({"type": kind} for kind in kinds)]
    got = await rig.post(RESPONSES, {"input": "a", "max_output_tokens": 5, "tools": tools})
    assert got.status == 200
    assert got.headers["x-kvgate-tools-left-out"] == told
    assert rig.records[0]["tools_left_out"] == told
    lines = [orjson.loads(line) for line in logged.getvalue().splitlines()]
    assert [one["tools_left_out"] for one in lines if one["event"] == "request"] == [told]
    assert "secret" not in logged.getvalue()


async def test_of_one_that_waits_it_is_told_with_the_first_sign_of_life(start) -> None:
    body = {"input": "a", "max_output_tokens": 5, "stream": True, "tools": CODEX}
    policy = {"queue": {"heartbeat_s": 0.02, "max_wait_s": 0.1}}
    async with start(policy) as rig, Busy(rig):
        got = await rig.post(RESPONSES, body)
        assert got.body.startswith(b": waiting")
        assert got.headers["x-kvgate-tools-left-out"] == LEFT_OUT


@pytest.mark.parametrize("admission", ["off", "shadow"])
async def test_what_passes_as_it_came_is_told_of_nothing(start, admission: str) -> None:
    async with start({"admission": admission}) as rig:
        got = await rig.post(RESPONSES, {"input": "a", "max_output_tokens": 5, "tools": CODEX})
        assert rig.engine.seen[0].body["tools"] == CODEX
        assert "x-kvgate-tools-left-out" not in got.headers
        await rig.until(lambda: rig.records)
        assert rig.records[0]["tools_left_out"] is None


async def test_packed_thoughts_that_burst_are_refused(rig) -> None:
    """How they are counted: tests/tokens/test_requests.py."""

    def body(thoughts: bytes) -> Any:
        blob = PACKED + base64.urlsafe_b64encode(zlib.compress(thoughts)).decode()
        return {"input": [{"type": "reasoning", "encrypted_content": blob}, TURNS[0]]}

    got = await rig.post(RESPONSES, body(bytes(UNPACKED + 1)))
    assert (got.status, got.code) == (400, "invalid_request")
    assert "encrypted_content" in got.error["message"]
    assert rig.engine.seen == []
    assert (await rig.post(RESPONSES, body(b"hm"))).status == 200
    assert rig.engine.seen[0].body["input"] == body(b"hm")["input"], "goes on as it came"


async def test_a_full_queue_of_the_engine_is_waited_out(rig, monkeypatch) -> None:
    """It is told after the two events that every stream begins with."""
    monkeypatch.setattr(handler, "PAUSE_S", 0.01)
    rig.engine.queue.append(queue_full())
    got = await rig.post(RESPONSES, {"input": "a", "max_output_tokens": 5, "stream": True})
    names = [name for name, _ in told(got.body)]
    assert (names.count("response.created"), names[-1]) == (1, "response.completed")
    assert rig.records[0]["attempts"] == 2


async def test_a_stream_that_breaks_raises_in_the_client(rig, client) -> None:
    rig.engine.queue.append(Behaviour(tokens=5, reset_at=2))
    stream = await client.responses.create(
        model="tiny", input="a", max_output_tokens=5, stream=True
    )
    with pytest.raises(openai.APIError) as broken:
        async for _ in stream:
            pass
    assert broken.value.code == "upstream_error"
    assert rig.records[0]["outcome"] == "failed"


async def test_a_stream_without_its_last_event_is_told_to_be_incomplete(rig) -> None:
    rig.engine.queue.append(Behaviour(tokens=5, close_at=2))
    got = await rig.post(RESPONSES, {"input": "a", "max_output_tokens": 5, "stream": True})
    *_, (name, event), (end, _) = told(got.body)
    assert (name, event["type"], event["code"]) == ("error", "error", "upstream_error")
    assert end == "response.failed"


async def test_a_long_last_event_is_still_the_end(rig) -> None:
    """It repeats the whole answer, and passes the size up to which events are parsed."""
    rig.engine.queue.append(Behaviour(tokens=40, pad=4000))
    got = await rig.post(RESPONSES, {"input": "a", "max_output_tokens": 50, "stream": True})
    assert told(got.body)[-1][0] == "response.completed"
    assert (rig.records[0]["outcome"], rig.records[0]["output_tokens"]) == ("completed", 40)


async def test_one_that_waits_gets_comments_and_then_its_error_as_an_event(start) -> None:
    policy = {"queue": {"heartbeat_s": 0.02, "max_wait_s": 0.1}}
    async with start(policy) as rig, Busy(rig):
        got = await rig.post(RESPONSES, {"input": "a", "max_output_tokens": 5, "stream": True})
        assert got.body.startswith(b": waiting, position 1\n\n")
        (name, event), (end, _) = told(got.body)
        assert (name, event["code"], end) == ("error", "queue_timeout", "response.failed")


@pytest.mark.parametrize(
    ("field", "bad", "good"),
    [
        ("temperature", -0.1, 0),
        ("top_p", 0, 1),
        ("top_p", "1.5", "0.5"),
        ("min_p", -1, 0),
        ("top_k", -2, -1),
        ("top_k", 0, 1),
        ("frequency_penalty", 2.5, -2),
        ("presence_penalty", -2.5, 2),
        ("repetition_penalty", -1, 0.5),
        ("repetition_penalty", 3, None),
    ],
)
async def test_a_parameter_out_of_its_range_is_refused_before_a_stream_begins(
    rig, field: str, bad: Any, good: Any
) -> None:
    """Of a stream of responses the engine looks once it has begun: a bare 500 (0.5.17)."""
    body = {"input": "a", "max_output_tokens": 5, "stream": True}
    got = await rig.post("/v1/responses", body | {field: bad})
    assert (got.status, got.error["param"]) == (400, field)
    assert rig.engine.seen == []
    assert (await rig.post("/v1/responses", body | {field: good})).status == 200


@pytest.mark.parametrize(
    ("version", "effort", "stream", "status"),
    [
        ("0.5.17", "none", True, 400),
        ("0.5.17", "xhigh", True, 400),
        ("0.5.17", "none", False, 200),
        ("0.5.17", "minimal", True, 200),
        ("0.5.23", "none", True, 200),
    ],
)
async def test_an_effort_that_breaks_a_stream_is_refused_where_it_does(
    start, version: str, effort: str, stream: bool, status: int
) -> None:
    """The engine's stream has no word for it, and ends before its first event (0.5.17)."""
    body = {"input": "a", "max_output_tokens": 5, "stream": stream, "reasoning": {"effort": effort}}
    async with start(version=version) as rig:
        got = await rig.post("/v1/responses", body)
        assert got.status == status, got.body
        assert status == 200 or (got.error["param"], rig.engine.seen) == ("reasoning", [])


@pytest.mark.parametrize(
    ("version", "status"), [("0.5.6", 400), ("0.5.12", 400), ("0.5.13", 200), ("0.5.17", 200)]
)
async def test_tools_are_refused_where_the_server_knows_none(
    start, version: str, status: int
) -> None:
    """A function is a bare 500 there (0.5.12): the reader of responses has kinds of its own only."""
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    async with start(version=version) as rig:
        body = {"input": "a", "max_output_tokens": 5}
        got = await rig.post("/v1/responses", body | {"tools": tools})
        assert got.status == status, got.body
        assert status == 200 or (got.error["param"], rig.engine.seen) == ("tools", [])
        assert (await rig.post("/v1/responses", body | {"tools": []})).status == 200
