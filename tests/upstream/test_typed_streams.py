"""What is read of streams whose events have a type: Anthropic's messages and OpenAI's responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.upstream.answer import Dialect, reply_facts
from gateway.upstream.events import EVENT_CAP
from gateway.upstream.first_event import Verdict, peek
from gateway.upstream.sse import SseTap


def events(*told: dict[str, Any]) -> bytes:
    return b"".join(
        f"event: {one['type']}\ndata: {json.dumps(one, separators=(',', ':'))}\n\n".encode()
        for one in told
    )


def start(**usage: int) -> dict[str, Any]:
    return {"type": "message_start", "message": {"type": "message", "usage": usage}}


def text(words: str) -> dict[str, Any]:
    delta = {"type": "text_delta", "text": words}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def end(**usage: int) -> list[dict[str, Any]]:
    delta = {"stop_reason": "max_tokens"}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
CALL = {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t"}}
SIGNED = {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "s"}}

# The usage as each version tells it: in 0.5.12 only at the end, the cached part left in; later at the
# start, less what came from the cache.
MESSAGES = {
    "0.5.12": [start(input_tokens=0, output_tokens=0), BLOCK, text("a"), text('"type":"message_stop"')],
    "0.5.17": [start(input_tokens=10, output_tokens=0), BLOCK, text("a"), text("b")],
    "0.5.17 cached": [
        start(input_tokens=1, cache_read_input_tokens=9, output_tokens=0), BLOCK, text("a"), text("b"),
    ],
}  # fmt: skip
ENDS = {
    "0.5.12": end(input_tokens=10, output_tokens=8),
    "0.5.17": end(output_tokens=8),
    "0.5.17 cached": end(output_tokens=8),
}


def run(dialect: Dialect, data: bytes, size: int) -> SseTap:
    tap = SseTap(dialect, strip_usage=True)
    out = b"".join(tap.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert out + tap.finish() == data
    return tap


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("version", MESSAGES)
def test_messages(version: str, size: int) -> None:
    tap = run("messages", events(*MESSAGES[version]), size)
    assert (tap.tokens, tap.done, tap.finish_reasons) == (2, False, {})
    tap = run("messages", events(*MESSAGES[version], *ENDS[version]), size)
    assert (tap.prompt_tokens, tap.completion_tokens, tap.tokens) == (10, 8, 8)
    assert tap.cached_tokens == (9 if "cached" in version else None)
    assert (tap.done, tap.finish_reasons) == (True, {0: "max_tokens"})


def test_a_call_is_output_and_a_signature_is_not() -> None:
    assert run("messages", events(CALL, SIGNED), 9999).tokens == 1


def response(status: str, usage: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"object": "response", "status": status, "usage": usage, "error": None, **more}


CREATED = {"type": "response.created", "response": response("in_progress")}
RUNNING = {"type": "response.in_progress", "response": response("in_progress")}
DELTA = {"type": "response.output_text.delta", "delta": "w"}
USAGE = {"input_tokens": 10, "output_tokens": 8, "input_tokens_details": {"cached_tokens": 9}}


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("status", ["completed", "incomplete"])
@pytest.mark.parametrize("long", ["", "w" * (EVENT_CAP + 9)])
def test_responses(status: str, long: str, size: int) -> None:
    if long and size == 1:
        size = 777
    ended = {"response": response(status, USAGE, output=[long]), "type": f"response.{status}"}
    ended["response"] = {"output": [long], **response(status, USAGE)}
    data = events(CREATED, RUNNING, DELTA, DELTA)
    tap = run("responses", data, size)
    assert (tap.tokens, tap.done, tap.error) == (2, False, None)
    tap = run("responses", data + events(ended), size)
    assert (tap.completion_tokens, tap.done, tap.error) == (8, True, None)
    if not long:
        assert (tap.prompt_tokens, tap.cached_tokens) == (10, 9)
        assert tap.finish_reasons == {0: status}


def test_whole_answers() -> None:
    message = {
        "type": "message",
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    facts = reply_facts("messages", json.dumps(message).encode())
    assert (facts.prompt_tokens, facts.completion_tokens) == (3, 2)
    assert facts.finish_reasons == {0: "end_turn"}
    old = {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 9},
    }
    for usage, made, cached in ((USAGE, 8, 9), (old, 6, 9)):
        facts = reply_facts("responses", json.dumps(response("completed", usage)).encode())
        assert (facts.prompt_tokens, facts.completion_tokens) == (10, made)
        assert (facts.cached_tokens, facts.error) == (cached, None)


FULL = {
    "type": "error",
    "error": {"type": "overloaded_error", "message": "The request queue is full."},
}
BAD = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
FAILED = {
    "type": "response.failed",
    "response": {"error": {"code": "server_error", "message": "x"}},
}
UNSAID = {"type": "response.failed", "response": {"error": None}}
PLAIN = {"type": "error", "code": "server_error", "message": "x"}


@pytest.mark.parametrize(
    ("told", "verdict", "status"),
    [
        ([start(input_tokens=0)], Verdict.INCOMPLETE, None),
        ([start(input_tokens=0), {"type": "ping"}], Verdict.INCOMPLETE, None),
        ([start(input_tokens=0), BLOCK], Verdict.DATA, None),
        ([start(input_tokens=0), FULL], Verdict.BACKPRESSURE, 503),
        ([start(input_tokens=0), BAD], Verdict.ERROR, 400),
        ([CREATED, RUNNING], Verdict.INCOMPLETE, None),
        ([CREATED, RUNNING, DELTA], Verdict.DATA, None),
        ([CREATED, RUNNING, FAILED], Verdict.ERROR, 500),
        ([CREATED, RUNNING, UNSAID], Verdict.ERROR, 500),
        ([CREATED, PLAIN], Verdict.ERROR, 500),
    ],
)
def test_a_verdict_waits_for_what_comes_after_the_first_event(
    told: Any, verdict: Verdict, status: Any
) -> None:
    seen = peek(events(*told))
    assert (seen.verdict, seen.status) == (verdict, status)


@pytest.mark.parametrize("dialect", ["messages", "responses"])
@pytest.mark.parametrize("kind", ["[]", "{}", "7", "null", '["response.completed"]'])
def test_a_type_that_is_no_text_is_no_type(dialect: Dialect, kind: str) -> None:
    event = f'data: {{"type":{kind},"response":[],"usage":{{"output_tokens":3}}}}\n\n'.encode()
    tap = SseTap(dialect, strip_usage=False)
    assert tap.feed(event) == event
    assert not tap.done
