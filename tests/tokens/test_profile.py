"""What each SGLang version hands to the template. Expected values were read off its own classes."""

import pytest

from gateway.tokens.profile import PROFILES, NotPrepared, flattened, prepare, profile_for

V23, V17, V12, V06 = PROFILES
USER = {"role": "user", "content": "hi"}
TOOL = {
    "function": {"parameters": {}, "name": "f", "description": "d", "extra": 1},
    "type": "function",
}


def prepared(profile, content="string", **body):
    return prepare({"messages": [USER], **body}, profile, content)


@pytest.mark.parametrize(
    ("version", "profile"),
    [
        ("0.5.6", V06), ("0.4.9", V06), ("0.5.11", V06), ("0.5.12", V12), ("0.5.16.post2", V12),
        ("0.5.17", V17), ("v0.5.22rc1", V17), ("0.5.23", V23), ("0.6.0", V23), ("1.0", V23),
        (None, V23), ("main", V23),
    ],
)  # fmt: skip
def test_a_version_has_the_profile_of_the_one_before(version, profile):
    assert profile_for(version) is profile


def test_tools_are_printed_from_the_engine_s_classes():
    inner = {"description": "d", "name": "f", "parameters": {}}
    typed = {"type": "function", "function": {**inner, "strict": False}, "defer_loading": None}
    assert prepared(V06, tools=[TOOL]).tools == [{**inner, "strict": False}]
    for profile in (V12, V17):
        (tool,) = prepared(profile, tools=[TOOL]).tools
        assert tool == typed
        assert list(tool["function"]) == ["description", "name", "parameters", "strict"]
    (tool,) = prepared(V23, tools=[TOOL]).tools
    assert list(tool["function"]) == ["parameters", "name", "description"]
    (tool,) = prepared(
        V23, tools=[{"type": "function", "function": {"name": "f", "strict": True}}]
    ).tools
    assert list(tool["function"].items()) == [
        ("name", "f"), ("strict", True), ("description", None), ("parameters", None)
    ]  # fmt: skip
    (tool,) = prepared(V17, tools=[{**TOOL, "defer_loading": True}]).tools
    assert tool["function"]["defer_loading"] is tool["defer_loading"] is True


def test_tool_choice():
    other = {"type": "function", "function": {"name": "g"}}
    named = {"type": "function", "function": {"name": "g"}}
    for profile in PROFILES:
        assert prepared(profile, tools=[TOOL, other], tool_choice="none").tools is None
        assert len(prepared(profile, tools=[TOOL, other], tool_choice="required").tools) == 2
        assert len(prepared(profile, tools=[TOOL, other]).tools) == 2
        assert len(prepared(profile, tools=[TOOL, other], tool_choice=named).tools) == 1
        assert prepared(profile, tools=[]).tools is None
    assert prepared(V12, tools=[TOOL], tool_choice=named).tools == []
    assert prepared(V17, tools=[TOOL], tool_choice=named).tools is None


def test_a_second_attempt_prints_tools_the_other_way():
    assert flattened(prepared(V17, tools=[TOOL]).tools, "typed")[0]["name"] == "f"
    assert flattened(prepared(V06, tools=[TOOL]).tools, "function")[0]["function"]["name"] == "f"
    assert flattened(None, "typed") is None


def test_messages_keep_what_the_engine_knows():
    messages = [
        {"role": "SYSTEM", "content": None, "name": "n", "unknown": 1, "phase": "commentary"},
        {"role": "user", "content": "hi", "name": "dropped"},
    ]
    expected = {"role": "system", "content": "", "name": "n"}
    assert prepared(V17, messages=messages).messages == [expected, USER]
    assert prepared(V23, messages=messages).messages[0] == {**expected, "phase": "commentary"}


def test_tool_calls_are_parsed():
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a": [1.0, "\\u00e9"]}'}, "x": 1}
    messages = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "r"}]
    assert prepared(V17, messages=messages).messages[1]["tool_calls"] == [
        {
            "id": "c",
            "index": None,
            "type": "function",
            "function": {"name": "f", "arguments": {"a": [1.0, "é"]}},
        }
    ]
    call["function"]["arguments"] = "{not json"
    with pytest.raises(NotPrepared, match="tool_arguments"):
        prepared(V17, messages=messages)


def test_lists_of_parts():
    parts = [
        {"type": "text", "text": "a", "cache_control": {}},
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "text", "text": "b"},
    ]
    messages = [{"role": "user", "content": parts}]
    assert prepared(V17, "string", messages=messages).messages[0]["content"] == "a b"
    assert prepared(V17, "openai", messages=messages).messages[0]["content"] == [
        {"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"},
    ]  # fmt: skip
    tool = [USER, {"role": "tool", "content": [parts[0], parts[2]]}]
    assert prepared(V17, "openai", messages=tool).messages[1]["content"] == "a b"
    assert isinstance(prepared(V06, "openai", messages=tool).messages[1]["content"], list)


def test_the_last_assistant_message():
    messages = [USER, {"role": "assistant", "content": "It is", "reasoning_content": "r"}]
    for profile in (V12, V17, V23):
        assert prepared(profile, messages=messages).messages[1] == {
            "role": "user",
            "content": "It is",
        }
    assert prepared(V06, messages=messages).messages[1]["role"] == "assistant"
    for profile in PROFILES:
        ready = prepared(profile, messages=messages, continue_final_message=True)
        assert (ready.messages, ready.continued) == ([USER], "It is")


@pytest.mark.parametrize(
    ("profile", "body", "arguments"),
    [
        (V06, {}, {"reasoning_effort": "medium"}),
        (V06, {"reasoning_effort": None}, {"reasoning_effort": None}),
        (V06, {"reasoning": {"enabled": "yes"}}, {"reasoning_effort": "medium", "thinking": True}),
        (V12, {}, {}),
        (V12, {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (
            V12,
            {"reasoning_effort": "none"},
            {"reasoning_effort": "none", "thinking": False, "enable_thinking": False},
        ),
        (V12, {"reasoning": {"effort": 0.5}}, {}),
        (V17, {"reasoning": {"enabled": False}}, {}),
        (
            V17,
            {"reasoning": {"effort": "low"}, "chat_template_kwargs": {"thinking": False, "z": 1}},
            {"reasoning_effort": "low", "thinking": False, "enable_thinking": True, "z": 1},
        ),
        (
            V23,
            {"reasoning": {"effort": 0.5}},
            {"reasoning_effort": 0.5, "thinking": True, "enable_thinking": True},
        ),
        (V17, {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
         {"reasoning_effort": "none", "thinking": False, "enable_thinking": True}),
    ],
)  # fmt: skip
def test_template_arguments(profile, body, arguments):
    assert prepared(profile, **body).arguments == arguments


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"chat_template_kwargs": {"tools": []}}, "template_arguments"),
        ({"chat_template_kwargs": {"truncation": True}}, "template_arguments"),
        ({"messages": [{"content": "no role"}]}, "role"),
        ({"tools": ["f"]}, "tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}, USER]}, "tool_calls"),
    ],
)
def test_what_cannot_be_foreseen_is_not_guessed(body, reason):
    with pytest.raises(NotPrepared, match=reason):
        prepared(V17, **body)
