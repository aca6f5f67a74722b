"""A count that is never low, from the bytes alone.

Every byte-level vocabulary has the 256 bytes in it and each further token covers at least one
byte, so a text has at most as many tokens as UTF-8 bytes (after NFC where the tokenizer applies
it, see `nfc`); SentencePiece with byte fallback adds at most its one dummy space. What a chat
template adds around the texts is not in the body: it gets an allowance.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from gateway.tokens.nfc import bytes_bound
from gateway.tokens.request import media_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.tokens.request import Request

# Tokens a template may put around everything: the longest preambles seen are gpt-oss's system
# message (about 120) and the tool instructions of Qwen 3 and GLM-4.5 (about 200).
TEMPLATE: Final = 512
# The same where an estimate will do, which `usage` corrects: those lengths and a quarter more.
OUTLINE: Final = 160
OUTLINE_TOOLS: Final = 400
# Around one message: role, markers, an empty think block. Measured: 3 to 12 on ten templates.
MESSAGE: Final = 24
# Around one tool or tool call, besides its JSON: gpt-oss renders types in TypeScript.
TOOL: Final = 64
# Beginning-of-sequence and a dummy space around plain text.
TEXT: Final = 2


def chat_outline(chat: Mapping[str, Any]) -> tuple[str, int]:
    """(every text of `chat`, one a line; an allowance in tokens for what a template adds to them).

    For a server that counts plain text but no chats. Nothing is rendered, so what comes of it is
    an estimate.
    """
    texts: list[str] = []

    def collect(text: str) -> int:
        texts.append(text)
        return 0

    added = _chat_bound(chat, collect) - TEMPLATE
    return "\n".join(texts), added + (OUTLINE_TOOLS if chat.get("tools") else OUTLINE)


def prompts_bound(request: Request, measure: Callable[[str], int] = bytes_bound) -> tuple[int, ...]:
    """For each prompt of `request` a number of tokens it cannot exceed, media left out.

    With another `measure` of a text than its bytes this is an estimate by addition: on the high
    side by what of the allowances is not used, on the low side by nothing that was ever seen.
    """
    if request.chat is not None:
        return (_chat_bound(request.chat, measure),)
    return tuple(
        prompt if isinstance(prompt, int) else measure(prompt) + TEXT for prompt in request.prompts
    )


def _chat_bound(chat: Mapping[str, Any], measure: Callable[[str], int]) -> int:
    total = TEMPLATE
    for message in chat["messages"]:
        total += MESSAGE
        for key, value in message.items():
            if key == "content" and isinstance(value, list):
                total += sum(
                    _value_bound(part, measure) for part in value if media_of(part) is None
                )
            else:
                total += _value_bound(value, measure)
        if isinstance(calls := message.get("tool_calls"), list):
            total += TOOL * len(calls)
    if isinstance(tools := chat.get("tools"), list):
        total += TOOL * len(tools) + _value_bound(tools, measure)
    total += _value_bound(chat.get("chat_template_kwargs"), measure)
    return total


def _value_bound(value: object, measure: Callable[[str], int]) -> int:
    """Bytes of a value however a template prints it: JSON indented by four is the longest in use.

    Walked with a stack of its own, so that nesting cannot exhaust Python's.
    """
    if isinstance(value, str):
        return measure(value)
    total = 0
    stack: list[tuple[object, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        total += 4 * depth + 4  # newline, indent, comma or bracket
        if isinstance(item, dict):
            total += sum(measure(json.dumps(str(key), ensure_ascii=False)) + 2 for key in item)
            stack.extend((inner, depth + 1) for inner in item.values())
        elif isinstance(item, list):
            stack.extend((inner, depth + 1) for inner in item)
        else:
            total += measure(json.dumps(item, ensure_ascii=False))
    return total
