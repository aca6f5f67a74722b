"""The twin's tokenizer: four UTF-8 bytes are one token, rounded up.

It is deterministic, instant and roughly right for English text, and a client that asks /tokenize
gets exactly what admission will count. A prompt is kept as bytes, four to a token; a prompt of
token ids becomes four bytes an id, so its count is its length. Equal beginnings give equal cache
blocks, because a block's id hashes everything before it.

Chats are rendered with a ChatML-like template: each message costs its text plus about five tokens.
An image counts 256 tokens.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

BYTES_PER_TOKEN = 4
VOCABULARY = 151_936  # Qwen3's, the model of the genuine test server
IMAGE = b"<img>" + b"\0" * (256 * BYTES_PER_TOKEN - 5)

# Generated text: words of three letters, so each with its space is one token of this tokenizer.
_WORDS = [
    "the",
    "and",
    "for",
    "are",
    "but",
    "not",
    "you",
    "all",
    "any",
    "can",
    "her",
    "was",
    "one",
    "our",
    "out",
    "day",
    "get",
    "has",
    "him",
    "his",
    "how",
    "man",
    "new",
    "now",
    "old",
    "see",
    "two",
    "way",
    "who",
    "boy",
    "did",
    "its",
    "let",
    "put",
    "say",
    "she",
    "too",
    "use",
    "dad",
    "mom",
    "air",
    "arm",
    "art",
    "ask",
    "bad",
    "bag",
]


def count(prompt: bytes) -> int:
    """Tokens of `prompt`."""
    return -(-len(prompt) // BYTES_PER_TOKEN)


def ids(prompt: bytes) -> list[int]:
    """Token ids of `prompt`: its bytes, four at a time, folded into the vocabulary."""
    return [
        int.from_bytes(prompt[at : at + BYTES_PER_TOKEN], "little") % VOCABULARY
        for at in range(0, len(prompt), BYTES_PER_TOKEN)
    ]


def from_ids(tokens: list[int]) -> bytes:
    """The prompt that these token ids are."""
    return b"".join((token & 0xFFFFFFFF).to_bytes(4, "little") for token in tokens)


def blocks(prompt: bytes, size: int) -> tuple[int, ...]:
    """Ids of the full cache blocks of `size` tokens at the start of `prompt`."""
    step = size * BYTES_PER_TOKEN
    above = b""
    keys: list[int] = []
    for at in range(0, len(prompt) - step + 1, step):
        above = blake2b(prompt[at : at + step], key=above, digest_size=8).digest()
        keys.append(int.from_bytes(above, "little"))
    return tuple(keys)


def render(messages: list[dict[str, Any]], tools: list[Any] | None = None) -> bytes:
    """The prompt of a chat. `messages` and `tools` are as in the OpenAI body."""
    parts: list[bytes] = []
    if tools:
        parts.append(b"<|system|>" + json.dumps(tools, separators=(",", ":")).encode())
    for message in messages:
        parts.append(f"<|{message.get('role', 'user')}|>\n".encode())
        parts.extend(_content(message.get("content")))
        if calls := message.get("tool_calls"):
            parts.append(json.dumps(calls, separators=(",", ":")).encode())
        parts.append(b"<|end|>\n")
    parts.append(b"<|assistant|>\n")
    return b"".join(parts)


def _content(content: object) -> list[bytes]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content.encode()]
    if not isinstance(content, list):
        return [str(content).encode()]
    return [
        str(part.get("text", "")).encode() if part.get("type") == "text" else IMAGE
        for part in content
        if isinstance(part, dict)
    ]


def word(seed: int, index: int) -> str:
    """The text of generated token `index`."""
    return _WORDS[(seed + 7 * index) % len(_WORDS)] + " "


def text(seed: int, start: int, stop: int) -> str:
    """The text of generated tokens `start` to `stop`."""
    return "".join(word(seed, index) for index in range(start, stop))
