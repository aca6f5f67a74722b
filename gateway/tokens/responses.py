"""A body of OpenAI's responses as the chat that SGLang makes of it before it renders the template.

Follows what 0.5.17 does: instructions and developers' messages become one system message, each item
of the input a message, and what the assistant said and called in a row one message of it. Harmony
models (gpt-oss) are rendered by another encoder; their number is close, not exact.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SYSTEM = ("system", "developer")
"""Compared, not looked up: a client's role may be a list."""


def chat_from_responses(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat of a responses `body`. Odd items are skipped: the engine judges them."""
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    turns = [turn for item in _dicts(items) if (turn := _turn(item)) is not None]
    instructions = body.get("instructions")
    system = [instructions] if isinstance(instructions, str) and instructions else []
    system += [text for turn in turns if turn.get("role") in _SYSTEM for text in _texts(turn)]
    rest = _merged(turn for turn in turns if turn.get("role") not in _SYSTEM)
    first = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    chat: dict[str, Any] = {"messages": [*first, *rest]}
    tools = [_tool(tool) for tool in _dicts(body.get("tools")) if tool.get("type") == "function"]
    if tools:
        chat["tools"] = tools
        chat["tool_choice"] = body.get("tool_choice") or "auto"
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and isinstance(reasoning.get("effort"), str):
        chat["reasoning_effort"] = reasoning["effort"]
    if isinstance(kwargs := body.get("chat_template_kwargs"), dict):  # since 0.5.23
        chat["chat_template_kwargs"] = kwargs
    return chat


def _dicts(values: object) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _turn(item: dict[str, Any]) -> dict[str, Any] | None:
    match item.get("type"):
        case "function_call":
            arguments = item.get("arguments")
            if isinstance(arguments, dict):
                arguments = json.dumps(arguments)
            called = {"name": item.get("name") or "", "arguments": _object(arguments)}
            call = {"id": item.get("call_id") or "", "type": "function", "function": called}
            return {"role": "assistant", "tool_calls": [call]}
        case "function_call_output":
            output = _content(item.get("output"))
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
        case "reasoning":
            thoughts = _thoughts(item.get("summary")) or _thoughts(item.get("content"))
            return {"role": "assistant", "reasoning_content": thoughts} if thoughts else None
        case _:
            return {"role": item.get("role"), "content": _content(item.get("content"))}


def _object(arguments: object) -> str:
    """The arguments of a call, where they are the JSON of an object; templates look into them."""
    try:
        whole = isinstance(arguments, str) and isinstance(json.loads(arguments), dict)
    except (json.JSONDecodeError, RecursionError):
        whole = False
    return arguments if whole and isinstance(arguments, str) else "{}"


def _content(content: object) -> object:
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return [_part(part) for part in content if isinstance(part, dict)]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text":
            text = part.get("text")
            return {"type": "text", "text": text if isinstance(text, str) else ""}
        case "input_image":
            url = part.get("image_url")
            return {
                "type": "image_url",
                "image_url": url if isinstance(url, dict) else {"url": url},
            }
        case _:
            return part


def _texts(turn: dict[str, Any]) -> Iterator[str]:
    content = turn.get("content")
    if isinstance(content, str):
        yield content
    for part in _dicts(content):
        if isinstance(text := part.get("text"), str):
            yield text


def _thoughts(parts: object) -> str:
    return "\n".join(text for part in _dicts(parts) if isinstance(text := part.get("text"), str))


def _merged(turns: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the assistant said, thought and called in a row is one turn of it."""
    merged: list[dict[str, Any]] = []
    for turn in turns:
        last = merged[-1] if merged else {}
        if not turn.get("role") == last.get("role") == "assistant":
            merged.append(turn)
            continue
        together = {**last}
        for name, value in turn.items():
            together[name] = _joined(last.get(name), value) if name != "role" else value
        merged[-1] = together
    return merged


def _joined(first: object, second: object) -> object:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: object) -> list[object]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    fields = ("name", "description", "parameters", "strict")
    return {
        "type": "function",
        "function": {name: tool.get(name) for name in fields if name in tool},
    }
