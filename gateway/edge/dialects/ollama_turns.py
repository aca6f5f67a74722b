"""The messages of Ollama's chats as those of OpenAI's.

Ollama has one text a message with its images beside it, calls of tools with arguments as objects,
and results that name the tool. The engine wants parts, arguments as text, and an id that ties a
result to its call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.edge.dialects import Invalid, guard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.edge.dialects import Body

MAGIC = {
    "/9j/": "jpeg",
    "iVBOR": "png",
    "R0lGO": "gif",
    "UklGR": "webp",
    "Qk": "bmp",
}
"""How the base64 of each kind of image begins."""

Calls = list[tuple[str, str]]
"""Ids and names of calls whose results have not come."""


def turns(messages: list[Any]) -> list[Body]:
    """Raises Invalid where a message is none."""
    found: list[Body] = []
    waiting: Calls = []
    number = 0
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise _odd(where, "must be an object with role and content", "messages")
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            raise _odd(where, ".content must be a text", "messages")
        turn: Body = {
            "role": message.get("role"),
            "content": pictured(content or "", message.get("images"), where),
        }
        if (thoughts := message.get("thinking")) and isinstance(thoughts, str):
            turn["reasoning_content"] = thoughts
        if (calls := message.get("tool_calls")) is not None:
            turn["tool_calls"] = list(_calls(calls, number, where))
            number += len(turn["tool_calls"])
            waiting = [(call["id"], call["function"]["name"]) for call in turn["tool_calls"]]
            if not turn["tool_calls"]:
                del turn["tool_calls"]
        if turn["role"] == "tool":
            turn["tool_call_id"], name = _answered(message, waiting)
            if name:
                turn["name"] = name
        found.append(turn)
    return found


def pictured(text: str, images: object, where: str = "") -> str | list[Body]:
    """A text, or its images and then the text. Raises Invalid."""
    field = f"{where}.images" if where else "images"
    if images is None or images == []:
        return text
    if not isinstance(images, list) or not all(isinstance(one, str) for one in images):
        raise _odd(field, "must be a list of images in base64", "images")
    parts: list[Body] = []
    for one in images:
        if "://" in one[:16]:
            raise _odd(field, ": send the image itself, in base64, not an address", "images")
        parts.append({"type": "image_url", "image_url": {"url": _data_url(one)}})
    return [*parts, {"type": "text", "text": text}]


def _data_url(image: str) -> str:
    if image.startswith("data:"):
        return image
    kind = next((kind for magic, kind in MAGIC.items() if image.startswith(magic)), "png")
    return f"data:image/{kind};base64,{image}"


def _calls(calls: object, number: int, where: str) -> Iterator[Body]:
    if not isinstance(calls, list):
        raise _odd(where, ".tool_calls must be a list", "messages")
    for at, call in enumerate(calls, number):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _odd(where, ".tool_calls: each has a function with a name", "messages")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = guard.dump(arguments if isinstance(arguments, dict) else {}).decode()
        ident = call.get("id")
        yield {
            "id": ident if isinstance(ident, str) and ident else call_id(at),
            "type": "function",
            "function": {"name": function["name"], "arguments": arguments},
        }


def call_id(number: int) -> str:
    """Nine letters and digits: some templates (Mistral's) raise on any other length."""
    return f"call{number % 100_000:05d}"


def _answered(message: Body, waiting: Calls) -> tuple[str, str]:
    """The id and name of the call that a result answers: its own id's, the first of its name, or
    the first. It waits no more."""
    given, named = message.get("tool_call_id"), message.get("tool_name") or message.get("name")
    if isinstance(given, str) and given:
        waiting[:] = [call for call in waiting if call[0] != given]
        return given, named if isinstance(named, str) else ""
    match = next((call for call in waiting if call[1] == named), None)
    if match is None:
        match = waiting[0] if waiting else (call_id(0), named if isinstance(named, str) else "")
    if match in waiting:
        waiting.remove(match)
    return match


def _odd(where: str, words: str, field: str) -> Invalid:
    gap = "" if words[0] in ".:" else " "
    return Invalid(where + gap + words, field)
