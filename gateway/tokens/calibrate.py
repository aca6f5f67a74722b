"""Asks the server how it counts a few small bodies, and settles on what agrees with it.

The files say what the model's vocabulary and template are; only the server knows what it runs.
Text probes test the vocabulary and tell how many tokens are put around plain text. Chat probes
tell versions apart: the profile of the reported version is tried first, then every other one.
Nothing here fails: a server that does not answer leaves what the files say, with a note.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.tokens.counter import Unavailable, tokenize_chat
from gateway.tokens.local import LocalCounter
from gateway.tokens.profile import PROFILES, Profile
from gateway.tokens.request import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gateway.tokens.encoder import TextCounter
    from gateway.tokens.template import ChatTemplate

    Remote = Callable[[dict[str, Any]], Awaitable[int]]

_SECONDS: Final = 5.0  # for one probe, of a server that may be busy

# Scripts and forms in which vocabularies and their loading differ: numbers, contractions, CJK,
# Arabic with marks, decomposed accents, emoji, code, special tokens as text.
TEXTS: Final = (
    "The year 2026, isn't it? 12345678 …",
    "模型的词表与分词，日本語のテスト、한국어 시험。",
    "اللُّغَةُ العَرَبِيَّةُ والحَرَكَات e\u0301te\u0301 naïve 👩🏽\u200d🚀",
    "def f(x):\n\treturn {'a': [1, 2], \"b\": x**2}  # ok\r\n\n<|im_end|></s>",
)

_USER: Final = {"role": "user", "content": "Weather in Zürich?"}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Looks <up> the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
_CALL: Final = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Z\\u00fcrich", "days": 1.0}'},
        }
    ],
}
CHATS: Final[tuple[dict[str, Any], ...]] = (
    {"messages": [_USER]},
    {"messages": [{"role": "system", "content": "Be brief."}, _USER]},
    {"messages": [_USER], "tools": [_TOOL]},
    {"messages": [_USER], "tools": [_TOOL], "tool_choice": "none"},
    {
        "messages": [
            _USER,
            _CALL,
            {
                "role": "tool",
                "tool_call_id": "call_1",
                "content": [{"type": "text", "text": "dry"}],
            },
        ],
        "tools": [_TOOL],
    },
    {"messages": [_USER], "reasoning_effort": "low"},
    {"messages": [_USER], "chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    {"messages": [_USER, {"role": "assistant", "content": "It is"}]},
    {
        "messages": [_USER, {"role": "assistant", "content": "It is"}],
        "continue_final_message": True,
    },
    {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}, _CALL]},
)
"""Each tells something: template, system, tool form, tool_choice, tool calls and their arguments,
effort, thinking, what becomes of a last assistant message, lists of parts."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The counter that agrees best, and whether it agrees in everything that was asked."""

    local: LocalCounter
    exact: bool
    notes: tuple[str, ...]


async def calibrate(
    text: TextCounter, template: ChatTemplate | None, profile: Profile, remote: Remote | None
) -> Calibrated:
    """A local counter that counts as the server behind `remote` does, as far as that can be."""
    if remote is None:
        return Calibrated(LocalCounter(text, template, profile), exact=True, notes=())
    notes: list[str] = []
    exact = await _settle_prefix(text, remote, notes)
    candidates = [profile, *(other for other in PROFILES if other is not profile)]
    best, agreed = LocalCounter(text, template, profile), -1
    asked = [] if template is None else await _ask_all(remote, notes)
    for candidate in candidates:
        local = LocalCounter(text, template, candidate)
        right = sum(_count(local, Request(chat=chat)) == count for chat, count in asked)
        if right > agreed:
            best, agreed, profile = local, right, candidate
    if agreed < len(asked):
        notes.append(
            f"{len(asked) - agreed} of {len(asked)} chat probes differ from the server's own"
            " count: chats are estimates until usage shows otherwise."
        )
        exact = False
    elif asked and profile is not candidates[0]:
        since = ".".join(map(str, profile.since))
        notes.append(f"The server renders chats as SGLang {since} does, unlike its version says.")
    return Calibrated(best, exact, tuple(notes))


async def _settle_prefix(text: TextCounter, remote: Remote, notes: list[str]) -> bool:
    """Take over the number of tokens the server puts around text; False where texts differ."""
    differences = set()
    for probe in TEXTS:
        count = await _ask(remote, {"prompt": probe})
        if count is None:
            notes.append("The server's /v1/tokenize did not answer: counts are not calibrated.")
            return True
        differences.add(count - text.count(probe))
    if len(differences) > 1 or min(differences) < 0:
        notes.append("The server's tokenizer differs from these files: counts are estimates.")
        return False
    text.prefix = differences.pop()
    return True


async def _ask_all(remote: Remote, notes: list[str]) -> list[tuple[Mapping[str, Any], int]]:
    """The chat probes that the server could answer (0.5.6 takes no chats; templates refuse some)."""
    answers = [(chat, await _ask(remote, tokenize_chat(chat))) for chat in CHATS]
    known: list[tuple[Mapping[str, Any], int]] = [
        (chat, count) for chat, count in answers if count is not None
    ]
    if not known:
        notes.append("The server's /v1/tokenize takes no chats: rendered by its version alone.")
    return known


async def _ask(remote: Remote, body: dict[str, Any]) -> int | None:
    try:
        async with asyncio.timeout(_SECONDS):
            return await remote(body)
    except Exception:  # noqa: BLE001 - no answer is an answer
        return None


def _count(local: LocalCounter, request: Request) -> int | None:
    try:
        return local.count_now(request)[0]
    except Unavailable:
        return None
