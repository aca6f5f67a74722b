"""A stream of responses that fails, as its clients read it: the SDKs `error`, Codex `response.failed`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import openai
import orjson
import pytest
from openai.types.responses import ResponseErrorEvent, ResponseFailedEvent

from gateway.edge import failed, replies
from gateway.edge.failed import About
from gateway.edge.voices import ANTHROPIC, OLLAMA, OPENAI
from gateway.upstream.sse import SseTap
from tests.edge.rig import API_CHAT, CHAT, chat, lines
from tests.edge.test_messages import MESSAGES, told
from tests.edge.test_refusals import Busy
from tests.fakes.behaviour import Behaviour
from tests.fakes.typed import RESPONSES

if TYPE_CHECKING:
    from tests.edge.rig import Rig

ASK = {"model": "tiny", "input": "a", "max_output_tokens": 5, "stream": True}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def as_codex_reads(body: bytes) -> tuple[str, str]:
    """Code and message, by what codex-rs looks at (codex-api, sse/responses.rs): the type in the data,
    and of `response.failed` its response's error; a code that is no text is none at all."""
    for _, data in told(body):
        if data["type"] == "response.failed":
            error = data["response"]["error"]
            assert isinstance(error["code"], str)
            assert isinstance(error["message"], str)
            return error["code"], error["message"]
    return "", "stream closed before response.completed"


def checked(body: bytes) -> tuple[Any, Any]:
    """The last two events, which the SDK's own models take, numbered as all before them."""
    events = [data for _, data in told(body)]
    ResponseErrorEvent.model_validate(events[-2])
    failure = ResponseFailedEvent.model_validate(accepted(events[-1]))
    assert failure.response.status == "failed"
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert b"[DONE]" not in body
    return events[-2], events[-1]


def accepted(data: Any) -> Any:
    """With a code that the SDK lists in place of the two that OpenAI sends and it does not list."""
    response = data["response"]
    if response["error"]["code"] in {"context_length_exceeded", "insufficient_quota"}:
        response = response | {"error": response["error"] | {"code": "server_error"}}
    return data | {"response": response}


@pytest.mark.parametrize("bend", [{"reset_at": 2}, {"close_at": 2}], ids=["breaks off", "no end"])
async def test_one_that_breaks_off_goes_on_to_its_end(rig, bend: Any) -> None:
    rig.engine.queue.append(Behaviour(tokens=5, **bend))
    got = await rig.post(RESPONSES, ASK)
    error, failure = checked(got.body)
    assert error["code"] == error["error"]["code"] == "upstream_error"
    begun = told(got.body)[0][1]["response"]
    kept = {name: value for name, value in begun.items() if name not in {"status", "error"}}
    assert failure["response"] | kept == failure["response"], "the response that it began with"
    assert as_codex_reads(got.body) == ("server_error", error["message"])


async def test_one_that_waits_in_vain_is_told_when_to_come_back(start) -> None:
    policy = {"queue": {"heartbeat_s": 0.02, "max_wait_s": 0.1}}
    async with start(policy) as rig, Busy(rig):
        got = await rig.post(RESPONSES, ASK)
        error, failure = checked(got.body)
        record = rig.records[0]
        wait = error["error"]["retry_after_s"]
        assert wait == round(record["retry_after_s"])
        assert error["code"] == "queue_timeout"
        assert (failure["response"]["id"], failure["response"]["model"]) == (record["id"], "tiny")
        code, words = as_codex_reads(got.body)
        assert code == "rate_limit_exceeded"
        assert f"Try again in {wait} s." in words
        assert "Retry-After" not in words, "there is no such header any more"


@pytest.mark.parametrize("path", [CHAT, MESSAGES, API_CHAT])
async def test_so_is_one_of_another_api(start, path: str) -> None:
    policy = {"queue": {"heartbeat_s": 0.02, "max_wait_s": 0.1}}
    async with start(policy) as rig, Busy(rig):
        got = await rig.post(path, chat(max_tokens=5, stream=True))
        said = lines(got.body)[-1] if path == API_CHAT else _last(got.body)["error"]
        wait = said["retry_after_s"]
        words = said["error"] if path == API_CHAT else said["message"]
        assert words.endswith(f"Try again in {wait} s.")


def _last(body: bytes) -> Any:
    return orjson.loads(body.rstrip(b"\n").rpartition(b"data: ")[2])


async def cut(rig: Rig, path: str, body: Any, part: bytes) -> bytes:
    """What a client has of a stream that was going on, `part` of it here, when the gate went down."""
    rig.engine.default = Behaviour(raw=HEAD + part, hold=asyncio.Event(), hold_at=1)
    url = rig.app.listen_url + path
    async with rig.http.post(url, json=body) as answer:
        assert answer.status == 200
        begun = await answer.content.readexactly(len(part))
        await rig.stop()
        return bytes(begun + await answer.content.read())


BEGUN = event("response.created", sequence_number=0, response={"id": "r7", "model": "m"})


async def test_one_that_is_cut_when_the_gate_goes_down(start) -> None:
    async with start(quiet=False) as rig:
        delta = event("response.output_text.delta", sequence_number=1, delta="a")
        error, failure = checked(await cut(rig, RESPONSES, ASK, BEGUN + delta))
        assert (error["code"], failure["response"]["id"]) == ("draining", "r7")
        assert failure["response"]["error"]["code"] == "rate_limit_exceeded"


WHOLE = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
HALVES = {
    CHAT: (WHOLE, chat(stream=True, stream_options={"include_usage": True})),
    MESSAGES: (event("content_block_delta", delta={"text": "a"}), chat(stream=True, max_tokens=5)),
    RESPONSES: (BEGUN + event("response.output_text.delta", delta="a"), ASK),
}


@pytest.mark.parametrize("path", HALVES)
async def test_what_is_cut_inside_an_event_has_its_error_apart_from_it(start, path: str) -> None:
    """The two would be read as one, and the error not at all."""
    async with start(quiet=False) as rig:
        whole, body = HALVES[path]
        part = whole + b'data: {"half of an ev'
        got = await cut(rig, path, body, part)
        assert got.startswith(part + b"\n\n")
        assert b"draining" in got.removeprefix(part)


@pytest.mark.parametrize(
    ("status", "code"),
    [(500, "server_error"), (400, "invalid_prompt"), (429, "rate_limit_exceeded")],
)
async def test_an_error_that_the_engine_tells_is_followed_by_its_end(
    rig, status: int, code: str
) -> None:
    """SGLang tells it as an `error` object alone."""
    rig.engine.queue.append(Behaviour(tokens=5, error=(status, "so it is"), error_at=2))
    got = await rig.post(RESPONSES, ASK)
    *_, (_, theirs), (name, ours) = told(got.body.replace(b"\n\ndata: ", b"\n\nevent: x\ndata: "))
    assert theirs["error"]["message"] == "so it is"
    assert name == "response.failed"
    assert ours["response"]["error"] == {"code": code, "message": "so it is"}
    assert got.body.count(b"so it is") == 2
    assert rig.records[0]["reason"] == "the engine ended it with an error"


async def test_its_end_stands_apart_from_an_error_without_a_blank_line(rig) -> None:
    part = b'data: {"error":{"message":"so it is","code":500}}'
    rig.engine.queue.append(Behaviour(raw=HEAD + BEGUN + DELTA + part))
    got = await rig.post(RESPONSES, ASK)
    assert got.body.startswith(BEGUN + DELTA + part + b"\n\nevent: response.failed\n")
    assert as_codex_reads(got.body) == ("server_error", "so it is")


async def test_a_failure_that_the_engine_tells_itself_is_all_there_is(rig) -> None:
    error = {"code": "server_error", "message": "theirs"}
    end = event("response.failed", sequence_number=1, response={"id": "r7", "error": error})
    rig.engine.queue.append(Behaviour(raw=HEAD + BEGUN + end))
    rig.engine.queue.append(Behaviour(raw=HEAD + BEGUN + DELTA + end))
    assert (await rig.post(RESPONSES, ASK)).status == 500, "it came before anything else"
    assert (await rig.post(RESPONSES, ASK)).body == BEGUN + DELTA + end


DELTA = event("response.output_text.delta", sequence_number=1, delta="a")


async def test_the_engine_s_error_on_other_routes_is_all_there_is(rig) -> None:
    for path, body in ((CHAT, chat(stream=True)), (MESSAGES, chat(stream=True, max_tokens=5))):
        rig.engine.queue.append(Behaviour(tokens=5, error=(500, "so it is"), error_at=2))
        got = await rig.post(path, body)
        assert got.body.count(b"so it is") == 1
        assert b"response.failed" not in got.body


async def test_the_sdk_raises_with_our_code_and_words(rig) -> None:
    async with openai.AsyncOpenAI(base_url=rig.app.listen_url + "/v1", api_key="x") as client:
        rig.engine.queue.append(Behaviour(tokens=5, reset_at=2))
        with pytest.raises(openai.APIError, match="broke off") as broken:
            await _read(client.responses.stream(model="tiny", input="a"))
        assert broken.value.code == "upstream_error"


async def _read(streamed: Any) -> None:
    async with streamed as stream:
        async for _ in stream:
            pass


CODES = [
    (400, "context_length_exceeded", "context_length_exceeded"),
    (400, "invalid_request", "invalid_prompt"),
    (400, "quarantined", "invalid_prompt"),
    (408, "invalid_request", "server_error"),
    (429, "quota_exceeded", "insufficient_quota"),
    (429, "client_limit", "rate_limit_exceeded"),
    (503, "no_backend", "rate_limit_exceeded"),
    (502, "upstream_error", "server_error"),
    (504, "upstream_timeout", "server_error"),
    (500, 500, "server_error"),
    (400, None, "invalid_prompt"),
]


@pytest.mark.parametrize(("status", "ours", "theirs"), CODES)
def test_codes_are_those_that_openai_has(status: int, ours: Any, theirs: str) -> None:
    """Codex stops at a bad prompt and a quota, waits at a limit, makes room in a full context."""
    error = {"message": "m", "code": ours}
    body = failed.both(error, status, About("r", "tiny"))
    assert as_codex_reads(body) == (theirs, "m")
    first, _ = checked(body)
    assert first["code"] == (None if ours is None else str(ours))


def test_an_error_without_words_has_some() -> None:
    for error in ({}, {"message": None}, {"message": ""}, {"message": {"a": 1}}):
        body = failed.both(error, 502, About("r", "tiny"))
        assert as_codex_reads(body) == ("server_error", "The server answered 502.")


def tapped(*events: bytes) -> Any:
    tap = SseTap("responses", strip_usage=False)
    for one in events:
        tap.feed(one)
    data = failed.last({"message": "m"}, 502, About("ours", "tiny", tap))
    return orjson.loads(data.partition(b"data: ")[2])


def test_numbers_go_on_from_the_last_that_was_seen() -> None:
    large = event("response.output_item.done", sequence_number=2, item={"text": "x" * 70_000})
    assert tapped(BEGUN, DELTA)["sequence_number"] == 2
    assert tapped(BEGUN, DELTA, large)["sequence_number"] == 3, "counted, if not read"
    assert tapped(event("response.output_text.delta", sequence_number=41))["sequence_number"] == 42
    assert tapped(event("response.output_text.delta", delta="a"))["sequence_number"] == 1


@pytest.mark.parametrize("number", [-1, True, "7", None, 2**64 - 1, 1e300, [1]])
def test_strange_numbers_are_none(number: Any) -> None:
    assert (
        tapped(event("response.output_text.delta", sequence_number=number))["sequence_number"] == 1
    )


def test_of_the_first_event_only_what_is_flat_is_kept() -> None:
    """A parser reads deeper than a writer writes."""
    deep = b'{"type":"response.created","response":{"id":"r7","tools":%b%b,"model":"m"}}'
    response = tapped(b"data: " + deep % (b"[" * 900, b"]" * 900) + b"\n\n")["response"]
    assert (response["id"], response["model"], response["tools"]) == ("r7", "m", [])
    assert tapped(event("response.created", response=7))["response"]["id"] == "ours"


@pytest.mark.parametrize("said", ["soon", "", "٣", "-1"])
def test_a_time_that_is_none_is_not_told(said: str) -> None:
    error = {"message": f"no; try again {replies.AFTER}."}
    assert replies.without_headers(error, {"retry-after": said}) == error
    assert replies.without_headers(error, {}) == error


def test_others_say_it_as_before() -> None:
    error, about = {"message": "m", "code": "c", "type": "t", "param": None}, About("r", "tiny")
    assert OPENAI.event(error, 502, about) == b"data: %b\n\n" % orjson.dumps({"error": error})
    assert ANTHROPIC.event(error, 502, about).startswith(b'event: error\ndata: {"type":"error"')
    assert OLLAMA.event(error, 502) == b'{"error":"m","code":"c"}\n'
    assert OPENAI.after(error, 502, about) == ANTHROPIC.after(error, 502, about) == b""
