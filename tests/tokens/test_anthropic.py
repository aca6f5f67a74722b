"""Anthropic bodies become the chats that SGLang makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.tokens import Kind
from gateway.tokens.anthropic import Conversion, chat_from_messages
from gateway.tokens.build import build_counter

if TYPE_CHECKING:
    from pathlib import Path


def converted(*messages, **body):
    return chat_from_messages({"messages": list(messages), **body})


def text(value):
    return {"type": "text", "text": value}


def test_system_comes_first_and_takes_later_ones_in():
    user = {"role": "user", "content": "u"}
    later = {"role": "system", "content": [text(" later ")]}
    blocks = [text("a"), {"type": "image"}, text("b")]
    assert converted(user, later, system=blocks)["messages"] == [
        {"role": "system", "content": "a\nb\nlater"},
        user,
    ]
    assert converted(user, system="  ")["messages"] == [user]
    inline = chat_from_messages(
        {"messages": [user, {"role": "system", "content": "x"}]},
        Conversion(merge_inline_system=False),
    )
    assert inline["messages"] == [user, {"role": "system", "content": "x"}]


def test_tool_results_stand_between_what_was_before_and_after():
    turn = {
        "role": "user",
        "content": [
            text("before"),
            {"type": "tool_result", "tool_use_id": "t", "content": [text("x"), text("y")]},
            {"type": "tool_result", "tool_use_id": "s", "content": "plain"},
            text("after"),
        ],
    }
    assert converted(turn)["messages"] == [
        {"role": "user", "content": "before"},
        {"role": "tool", "tool_call_id": "t", "content": [text("x"), text("y")]},
        {"role": "tool", "tool_call_id": "s", "content": "plain"},
        {"role": "user", "content": "after"},
    ]


def test_calls_thinking_and_images():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0"}}
    turns = [
        {"role": "user", "content": [image, text("what?")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "é"}},
            ],
        },
        {"role": "assistant", "content": []},
    ]
    part = {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0"}}
    call = {
        "id": "t",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a": "\\u00e9"}'},
    }
    assert converted(*turns)["messages"] == [
        {"role": "user", "content": [part, text("what?")]},
        {"role": "assistant", "tool_calls": [call], "content": "<think>hm\n</think>"},
        {"role": "assistant", "content": ""},
    ]
    without = chat_from_messages({"messages": turns}, Conversion(think=None))
    assert "content" not in without["messages"][1]


def test_tools_and_choices():
    tool = {"name": "f", "input_schema": {"type": "object"}}
    server = {"type": "web_search_20250305", "name": "web_search"}
    chat = converted(tools=[server, tool])
    function = {
        "name": "f",
        "description": "",
        "parameters": {"type": "object"},
        "strict": False,
    }
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["tool_choice"] == "auto"
    assert converted(tools=[tool], tool_choice={"type": "any"})["tool_choice"] == "required"
    assert converted(tools=[tool], tool_choice={"type": "none"})["tool_choice"] == "none"
    named = converted(tools=[tool], tool_choice={"type": "tool", "name": "f"})["tool_choice"]
    assert named == {"type": "function", "function": {"name": "f"}}
    assert "tools" not in converted(tools=[server])


def test_a_schema_that_names_no_type_is_of_an_object():
    tool = {"name": "f", "input_schema": {"properties": {"a": {}}}}
    (made,) = converted(tools=[tool])["tools"]
    assert made["function"]["parameters"] == {"properties": {"a": {}}, "type": "object"}
    assert tool["input_schema"] == {"properties": {"a": {}}}, "the client's own is left as it was"


@pytest.mark.parametrize("strict", [None, False, True])
async def test_a_tool_says_from_0_5_23_on_whether_it_is_strict(
    strict: bool | None, model_dir: Path
) -> None:
    """The template is shown so whatever the client said, or if it said nothing."""
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool if strict is None else tool | {"strict": strict}],
    }
    shown = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    for version, told in (("0.5.23", bool(strict)), ("0.5.17", False)):
        counter = await build_counter(tokenizer_dir=model_dir, engine_version=version, remote=None)
        same = {**body, "tools": [{"type": "function", "function": {**shown, "strict": told}}]}
        counts = [
            (await counter.count(kind, asked, 200)).prompts
            for kind, asked in ((Kind.MESSAGES, body), (Kind.CHAT, same))
        ]
        assert counts[0] == counts[1], version


def test_thinking_and_effort():
    body = {"messages": [], "thinking": {"type": "disabled"}, "output_config": {"effort": "xhigh"}}
    chat = chat_from_messages(body, Conversion(toggle="enable_thinking"))
    assert chat["chat_template_kwargs"] == {"enable_thinking": False}
    assert chat["reasoning_effort"] == "max"


def test_tool_references_and_search_results():
    result = [
        {"type": "tool_reference", "tool_name": "f"},
        {"type": "search_result", "title": "T", "source": "S", "content": [text("C")]},
    ]
    turn = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t", "content": result}],
    }
    assert [message["content"] for message in converted(turn)["messages"]] == [
        [{"type": "tool_reference", "name": "f"}],
        "Title: T\nSource: S\nContent: C",
    ]
