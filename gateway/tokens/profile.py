"""What each SGLang version hands to the chat template for one and the same body.

The engine validates a chat before it renders it: unknown fields fall away, absent ones appear as
null or a default, tools are printed from its own classes, tool-call arguments are parsed, the last
assistant message is taken apart, reasoning switches become template arguments. All of it changes
the prompt, and it changes from version to version. A `Profile` holds those differences; `prepare`
applies them. Sources: entrypoints/openai/protocol.py and serving_chat.py of 0.5.6, 0.5.12, 0.5.17
and 0.5.23.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.tokens.template import ContentFormat

ToolForm = Literal["function", "typed", "ordered"]
"""`function`: the bare function. `typed`: with type, in the engine's field order, strict always
there. `ordered`: with type, in the client's field order, strict only where it is set."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How one range of SGLang versions prepares a chat."""

    since: tuple[int, int, int]
    tools: ToolForm
    unmatched_choice_is_empty: bool  # a named choice of no tool gives [] instead of none
    default_effort: str | None  # reasoning_effort where the client sends none
    efforts: frozenset[str]  # values of `reasoning.effort` that are taken over
    thinking_names: tuple[str, ...]  # template arguments that `reasoning` switches on
    effort_switches_thinking: Literal["never", "none", "always"]
    last_assistant_becomes_user: bool  # unless continue_final_message
    joins_tool_content: bool  # lists of text parts in tool messages become one string
    message_fields: tuple[str, ...]
    bare_encoder: bool = False  # V3.2's encoder gets messages as they came, and V4 has none
    late_arguments: bool = False  # the encoders parse a call's arguments, not what is before them
    encoder_heeds_choice: bool = False  # V3.2's prints no tools where none may be called
    thinks: bool = False  # the encoders do where the client does not say
    recipe: bool = False  # DeepSeek V4 is written by deepseek-recipe, not by SGLang


_FIELDS: Final = ("tool_call_id", "name", "reasoning_content", "tool_calls")
_TIERS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
_BOTH: Final = ("thinking", "enable_thinking")

PROFILES: Final = (
    Profile(
        since=(0, 5, 23), tools="ordered", unmatched_choice_is_empty=False, default_effort=None,
        efforts=_TIERS | {"ultra"}, thinking_names=_BOTH, effort_switches_thinking="always",
        last_assistant_becomes_user=True, joins_tool_content=True,
        message_fields=("tool_call_id", "name", "phase", *_FIELDS[2:], "tools", "prefix"),
        encoder_heeds_choice=True, recipe=True,
    ),
    Profile(
        since=(0, 5, 17), tools="typed", unmatched_choice_is_empty=False, default_effort=None,
        efforts=_TIERS, thinking_names=_BOTH, effort_switches_thinking="always",
        last_assistant_becomes_user=True, joins_tool_content=True,
        message_fields=(*_FIELDS, "tools"),
    ),
    Profile(
        since=(0, 5, 12), tools="typed", unmatched_choice_is_empty=True, default_effort=None,
        efforts=frozenset({"none", "low", "medium", "high"}), thinking_names=_BOTH,
        effort_switches_thinking="none", last_assistant_becomes_user=True,
        joins_tool_content=True, message_fields=(*_FIELDS, "tools"), late_arguments=True,
    ),
    Profile(
        since=(0, 0, 0), tools="function", unmatched_choice_is_empty=True,
        default_effort="medium", efforts=frozenset({"low", "medium", "high"}),
        thinking_names=("thinking",), effort_switches_thinking="never",
        last_assistant_becomes_user=False, joins_tool_content=False, message_fields=_FIELDS,
        bare_encoder=True, late_arguments=True,
    ),
)  # fmt: skip
"""Newest first. Between two versions that were read, the older one's behaviour is assumed."""


def profile_for(version: str | None) -> Profile:
    """The profile of an engine `version` such as "0.5.17" or "0.5.18.post1"; None: the newest."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    if found is None:
        return PROFILES[0]
    parts = (int(found[1]), int(found[2]), int(found[3] or 0))
    return next(profile for profile in PROFILES if parts >= profile.since)


class NotPrepared(Exception):
    """The engine would refuse this chat, or render it in a way that cannot be foreseen."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the template gets, and the text that is appended to its output."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    arguments: dict[str, Any]
    continued: str | None


# Template arguments that `apply_chat_template` takes as its own: they change the rendering in ways
# that are not the template's, or clash with what the engine passes (a TypeError there).
_RESERVED: Final = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
        "documents", "max_length", "messages", "padding", "return_assistant_tokens_mask",
        "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation",
    }
)  # fmt: skip


def prepare(chat: Mapping[str, Any], profile: Profile, content: ContentFormat) -> Prepared:
    """What the engine passes to a template of `content` format for `chat`; NotPrepared if nothing."""
    messages = [_message(message, profile, content) for message in chat["messages"]]
    continued = None
    last = messages[-1]
    if last["role"] == "assistant" and isinstance(last.get("content"), str):
        if chat.get("continue_final_message"):
            continued = messages.pop()["content"]
        elif profile.last_assistant_becomes_user:
            messages[-1] = {"role": "user", "content": last["content"]}
    arguments = arguments_of(chat, profile)
    if not _RESERVED.isdisjoint(arguments):
        raise NotPrepared("template_arguments")
    left = tools_left(chat, profile)
    tools = None if left is None else [printed_tool(tool, profile.tools) for tool in left]
    return Prepared(messages, tools, arguments, continued)


def _message(
    message: Mapping[str, Any], profile: Profile, content: ContentFormat
) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise NotPrepared("role")
    if role == "user":
        return {"role": role, "content": _content(message.get("content"), content, profile)}
    role = role.lower()
    prepared: dict[str, Any] = {"role": role}
    value = message.get("content")
    prepared["content"] = _content("" if value is None else value, content, profile)
    for name in profile.message_fields:
        field = message.get(name)
        if field is not None:
            prepared[name] = (
                [parsed_call(call, role) for call in field] if name == "tool_calls" else field
            )
    if profile.joins_tool_content and role == "tool":
        prepared["content"] = _joined(prepared["content"])
    return prepared


def _content(value: Any, content: ContentFormat, profile: Profile) -> Any:  # noqa: ANN401
    """Content as the template's format wants it: parts reduced to type and text, or joined text."""
    if not isinstance(value, list):
        return value
    parts = [part for part in value if isinstance(part, dict)]
    if content == "string":
        return " ".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
    kept: list[dict[str, Any]] = []
    for part in parts:
        match part.get("type"):
            case "text":
                kept.append({"type": "text", "text": part.get("text")})
            case "image_url" | "video_url" | "audio_url":
                kept.append({"type": part["type"].removesuffix("_url")})
            case "tool_reference" if profile.joins_tool_content:
                kept.append({"type": "tool_reference", "name": part.get("name")})
            case _:
                continue
    return kept


def _joined(content: Any) -> Any:  # noqa: ANN401
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return " ".join(str(part["text"]) for part in content)
    return content


def parsed_call(call: Any, role: str) -> dict[str, Any]:  # noqa: ANN401
    """A tool call as the engine's class prints it, its arguments parsed."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise NotPrepared("tool_calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and role == "assistant":
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            raise NotPrepared("tool_arguments") from None
    return {
        "id": call.get("id"),
        "index": call.get("index"),
        "type": "function",
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def tools_left(chat: Mapping[str, Any], profile: Profile) -> list[dict[str, Any]] | None:
    """The tools that the choice of tools leaves; None where there are none to print."""
    tools, choice = chat.get("tools"), chat.get("tool_choice")
    if not isinstance(tools, list) or not tools or choice == "none":
        return None
    if isinstance(choice, dict):
        named = choice.get("function")
        name = named.get("name") if isinstance(named, dict) else None
        tools = [tool for tool in tools if _function(tool).get("name") == name]
        if not tools:
            return [] if profile.unmatched_choice_is_empty else None
    for tool in tools:
        _function(tool)  # NotPrepared where it is none
    return tools


def _function(tool: Any) -> Mapping[str, Any]:  # noqa: ANN401
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise NotPrepared("tools")
    return function


def printed_tool(tool: Mapping[str, Any], form: ToolForm) -> dict[str, Any]:
    """A tool as the engine's classes print it."""
    given = _function(tool)
    function = {name: given.get(name) for name in ("description", "name", "parameters")}
    strict = given.get("strict")
    if form == "function":
        return {**function, "strict": bool(strict)}
    deferred = tool.get("defer_loading")
    inner = given.get("defer_loading", deferred)
    function["strict"] = bool(strict) if form == "typed" else strict
    function["defer_loading"] = inner if inner is not None else deferred
    if function["defer_loading"] is None:
        del function["defer_loading"]
    if form == "ordered":
        if strict is None:
            del function["strict"]
        order = [name for name in given if name in function]
        function = {name: function[name] for name in dict.fromkeys([*order, *function])}
    kind = tool.get("type", "function")
    return {"type": kind, "function": function, "defer_loading": deferred}


def arguments_of(chat: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    """Template arguments: reasoning switches first, then the client's own, which win."""
    given = chat.get("chat_template_kwargs")
    own: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    effort = chat.get("reasoning_effort", profile.default_effort)
    thinking: bool | None = None
    reasoning = chat.get("reasoning")
    if isinstance(reasoning, dict):
        asked = reasoning.get("effort") or reasoning.get("reasoning_effort")
        if _is_effort(asked, profile):
            effort = asked
        if _truthy(reasoning):
            thinking = True
    if effort is not None:
        match profile.effort_switches_thinking:
            case "always":
                thinking = effort != "none"
            case "none" if effort == "none":
                # There the switch for `reasoning.enabled` is set first and stays.
                thinking = thinking or False
            case _:
                pass
    if thinking is not None:
        own = {**dict.fromkeys(profile.thinking_names, thinking), **own}
    if effort is not None or profile.default_effort is not None:
        own = {"reasoning_effort": effort, **own}
    return own


def _is_effort(asked: object, profile: Profile) -> bool:
    if isinstance(asked, str):
        return asked in profile.efforts
    # Numbers are an extension of the versions in which any effort switches thinking.
    return isinstance(asked, int | float) and profile.effort_switches_thinking == "always"


def _truthy(reasoning: Mapping[str, Any]) -> bool:
    enabled = reasoning.get("enabled")
    if enabled is None:
        enabled = reasoning.get("enable", False)
    if isinstance(enabled, str):
        return enabled.strip().lower() in {"1", "true", "yes", "y", "on"}
    return bool(enabled)


def flattened(tools: list[dict[str, Any]] | None, form: ToolForm) -> list[dict[str, Any]] | None:
    """The tools of the engine's second attempt, after the template raised on the first."""
    if not tools:
        return None
    if form == "function":
        return [tool if "function" in tool else {"function": tool} for tool in tools]
    return [tool.get("function", tool) for tool in tools]
