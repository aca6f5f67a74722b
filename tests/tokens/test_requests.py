"""Which prompts a body holds: responses, and queries that stand before each item."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from gateway.tokens import Counter, CountRefused, Kind, Method
from gateway.tokens.request import read
from gateway.tokens.responses import PACKED, UNPACKED, chat_from_responses

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
SAID = {"role": "assistant", "content": [{"type": "output_text", "text": "y"}]}


def messages(body: dict[str, Any]) -> Any:
    return chat_from_responses(body)["messages"]


def test_instructions_and_developers_are_one_system_message() -> None:
    items = [{"role": "developer", "content": "b"}, {"role": "user", "content": "c"}]
    assert messages({"instructions": "a", "input": items}) == [
        {"role": "system", "content": "a\n\nDeveloper instructions:\nb"},
        {"role": "user", "content": "c"},
    ]
    assert messages({"input": "c"}) == [{"role": "user", "content": "c"}]


def test_what_was_said_and_called_in_a_row_is_one_turn() -> None:
    thought = {"type": "reasoning", "summary": [{"text": "hm"}]}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}
    said, tool = messages({"input": [thought, SAID, CALL, CALL, result]})
    assert said["content"] == [{"type": "text", "text": "y"}]
    assert (said["reasoning_content"], len(said["tool_calls"])) == ("hm", 2)
    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert tool == {"role": "tool", "tool_call_id": "c", "content": "1"}


@pytest.mark.parametrize("role", [[], {}, None, 7])
def test_a_role_that_is_no_text_breaks_nothing(role: Any) -> None:
    (turn,) = messages({"input": [{"type": "message", "role": role, "content": "a"}]})
    assert turn["content"] == "a"


def test_only_functions_are_tools() -> None:
    tools = [{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}]
    tools.append({"type": "namespace", "name": "n", "tools": tools[:1]})
    chat = chat_from_responses({"input": "a", "tools": tools, "reasoning": {"effort": "low"}})
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["f"]
    assert (chat["tool_choice"], chat["reasoning_effort"]) == ("auto", "low")


def test_a_tool_is_shown_with_all_of_it_and_whether_it_is_strict():
    """As 0.5.23 does, in this order; before, its classes said the same of every tool."""
    schema = {"type": "object"}
    tools = [
        {"type": "function", "name": "f", "parameters": schema},
        {"type": "function", "strict": True, "parameters": schema, "name": "g", "description": "d"},
        {"type": "custom", "name": "h"},
    ]
    shown = [
        list(tool["function"].items())
        for tool in chat_from_responses({"input": "a", "tools": tools})["tools"]
    ]
    assert shown[0] == [
        ("name", "f"), ("description", None), ("parameters", schema), ("strict", False)
    ]  # fmt: skip
    assert shown[1] == [
        ("name", "g"), ("description", "d"), ("parameters", schema), ("strict", True)
    ]  # fmt: skip
    assert [name for name, _ in shown[2]] == ["name", "description", "parameters", "strict"]
    assert shown[2][-1] == ("strict", False)


def test_a_tool_that_takes_a_text_is_a_function_with_one_argument() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"}
    tool = {"type": "custom", "name": "patch", "description": "Edits.", "format": grammar}
    called = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"'}
    result = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    chat = chat_from_responses({"input": [called, result], "tools": [tool]})
    function = chat["tools"][0]["function"]
    assert function["name"] == "patch"
    assert function["description"].startswith("Edits.\n\n")
    assert function["description"].endswith("lark grammar:\nstart: /x+/")
    assert list(function["parameters"]["properties"]) == ["input"]
    call, told = chat["messages"]
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"input": 'a "b"'}
    assert told == {"role": "tool", "tool_call_id": "c", "content": "done"}


def packed(text: bytes) -> dict[str, Any]:
    """Thoughts as 0.5.23 gives them to a client that keeps nothing of it."""
    return {
        "type": "reasoning",
        "encrypted_content": PACKED + base64.urlsafe_b64encode(zlib.compress(text)).decode(),
    }


def test_packed_thoughts_are_counted_as_what_they_become() -> None:
    (turn,) = messages({"input": [packed("hm 嗯".encode())]})
    assert turn == {"role": "assistant", "reasoning_content": "hm 嗯"}
    in_words = {**packed(b"long" * 99), "summary": [{"text": "short"}]}
    (turn,) = messages({"input": [in_words]})
    assert turn["reasoning_content"] == "short", "as the engine takes it"


@pytest.mark.parametrize("blob", ["", "!", "AAA", "eJw", None, 7, []])
def test_thoughts_that_cannot_be_unpacked_are_none(blob: Any) -> None:
    whole = PACKED + blob if isinstance(blob, str) else blob
    item = {"type": "reasoning", "encrypted_content": whole}
    assert messages({"input": [item, {"role": "user", "content": "a"}]})[0]["role"] == "user"


@pytest.mark.parametrize("items", [1, 3])
def test_thoughts_that_become_more_than_anybody_thinks_are_refused(items: int) -> None:
    """A thousandth of it is sent: 64 MiB of them would be 64 GiB at the engine, which looks at no size."""
    bomb = packed(b"w " * (UNPACKED // 2 // items + 1))
    assert len(bomb["encrypted_content"]) < UNPACKED // 100
    with pytest.raises(CountRefused, match="encrypted_content"):
        messages({"input": [bomb] * items})


@pytest.mark.parametrize("arguments", [None, "{", "7", {"a": 1}, 7, "[" * 100_000])
def test_arguments_that_are_no_object_break_nothing(arguments: Any) -> None:
    (turn,) = messages({"input": [{**CALL, "arguments": arguments}]})
    assert turn["tool_calls"][0]["function"]["arguments"].startswith("{")


async def test_a_query_is_counted_once_and_charged_with_each_item() -> None:
    """A long query before a thousand items would be a gigabyte of text."""
    asked: list[str] = []

    async def remote(body: dict[str, Any]) -> int:
        asked.append(body["prompt"])
        return len(body["prompt"].split())

    counter = Counter(remote=remote)
    body = {"query": "a b c", "items": ["d"] * 3}
    counted = await counter.count(Kind.SCORE, body, 10)
    assert (counted.prompts, counted.rough) == ((5, 5, 5), True)
    assert (counted.method, len(asked)) == (Method.ESTIMATE, 4)
    ids = await counter.count(Kind.SCORE, {"query": [1] * 9, "items": [[1], [1, 2]]}, 10)
    assert (ids.prompts, len(asked)) == ((11, 12), 4)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.SCORE, {"query": ["a", "b"], "items": "c"}),
        (Kind.SCORE, {"query": "a"}),
        (Kind.SCORE, {"query": [-1], "items": [[1]]}),
        (Kind.RERANK, {"query": "a", "documents": []}),
        (Kind.RERANK, {"query": 7, "documents": ["a"]}),
        (Kind.INPUT, {"input": [{}, 7]}),
        (Kind.RESPONSES, {"input": []}),
    ],
)
def test_a_body_without_a_prompt_is_refused(kind: Kind, body: Any) -> None:
    with pytest.raises(CountRefused):
        read(kind, body)
