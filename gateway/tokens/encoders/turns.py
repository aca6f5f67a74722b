"""A chat as the encoders take it: roles and texts, calls parsed, the last assistant turn taken apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.tokens.encoders.words import DSML
from gateway.tokens.profile import NotPrepared, arguments_of, printed_tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gateway.tokens.profile import Profile

_ROLES: Final = frozenset(
    {"system", "developer", "user", "assistant", "tool", "function", "latest_reminder"}
)
Arguments = Callable[[object], Mapping[str, Any]]
"""From what a client sent as a call's arguments to what is printed; NotPrepared."""
ASKING: Final = frozenset({"user", "developer"})
"""Roles whose last turn divides what is done from what is going on."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an assistant turn."""

    id: object
    name: object
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class Turn:
    """One message. `tools` are those that a system or developer message brings itself."""

    role: str
    text: str
    listed: bool = False  # its content was a list of parts
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    call_id: object = None
    tools: list[Any] = field(default_factory=list)
    task: str | None = None


def turns_of(
    chat: Mapping[str, Any], profile: Profile, arguments: Arguments, between: str = " "
) -> list[Turn]:
    """The messages of `chat`, text parts joined by `between`; NotPrepared where no encoder takes one.

    `arguments` makes of what a client sent as arguments of a call what is printed.
    """
    return [_turn(message, profile, arguments, between) for message in chat["messages"]]


def _turn(message: Mapping[str, Any], profile: Profile, arguments: Arguments, between: str) -> Turn:
    role = message.get("role")
    if not isinstance(role, str):
        raise NotPrepared("role")
    if role != "user":
        role = role.lower()
        if role == "user" or role not in _ROLES:
            raise NotPrepared("role")
    content = message.get("content")
    turn = Turn(role, _text(content, between), listed=isinstance(content, list))
    if role == "user":
        return turn
    reasoning, calls = message.get("reasoning_content"), message.get("tool_calls")
    turn.reasoning = reasoning if isinstance(reasoning, str) else ""
    if role == "assistant" and isinstance(calls, list):
        turn.calls = [_call(call, arguments) for call in calls]
    turn.call_id = message.get("tool_call_id")
    tools = message.get("tools")
    if isinstance(tools, list) and "tools" in profile.message_fields:
        turn.tools = tools
    return turn


def _text(content: object, between: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise NotPrepared("content")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str) or part.get("type") != "text":
            raise NotPrepared("media")  # these models read text alone
        texts.append(text)
    return between.join(texts)


def _call(call: Any, arguments: Arguments) -> Call:  # noqa: ANN401
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise NotPrepared("tool_calls")
    return Call(call.get("id"), function.get("name"), arguments(function.get("arguments")))


def strict_arguments(given: object) -> Mapping[str, Any]:
    """As the engine parses them before it encodes (0.5.17 and later): an object, or refused."""
    parsed = _parsed(given, orjson.loads)
    if not isinstance(parsed, dict):
        raise NotPrepared("tool_arguments")
    return parsed


def late_arguments(given: object) -> Mapping[str, Any]:
    """As V3.2's encoder parses them itself (before 0.5.17): by Python, and only text."""
    parsed = _parsed(given, json.loads)
    if not isinstance(given, str) or not isinstance(parsed, dict):
        raise NotPrepared("tool_arguments")
    return parsed


def late_or_raw_arguments(given: object) -> Mapping[str, Any]:
    """As V4's encoder parses them itself: what is no JSON is one argument of its own."""
    parsed = _parsed(given, json.loads) if isinstance(given, str) else None
    if parsed is None and given != "null":
        return {"arguments": given}
    if not isinstance(parsed, dict):
        raise NotPrepared("tool_arguments")
    return parsed


def raw_arguments(given: object) -> Mapping[str, Any]:
    """As deepseek-recipe parses them: what is no object is one argument of its own, as text."""
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    parsed = _parsed(given if isinstance(given, dict) else text, orjson.loads)
    return parsed if isinstance(parsed, dict) else {"arguments": text}


def _parsed(given: object, loads: Callable[[str], Any]) -> Any:  # noqa: ANN401
    """JSON text parsed, None where it is none; anything else as it is."""
    if not isinstance(given, str):
        return given
    try:
        return loads(given)
    except ValueError:
        return None


def last_taken_apart(turns: list[Turn], chat: Mapping[str, Any]) -> str | None:
    """Take a last assistant turn out of `turns` and return its text, or make it the user's."""
    if not turns or turns[-1].role != "assistant":
        return None
    if not chat.get("continue_final_message"):
        turns[-1] = Turn("user", turns[-1].text)
        return None
    return turns.pop().text


def thinks(chat: Mapping[str, Any], profile: Profile) -> bool:
    """Whether the encoders think: `thinking` alone switches them."""
    return bool(arguments_of(chat, profile).get("thinking", profile.thinks))


def last_asking(roles: Iterable[str]) -> int:
    """Index of the last user or developer; -1 where there is none."""
    found = -1
    for index, role in enumerate(roles):
        if role in ASKING:
            found = index
    return found


def schemas(tools: Sequence[Any], profile: Profile) -> str:
    """Tools as the engine's own classes print them, one a line."""
    printed = (printed_tool(tool, profile.tools) for tool in tools)
    return "\n".join(as_json(tool.get("function", tool)) for tool in printed)


def as_json(value: object) -> str:
    """As Python prints it, which is what these models were trained on."""
    return json.dumps(value, ensure_ascii=False)


def calls_block(
    calls: Sequence[Call], block: str, gap: str = "", *, empty_line: bool = True
) -> Iterator[str]:
    """Tool calls as tags. A call without arguments has an empty line in it, or none."""
    yield "\n\n<"
    yield DSML
    yield f"{gap}{block}>\n"
    for number, call in enumerate(calls):
        yield "\n<" if number else "<"
        yield DSML
        yield f'{gap}invoke name="{call.name}">\n'
        for at, (key, value) in enumerate(call.arguments.items()):
            said = value if isinstance(value, str) else as_json(value)
            yield "\n<" if at else "<"
            yield DSML
            yield f'{gap}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{said}</'
            yield DSML
            yield f"{gap}parameter>"
        yield "\n</" if call.arguments or empty_line else "</"
        yield DSML
        yield f"{gap}invoke>"
    yield "\n</"
    yield DSML
    yield f"{gap}{block}>"
