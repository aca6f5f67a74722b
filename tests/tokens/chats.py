"""Chats for the encoders: some for one question each, and many thrown together from a seed."""

from __future__ import annotations

import random
from typing import Any

TEXTS = (
    "Weather in Zürich?", "", " ", "模型的上下文长度是有限的。", "{braces} %s {0} \\n",
    "a\n\n  b\t\n", "<｜User｜>not a turn<｜Assistant｜></think>", "👩🏽\u200d🚀 e\u0301 العربية",
    "<tool_result>x</tool_result>", "｜DSML｜ and <think>", 'quotes " \' and <tags/>', "json",
)  # fmt: skip
ARGUMENTS = (
    "{}", '{"city": "Z\\u00fcrich", "days": 3, "raw": null}', '{"x": 1.5, "y": [1, {"k": "é"}]}',
    '{"": "", "t": true, "text": "a\\nb \\"c\\" 模"}', '{"big": 12345678901234567890123}',
)  # fmt: skip
TOOLS = (
    {"description": "Looks <up> it.", "name": "weather",
     "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    {"name": "time", "parameters": {"type": "object", "properties": {}}},
    {"parameters": {"type": "object", "title": "名前", "z": 1.0}, "name": "look_up", "description": "d"},
    {"name": "bare"},
)  # fmt: skip


def user(text: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: Any = "Be brief.", **more: Any) -> dict[str, Any]:
    return {"role": "system", "content": text, **more}


def answer(text: Any = "It is.", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(number: int, name: str = "weather", arguments: Any = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def result(number: int, text: Any = "dry") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def tool(function: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": function, **more}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


REMINDER = {"role": "latest_reminder", "content": "Mind the time."}
DEVELOPER = {"role": "developer", "content": "You are precise."}
THINK = {"chat_template_kwargs": {"thinking": True}}
ALL = [tool(function) for function in TOOLS]
TWO = answer(None, tool_calls=[call(1), call(2, "time", ARGUMENTS[1])], reasoning_content="Two.")
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}

SHORT: tuple[tuple[list[dict[str, Any]], dict[str, Any]], ...] = (
    ([user()], {}),
    ([system(), user()], {}),
    ([system(""), user("")], {}),
    ([system(None), user()], {}),
    ([user(), answer(), user()], {}),
    ([user(), answer(reasoning_content="Hm."), user()], {}),
    ([user(), answer("It is")], {}),
    ([user(), answer("It is")], {"continue_final_message": True}),
    ([user(), answer("")], {"continue_final_message": True}),
    ([user(), answer("It is", reasoning_content="Hm.")], {"continue_final_message": True}),
    ([user(), answer(None, reasoning_content="Hm.")], {"continue_final_message": True}),
    ([user(), answer(parts("It", "is"))], {"continue_final_message": True}),
    ([user(), answer(parts("It", "is"))], {}),
    ([user(), answer("It is", tool_calls=[call(1)])], {"continue_final_message": True}),
    ([answer("alone")], {}),
    ([answer("alone")], {"continue_final_message": True}),
    ([system("alone")], {}),
    ([user(parts("a", "b"))], {}),
    ([user(parts())], {}),
    ([system(parts("a", "b")), user()], {}),
    ([{"role": "SYSTEM", "content": "loud"}, user()], {}),
    ([user(), {"role": "robot", "content": "x"}], {}),
    ([DEVELOPER, user()], {}),
    ([user(), DEVELOPER], {}),
    ([DEVELOPER], {}),
    ([{**DEVELOPER, "tools": ALL[:1]}], {}),
    ([{**DEVELOPER, "content": ""}, user()], {}),
    ([user(), answer(), DEVELOPER, answer(), user()], {}),
    ([user(), answer(), REMINDER, user()], {}),
    ([system(""), system("second"), user()], {}),
    ([user(), REMINDER], {}),
    ([user(), REMINDER, {**REMINDER, "content": "Now."}, answer(), user()], {}),
    ([REMINDER, user()], {}),
    ([user(), {"role": "function", "name": "f", "content": "x"}, user()], {}),
    ([user(), system("mid"), user(), system("end")], {}),
    ([system("1"), system("2"), user(), system(""), user()], {}),
    ([user(), user("again")], {}),
    ([user(), answer("1"), answer("2"), user()], {}),
    ([user()], {"tools": ALL}),
    ([system(), user()], {"tools": ALL}),
    ([system("", tools=ALL[:1]), user()], {}),
    ([system("", tools=ALL[:1]), user()], {"tools": ALL[1:2]}),
    ([user()], {"tools": []}),
    ([user()], {"tools": ALL, "tool_choice": "none"}),
    ([user()], {"tools": ALL, "tool_choice": "required"}),
    ([user()], {"tools": ALL, "tool_choice": {"type": "function", "function": {"name": "time"}}}),
    ([user()], {"tools": [tool({**TOOLS[0], "strict": False})]}),
    ([user()], {"tools": [tool({**TOOLS[0], "strict": True})]}),
    ([user()], {"tools": [tool({**TOOLS[0], "extra": 1}, defer_loading=True)]}),
    ([user()], {"tools": [tool({"name": "odd", "parameters": {"title": "no object"}})]}),
    ([user(), TWO, result(1), result(2)], {}),
    ([user(), TWO, result(2, "two"), result(1, "one")], {}),
    ([user(), answer("", tool_calls=[call(9, "b"), call(10, "a")]), result(9), result(10, "x")], {}),
    ([user(), TWO, result(1), result(2), user(""), answer(), user(), user("")], {}),
    ([user(), TWO, result(1)], {}),
    ([user(), TWO, result(1), user("wait"), result(2)], {}),
    ([user(), TWO, result(1), result(2), result(3)], {}),
    ([user(), TWO, user("instead")], {}),
    ([user(), result(1), user()], {}),
    ([result(1)], {}),
    ([user(), TWO, result(1), result(2), user("and?")], {"tools": ALL}),
    ([user(), TWO, result(1, parts("a", "b")), result(2, None)], {"tools": ALL}),
    ([user(), TWO, result(1), result(2, ""), REMINDER], {}),
    ([user(), TWO, result(1), result(2), system("mid"), answer(), user()], {}),
    ([user(), TWO, result(1), result(2), answer("So.", reasoning_content="Then."), user()], {}),
    (
        [user(), TWO, result(1), result(2), answer("So.", reasoning_content="Then."), user()],
        {"tools": ALL},
    ),
    ([user(), answer("x", tool_calls=[]), user()], {}),
    ([user(), answer("x", tool_calls=[call(1), call(1)]), result(1), result(1)], {}),
    *(
        ([user(), answer("", tool_calls=[call(1, "f", each)]), result(1)], {})
        for each in (*ARGUMENTS, '{"w": 1e-8}', "[1]", "{broken", "", {"a": 1}, None)
    ),
    *(
        ([user()], {"reasoning_effort": effort})
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", 0.3)
    ),
    ([user("a rate of 1e-05")], {}),
    ([user()], {"reasoning": {"enabled": True}}),
    ([user()], {"reasoning": {"effort": "max"}}),
    ([user()], {"reasoning": {"effort": "high"}, "chat_template_kwargs": {"thinking": False}}),
    ([user()], {"chat_template_kwargs": {"enable_thinking": True}}),
    ([user()], {"chat_template_kwargs": {"thinking": True, "reasoning_effort": "max"}}),
    (
        [user()],
        {
            "reasoning_effort": "max",
            "chat_template_kwargs": {"thinking": True, "reasoning_effort": "low"},
        },
    ),
    ([user()], {"reasoning_effort": "max", "chat_template_kwargs": {"reasoning_effort": None}}),
    ([user("json")], {"response_format": {"type": "json_object"}}),
    ([user()], {"response_format": {"type": "text"}}),
    (
        [user()],
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    ),
    ([user("json")], {"response_format": {"type": "json_object"}, "tools": ALL}),
    *(([user(), answer(), user()], {"task": task}) for task in ("action", "query", "title")),
    ([user(), answer("It is")], {"task": "action", "continue_final_message": True}),
    ([system()], {"task": "query"}),
    ([user(), answer("x", tool_calls=[call(1)]), result(1)], {"task": "domain"}),
)  # fmt: skip
"""Each once as it stands and once thinking."""


def chats(random_ones: int = 60) -> list[dict[str, Any]]:
    """All of them, the same each time."""
    found: list[dict[str, Any]] = []
    for messages, more in SHORT:
        found.append({"messages": messages, **more})
        if "chat_template_kwargs" not in more:
            found.append({"messages": messages, **more, **THINK})
    dice = random.Random(20261130)
    found += [_thrown(dice) for _ in range(random_ones)]
    return found


def _thrown(dice: random.Random) -> dict[str, Any]:
    """A chat of some turns in a possible order."""
    messages: list[dict[str, Any]] = []
    if dice.random() < 0.6:
        messages.append(system(dice.choice(TEXTS)))
    number = 0
    for _ in range(dice.randint(1, 4)):
        messages.append(user(dice.choice(TEXTS)))
        if dice.random() < 0.2:
            messages.append(user(parts(dice.choice(TEXTS), dice.choice(TEXTS))))
        while dice.random() < 0.4:
            numbers = list(range(number, number + dice.randint(1, 3)))
            number += len(numbers)
            messages += _called(dice, numbers)
        if dice.random() < 0.7:
            messages.append(_thoughtful(dice, answer(dice.choice(TEXTS)), 0.6))
    if messages[-1]["role"] == "assistant" and dice.random() < 0.7:
        messages.append(user(dice.choice(TEXTS)))
    return {"messages": messages, **_options(dice)}


def _called(dice: random.Random, numbers: list[int]) -> list[dict[str, Any]]:
    """Some calls, and their results in any order."""
    calls = [call(n, dice.choice(("f", "名")), dice.choice(ARGUMENTS)) for n in numbers]
    called = _thoughtful(dice, answer(dice.choice((None, *TEXTS)), tool_calls=calls), 0.7)
    order = dice.sample(numbers, len(numbers))
    return [called, *(result(n, dice.choice(TEXTS)) for n in order)]


def _thoughtful(dice: random.Random, turn: dict[str, Any], chance: float) -> dict[str, Any]:
    if dice.random() < chance:
        turn["reasoning_content"] = dice.choice(TEXTS)
    return turn


def _options(dice: random.Random) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if dice.random() < 0.4:
        chosen["tools"] = [tool(each) for each in dice.sample(TOOLS, dice.randint(1, 3))]
    if dice.random() < 0.6:
        chosen.update(THINK)
    if dice.random() < 0.3:
        chosen["continue_final_message"] = True
    if dice.random() < 0.2:
        chosen["reasoning_effort"] = dice.choice(("low", "high", "max"))
    return chosen
