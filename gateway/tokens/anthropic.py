"""An Anthropic body as the OpenAI chat that SGLang makes of it before it renders the template.

Follows the engine's own conversion (entrypoints/anthropic/serving.py of 0.5.17; 0.5.12 differs in
empty assistant turns and search results only, 0.5.23 in what it shows of a tool). What depends on the server's arguments is an
`Conversion`: which markers its reasoning parser puts around earlier thinking, which template
argument turns thinking on, and whether the template takes system messages in mid-conversation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Types the engine drops because Anthropic itself would run them (protocol.py of 0.5.17).
_SERVER_TOOLS = ("web_search_", "computer_", "bash_", "text_editor_")


@dataclass(frozen=True, slots=True)
class Conversion:
    """What the server's arguments decide about the conversion.

    `think` is the pair of markers of its reasoning parser. Without one the engine drops earlier
    thinking; the default counts it, because too high is safe and too low is not.
    """

    think: tuple[str, str] | None = ("<think>", "</think>")
    toggle: str | None = None  # template argument that `thinking` sets
    merge_inline_system: bool = True
    tells_strict: bool = True  # since 0.5.23 each tool is shown with whether it is strict


def chat_from_messages(
    body: Mapping[str, Any], conversion: Conversion | None = None
) -> dict[str, Any]:
    """The chat that the engine renders for an Anthropic `body`. Odd parts are skipped, as there."""
    how = conversion or Conversion()
    messages = body.get("messages")
    chat: dict[str, Any] = {"messages": messages}
    if isinstance(messages, list):
        turns = [message for message in messages if isinstance(message, dict)]
        system = "\n".join(_system_texts(body.get("system"), turns, how))
        chat["messages"] = [{"role": "system", "content": system}] if system else []
        for turn in turns:
            if turn.get("role") != "system" or not how.merge_inline_system:
                chat["messages"].extend(_turn(turn, how))
    if isinstance(thinking := body.get("thinking"), dict) and how.toggle is not None:
        chat["chat_template_kwargs"] = {how.toggle: thinking.get("type") != "disabled"}
    if isinstance(config := body.get("output_config"), dict) and config.get("effort"):
        effort = config["effort"]
        chat["reasoning_effort"] = "max" if effort == "xhigh" else effort
    listed = body.get("tools")
    ours = [tool for tool in listed if _is_ours(tool)] if isinstance(listed, list) else []
    tools = [_tool(tool, how) for tool in ours]
    if tools:
        chat["tools"] = tools
        chat["tool_choice"] = _tool_choice(body.get("tool_choice"))
    return chat


def left_out(messages: list[Any]) -> str:
    """Why nothing is left of these messages, told of the first part that is left out."""
    for index, turn in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(turn, dict):
            return f"`{where}` must be an object with `role` and `content`."
        content = turn.get("content")
        for at, block in enumerate(content if isinstance(content, list) else ()):
            kind = block.get("type") if isinstance(block, dict) else None
            where = f"messages[{index}].content[{at}]"
            if kind == "image":
                return f"`{where}.source` needs `data`, the image in base64, or a `url`."
            if kind == "text":
                return f"`{where}.text` must be text."
            return f"`{where}` is of no type that reaches the model, or has nothing in it."
    return "`messages` must have something for the model in them: they are empty."


def thinks_back(body: Mapping[str, Any]) -> bool:
    """Whether a body brings thoughts of earlier answers: what becomes of them is the server's affair."""
    messages = body.get("messages")
    contents = (
        [turn.get("content") for turn in messages if isinstance(turn, dict)]
        if isinstance(messages, list)
        else []
    )
    blocks = (block for content in contents if isinstance(content, list) for block in content)
    return any(isinstance(block, dict) and block.get("type") == "thinking" for block in blocks)


def _system_texts(system: object, turns: list[dict[str, Any]], how: Conversion) -> Iterator[str]:
    if isinstance(system, str):
        if system.strip():
            yield system
    else:
        yield from _texts(system)
    if how.merge_inline_system:
        for turn in turns:
            if turn.get("role") == "system":
                content = turn.get("content")
                texts = [content] if isinstance(content, str) else list(_texts(content))
                if joined := "\n".join(text.strip() for text in texts if text.strip()):
                    yield joined


def _texts(blocks: object) -> Iterator[str]:
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict) and block.get("type") == "text":
            text = block.get("text")
            if isinstance(text, str) and text:
                yield text


def _turn(turn: dict[str, Any], how: Conversion) -> Iterator[dict[str, Any]]:
    """The messages of one turn: tool results become messages of their own, in wire order."""
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(content, list):
        yield {"role": role, "content": content}
        return
    blocks = [block for block in content if isinstance(block, dict)]
    parts: list[dict[str, Any]] = []
    if role == "assistant" and (thought := _thinking(blocks, how)):
        parts.append({"type": "text", "text": thought})
    for block in blocks:
        if block.get("type") != "tool_result":
            if (part := _part(block)) is not None:
                parts.append(part)
            continue
        results, text = _tool_result(block.get("content"))
        if role != "user":
            parts.append({"type": "text", "text": f"Tool result: {text}"})
            continue
        if parts:
            yield {"role": "user", "content": _plain(parts)}
            parts = []
        call_id = block.get("tool_use_id") or block.get("id") or ""
        yield from ({"role": "tool", "tool_call_id": call_id, "content": one} for one in results)
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    yield from _closing(role, parts, calls)


def _closing(
    role: object, parts: list[dict[str, Any]], calls: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """What is left of a turn: an emptied user turn is gone, an empty assistant turn stays."""
    message: dict[str, Any] = {"role": role}
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = _plain(parts)
    elif not calls:
        message["content"] = ""
    if parts or calls or role != "user":
        yield message


def _plain(parts: list[dict[str, Any]]) -> object:
    """A single text part is sent as a string."""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _thinking(blocks: list[dict[str, Any]], how: Conversion) -> str | None:
    thoughts = [
        block["thinking"]
        for block in blocks
        if block.get("type") == "thinking" and isinstance(block.get("thinking"), str)
    ]
    joined = "\n".join(thought for thought in thoughts if thought)
    if not joined or how.think is None:
        return None
    return f"{how.think[0]}{joined}\n{how.think[1]}"


def _part(block: dict[str, Any]) -> dict[str, Any] | None:
    match block.get("type"):
        case "text" if isinstance(block.get("text"), str):
            return {"type": "text", "text": block["text"]}
        case "image":
            return _image(block.get("source"))
        case "search_result":
            text = _search_result(block)
            return {"type": "text", "text": text} if text else None
        case _:
            return None


def _image(source: object) -> dict[str, Any] | None:
    if not isinstance(source, dict):
        return None
    url = source.get("url")
    if source.get("type") == "base64":
        data = source.get("data")
        media_type = source.get("media_type", "image/png")
        url = f"data:{media_type};base64,{data}" if isinstance(data, str) and data else None
    return {"type": "image_url", "image_url": {"url": url}} if isinstance(url, str) else None


def _call(block: dict[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id") or "", "type": "function", "function": function}


def _tool_result(content: object) -> tuple[list[object], str]:
    """(contents, all text): runs of tool references stand alone, as GLM's templates need."""
    if not isinstance(content, list):
        text = str(content) if content else ""
        return [text], text
    groups: list[list[dict[str, Any]]] = []
    texts: list[str] = []
    for item in content:
        part = _result_part(item) if isinstance(item, dict) else None
        if part is None:
            continue
        if part["type"] == "text":
            texts.append(part["text"])
        is_reference = part["type"] == "tool_reference"
        if not groups or (groups[-1][0]["type"] == "tool_reference") != is_reference:
            groups.append([])
        groups[-1].append(part)
    return [_plain(group) for group in groups] or [""], "\n".join(texts)


def _result_part(item: dict[str, Any]) -> dict[str, Any] | None:
    if item.get("type") == "tool_reference":
        name = item.get("tool_name") or item.get("name")
        return {"type": "tool_reference", "name": name} if name else None
    part = _part(item)
    return None if part is not None and part.get("text") == "" else part


def _search_result(item: dict[str, Any]) -> str:
    lines: list[str] = []
    if title := item.get("title"):
        lines.append(f"Title: {title}")
    source = item.get("source")
    if isinstance(source, dict):
        source = source.get("url") or source.get("text")
    if source:
        lines.append(f"Source: {source}")
    content = item.get("content")
    texts = [content] if isinstance(content, str) and content else list(_texts(content))
    if texts:
        lines.append("Content: " + "\n".join(texts))
    return "\n".join(lines)


def _is_ours(tool: object) -> bool:
    if not isinstance(tool, dict):
        return False
    kind = tool.get("type")
    return not (isinstance(kind, str) and kind.startswith(_SERVER_TOOLS))


def _tool(tool: Mapping[str, Any], how: Conversion) -> dict[str, Any]:
    schema = tool.get("input_schema")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description") or "",
        "parameters": {**schema, "type": schema.get("type", "object")}
        if isinstance(schema, dict)
        else schema,
    }
    if how.tells_strict:
        function["strict"] = bool(tool.get("strict"))
    converted: dict[str, Any] = {"type": "function", "function": function}
    if tool.get("defer_loading") is not None:
        converted["defer_loading"] = tool["defer_loading"]
    return converted


def _tool_choice(choice: object) -> object:
    kind, name = (choice.get("type"), choice.get("name")) if isinstance(choice, dict) else ("", "")
    match kind:
        case "none":
            return "none"
        case "any":
            return "required"
        case "tool":
            return {"type": "function", "function": {"name": name}}
        case _:
            return "auto"
