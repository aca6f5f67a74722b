"""A body of OpenAI's responses as the chat that SGLang makes of it before it renders the template.

Follows what 0.5.17 does: instructions and developers' messages become one system message, each item
of the input a message, and what the assistant said and called in a row one message of it. What 0.5.23
adds is counted for all: a label on what developers say, tools that take a text, thoughts that come
packed. Harmony models (gpt-oss) are rendered by another encoder; their number is close, not exact.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any

from gateway.tokens.model import CountRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LABEL = "Developer instructions:"
"""What 0.5.23 writes above what a developer says."""

PACKED = "sglang-reasoning-v1."
"""Begins thoughts as 0.5.23 gives them to clients that keep nothing of it (`encrypted_content`), and takes them
back: base64 of zlib, which may become a thousand times as long."""

UNPACKED = 16 << 20
"""Bytes that all packed thoughts of one request may become: several times the longest context in use."""

_SYSTEM = ("system", "developer")
"""Compared, not looked up: a client's role may be a list."""


def chat_from_responses(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat of a responses `body`. Odd items are skipped: the engine judges them. Raises CountRefused
    where packed thoughts become more than anybody thinks."""
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    turns = [turn for item in _unpacked(_dicts(items)) if (turn := _turn(item)) is not None]
    instructions = body.get("instructions")
    system = [instructions] if isinstance(instructions, str) and instructions else []
    system += [text for turn in turns if turn.get("role") in _SYSTEM for text in _texts(turn)]
    rest = _merged(turn for turn in turns if turn.get("role") not in _SYSTEM)
    first = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    chat: dict[str, Any] = {"messages": [*first, *rest]}
    tools = [tool for one in _dicts(body.get("tools")) if (tool := _tool(one)) is not None]
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
        case "custom_tool_call":
            called = {"name": item.get("name") or "", "arguments": _as_text(item.get("input"))}
            call = {"id": item.get("call_id") or "", "type": "function", "function": called}
            return {"role": "assistant", "tool_calls": [call]}
        case "function_call_output" | "custom_tool_call_output":
            output = _content(item.get("output"))
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
        case "reasoning":
            thoughts = _thoughts(item.get("summary")) or _thoughts(item.get("content"))
            return {"role": "assistant", "reasoning_content": thoughts} if thoughts else None
        case _:
            role, content = item.get("role"), _content(item.get("content"))
            return {"role": role, "content": _labelled(content) if role == "developer" else content}


def _labelled(content: object) -> object:
    if isinstance(content, str):
        return f"{LABEL}\n{content}"
    return [{"type": "text", "text": LABEL}, *_dicts(content)]


def _unpacked(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The items, with thoughts that are there in no other form than packed in words."""
    room = UNPACKED
    for item in items:
        packed = item.get("encrypted_content")
        if (
            item.get("type") != "reasoning"
            or not isinstance(packed, str)
            or not packed.startswith(PACKED)
            or _thoughts(item.get("summary"))
            or _thoughts(item.get("content"))
        ):
            yield item
            continue
        text = _inflated(packed.removeprefix(PACKED), room)
        room -= len(text)
        words = text.decode(errors="replace")
        yield {**item, "summary": [{"text": words}]}


def _inflated(packed: str, room: int) -> bytes:
    """What it becomes; nothing where the engine could not read it either."""
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.urlsafe_b64decode(packed), room + 1)
    except (ValueError, zlib.error):
        return b""
    if len(text) > room:
        msg = f"the thoughts in `encrypted_content` become more than {UNPACKED} bytes"
        raise CountRefused(msg)
    return text


def _as_text(text: object) -> str:
    """The arguments of a call of a tool that takes a text."""
    return json.dumps({"input": text if isinstance(text, str) else ""}, ensure_ascii=False)


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


_PAYLOAD = {"type": "string", "description": "The freeform text payload for this tool."}
_TAKES_TEXT = {
    "type": "object",
    "properties": {"input": _PAYLOAD},
    "required": ["input"],
    "additionalProperties": False,
}
"""The arguments of a tool that takes a text, as 0.5.23 tells the model of them."""


def _tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """A tool of the chat; None where the model is told of none."""
    match tool.get("type"):
        case "function":
            fields = {name: tool.get(name) for name in ("name", "description", "parameters")}
        case "custom":
            told, rule = tool.get("description"), tool.get("format")
            words = [told] if isinstance(told, str) and told else []
            if isinstance(rule, dict) and rule.get("type") == "grammar":
                syntax, grammar = rule.get("syntax") or "lark", rule.get("definition") or ""
                words.append(f"The payload must conform to this {syntax} grammar:\n{grammar}")
            fields = {"name": tool.get("name"), "description": "\n\n".join(words)}
            fields["parameters"] = _TAKES_TEXT
        case _:
            return None
    fields["strict"] = bool(tool.get("strict"))
    return {"type": "function", "function": fields}
