"""The engine's events in, Ollama's lines out: pure, and however the network cut them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.edge.dialects import Times, teller
from gateway.edge.dialects.teller import OllamaTeller, Shape
from tests.edge.rig import lines

USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
END = b"data: [DONE]\n\n"


class Clock:
    """Moves on by a second each time it is read."""

    def __init__(self) -> None:
        self.at = 2.0

    def __call__(self) -> float:
        self.at += 1.0
        return self.at


def told_by(shape: Shape = Shape.CHAT) -> OllamaTeller:
    """Arrived at 0, granted at 2; the first reading of the clock is 3."""
    return OllamaTeller(shape, "tiny", Times(0.0, 2.0, Clock(), lambda: "noon"))


def event(delta: Any = None, reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": reason, **more}
    return (
        b"data: " + json.dumps({"id": "a", "choices": [choice], "usage": None}).encode() + b"\n\n"
    )


def usage() -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"


def called(index: int, *, name: str | None = None, part: str = "", ident: str = "") -> bytes:
    function = {"name": name, "arguments": part}
    call = {"index": index, "id": ident or None, "type": "function", "function": function}
    return event({"tool_calls": [call]})


def all_of(one: OllamaTeller, data: bytes) -> list[Any]:
    return lines(one.feed(data) + one.finish())


WORDS = (
    event({"role": "assistant", "content": "", "reasoning_content": None})
    + event({"reasoning_content": "hm", "content": None})
    + event({"content": "Aé"})
    + event({"content": "b"})
    + event({"content": None}, "length")
    + usage()
    + END
)


def test_a_chat_in_pieces() -> None:
    head = {"model": "tiny", "created_at": "noon"}
    message = {"role": "assistant", "content": ""}
    assert all_of(told_by(), WORDS) == [
        {**head, "message": {**message, "thinking": "hm"}, "done": False},
        {**head, "message": {**message, "content": "Aé"}, "done": False},
        {**head, "message": {**message, "content": "b"}, "done": False},
        {
            **head,
            "message": message,
            "done_reason": "length",
            "total_duration": 4_000_000_000,
            "load_duration": 2_000_000_000,
            "prompt_eval_count": 10,
            "prompt_eval_duration": 1_000_000_000,
            "eval_count": 4,
            "eval_duration": 1_000_000_000,
            "done": True,
        },
    ]


def test_each_piece_goes_out_with_the_read_it_came_in() -> None:
    one = told_by()
    assert lines(one.feed(event({"content": "a"})))[0]["message"]["content"] == "a"
    assert one.feed(event({}, "stop")) == b"", "the end waits for the usage"
    assert lines(one.feed(usage() + END))[-1]["done"]
    assert one.feed(event({"content": "late"})) == one.finish() == b""


@pytest.mark.parametrize("ends", [b"\n\n", b"\r\n\r\n"])
def test_wherever_it_is_cut_the_lines_are_the_same(ends: bytes) -> None:
    data = WORDS.replace(b"\n\n", ends)
    wanted = [line["message"] for line in all_of(told_by(), data)]
    for at in range(len(data)):
        one = told_by()
        cut = lines(one.feed(data[:at]) + one.feed(data[at:]) + one.finish())
        assert [line["message"] for line in cut] == wanted, at


def test_responses_from_a_chat_and_from_a_completion() -> None:
    found = all_of(told_by(Shape.GENERATE), WORDS)
    assert [line["response"] for line in found] == ["", "Aé", "b", ""]
    assert found[0]["thinking"] == "hm"
    assert "message" not in found[0]
    data = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
    data += b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\n'
    assert [
        (line["response"], line["done"])
        for line in all_of(told_by(Shape.RAW), data + usage() + END)
    ] == [("a", False), ("", True)]


def test_calls_of_tools_are_told_whole_before_the_end() -> None:
    data = (
        event({"content": "so: "})
        + called(0, name="read", ident="call_9")
        + called(0, part='{"path": ')
        + called(1, name="now")
        + called(0, part='"a.py"}')
        + event({}, "tool_calls")
        + usage()
        + END
    )
    words, calls, last = all_of(told_by(), data)
    assert words["message"]["content"] == "so: "
    assert calls["message"] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_9",
                "function": {"index": 0, "name": "read", "arguments": {"path": "a.py"}},
            },
            {"id": "call00001", "function": {"index": 1, "name": "now", "arguments": {}}},
        ],
    }
    assert (calls["done"], last["done"], last["done_reason"]) == (False, True, "stop")


@pytest.mark.parametrize("part", ['{"path": "a', "[1]", "{} {}"])
def test_arguments_that_are_no_object_are_told_as_the_text_they_are(part: str) -> None:
    data = called(0, name="read", part=part) + event({}, "length") + usage() + END
    text, last = all_of(told_by(), data)
    assert text["message"] == {"role": "assistant", "content": "read" + part}
    assert last["done_reason"] == "length"


def test_an_error_is_one_line_and_the_last() -> None:
    error = b'data: {"error":{"object":"error","message":"out of memory","code":503}}\n\n'
    found = all_of(told_by(), event({"content": "a"}) + error + usage() + END)
    assert found[1:] == [{"error": "out of memory", "code": 503}]


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (event({"content": "a"}), False),
        (event({"content": "a"}) + usage(), False),
        (event({"content": "a"}) + END, True),
        (event({"content": "a"}) + event({}, "stop"), True),
        (event({"content": "a"}) + event({}, "stop").rstrip(), True),
    ],
)
def test_without_a_mark_of_the_end_there_is_no_last_line(data: bytes, ends: bool) -> None:
    found = all_of(told_by(), data)
    assert [line["done"] for line in found] == ([False, True] if ends else [False])


def test_log_probabilities_come_with_their_piece() -> None:
    token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    found = all_of(told_by(), event({"content": "a"}, logprobs={"content": [token]}) + END)
    assert found[0]["logprobs"] == [token]


def test_an_event_or_calls_without_end_are_given_up(monkeypatch) -> None:
    monkeypatch.setattr(teller, "MOST_BYTES", 1000)
    one = told_by()
    assert one.feed(b"data: " + b"x" * 900) == b""
    assert "larger than 1000 bytes" in lines(one.feed(b"x" * 100))[0]["error"]
    assert one.feed(b"\n\n" + WORDS) == one.finish() == b""
    (line,) = all_of(told_by(), called(0, name="a", part=" " * 300) * 3 + END)
    assert "larger" in line["error"]
    (line,) = all_of(told_by(), called(0, name="a") * 5 + END)
    assert "larger" in line["error"]


@pytest.mark.parametrize("shape", [Shape.CHAT, Shape.GENERATE])
def test_a_whole_answer(shape: Shape) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"a":1}'}}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm"}
    message |= {"tool_calls": [call]} if shape is Shape.CHAT else {"content": "b"}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = json.dumps({"choices": [choice], "usage": USAGE}).encode()
    found = json.loads(told_by(shape).whole(body) or b"")
    if shape is Shape.CHAT:
        function = {"index": 0, "name": "read", "arguments": {"a": 1}}
        wanted = {"role": "assistant", "content": "", "thinking": "hm"}
        assert found["message"] == wanted | {"tool_calls": [{"id": "c", "function": function}]}
    else:
        assert (found["response"], found["thinking"]) == ("b", "hm")
    assert (found["done"], found["done_reason"], found["eval_count"]) == (True, "stop", 4)
    assert (found["prompt_eval_duration"], found["eval_duration"]) == (0, 1_000_000_000)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"no", b'{"choices":[]}', b'{"choices":[{"message":7}]}', b"[" * 5000]
)
def test_what_is_no_answer_is_none(body: bytes) -> None:
    assert told_by().whole(body) is None
