"""Asks the server how it counts a few small bodies, and settles on what agrees with it.

The files say what the model's vocabulary and template are; only the server knows what it runs.
Text probes test the vocabulary and tell how many tokens are put around plain text. Chat probes
tell versions apart: the profile of the reported version is tried first, then every other one.
Nothing here fails: a server that does not answer leaves what the files say, with a note.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.tokens.counter import Unavailable, tokenize_chat
from gateway.tokens.encoders import learn
from gateway.tokens.encoders.words import NO_WORDS, NOT_LEARNED, Words
from gateway.tokens.local import LocalCounter
from gateway.tokens.profile import PROFILES, Profile
from gateway.tokens.request import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gateway.tokens.encoder import TextCounter
    from gateway.tokens.encoders import Spec
    from gateway.tokens.spelling import Spelling
    from gateway.tokens.template import ChatTemplate

    Remote = Callable[[dict[str, Any]], Awaitable[int]]

_T = TypeVar("_T")
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

_THINKS: Final = {"chat_template_kwargs": {"thinking": True}}
_RESULTS: Final = [
    _USER,
    {**_CALL, "reasoning_content": "The weather service knows."},
    {"role": "tool", "tool_call_id": "call_1", "content": ""},
]
ENCODED: Final[tuple[dict[str, Any], ...]] = (
    {"messages": [_USER], **_THINKS},
    {"messages": [_USER], "reasoning_effort": "max"},
    {"messages": _RESULTS, "tools": [_TOOL]},
    {"messages": _RESULTS, "tools": [_TOOL], **_THINKS},
    {"messages": [*_RESULTS, {"role": "user", "content": "<think>"}], **_THINKS},
    {"messages": [_USER, {"role": "system", "content": "Be brief."}, _USER]},
)
"""What the encoders besides do in their own ways: effort as a text, thoughts that are dropped or
stay, an empty result, a special token spelled out, system messages in mid-conversation."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The counter that agrees best, and whether it agrees in everything that was asked."""

    local: LocalCounter
    exact: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Teacher:
    """Who tells the ids of a chat, and what they spell: see `encoders.learn`."""

    ids: Callable[[dict[str, Any]], Awaitable[object]]
    spelling: Spelling


async def calibrate(
    text: TextCounter,
    template: ChatTemplate | None,
    profile: Profile,
    remote: Remote | None,
    *,
    spec: Spec | None = None,
    teacher: Teacher | None = None,
) -> Calibrated:
    """A local counter that counts as the server behind `remote` does, as far as that can be.

    Chats are written by the encoder `spec`, where there is one, with sentences that `teacher` knows.
    """
    if remote is None:
        unknown = _unlearned(
            spec, profile, NO_WORDS, "estimated: no server teaches their sentences"
        )
        return Calibrated(LocalCounter(text, template, profile, spec), exact=True, notes=unknown)
    notes: list[str] = []
    exact = await _settle_prefix(text, remote, notes)
    candidates = [profile, *(other for other in PROFILES if other is not profile)]
    if spec is not None:
        # SGLANG_DEFAULT_THINKING and --default-chat-template-kwargs are not told to us.
        candidates += [replace(candidate, thinks=True) for candidate in candidates]
    best, agreed, differ, learned = LocalCounter(text, template, profile, spec), -1, 0, NO_WORDS
    asked = await _ask_all(remote, notes, encoded=spec is not None) if best.renders else []
    answers: list[learn.Answer] = []
    if spec is not None and teacher is not None:
        answers = await _lessons(teacher, learn.asked(spec, candidates))
        asked += [(answer.chat, len(answer.ids)) for answer in answers]
    for candidate in candidates:
        words = NO_WORDS
        if spec is not None and teacher is not None:
            words = learn.learn(spec, candidate, answers, teacher.spelling, text.prefix)
        local = LocalCounter(text, template, candidate, spec, words)
        verdicts = [_agrees(local, chat, count) for chat, count in asked]
        if verdicts.count(True) > agreed:
            best, profile, learned = local, candidate, words
            agreed, differ = verdicts.count(True), verdicts.count(False)
    notes += _unlearned(
        spec, profile, learned, "asked of the server or estimated: their sentences are not known"
    )
    if differ:
        notes.append(
            f"{differ} of {len(asked)} chat probes differ from the server's own"
            " count: chats are estimates until usage shows otherwise."
        )
        exact = False
    elif asked and profile.thinks:
        notes.append("The server thinks where a client does not say whether to.")
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


async def _ask_all(
    remote: Remote, notes: list[str], *, encoded: bool
) -> list[tuple[Mapping[str, Any], int]]:
    """The chat probes that the server could answer (0.5.6 takes no chats; templates refuse some)."""
    probes = (*CHATS, *ENCODED) if encoded else CHATS
    answers = [(chat, await _ask(remote, tokenize_chat(chat))) for chat in probes]
    known: list[tuple[Mapping[str, Any], int]] = [
        (chat, count) for chat, count in answers if count is not None
    ]
    if not known:
        notes.append("The server's /v1/tokenize takes no chats: rendered by its version alone.")
    return known


async def _ask(
    remote: Callable[[dict[str, Any]], Awaitable[_T]], body: dict[str, Any]
) -> _T | None:
    try:
        async with asyncio.timeout(_SECONDS):
            return await remote(body)
    except Exception:  # noqa: BLE001 - no answer is an answer
        return None


def _agrees(local: LocalCounter, chat: Mapping[str, Any], count: int) -> bool | None:
    """Whether `local` counts as the server did; None where it lacks a sentence and will not try."""
    try:
        return local.count_now(Request(chat=chat))[0] == count
    except Unavailable as why:
        return None if why.reason == NOT_LEARNED else False


async def _lessons(teacher: Teacher, chats: list[Mapping[str, Any]]) -> list[learn.Answer]:
    """The ids of `chats`, of those that the server answers with ids."""
    found = []
    for chat in chats:
        ids = await _ask(teacher.ids, tokenize_chat(chat))
        if not isinstance(ids, list) or len(ids) > learn.MOST_IDS:
            continue
        if all(isinstance(each, int) for each in ids):
            found.append(learn.Answer(chat, ids))
    return found


def _unlearned(spec: Spec | None, profile: Profile, words: Words, how: str) -> tuple[str, ...]:
    kinds = [] if spec is None else learn.lacking(spec, profile, words)
    return (f"Chats {', '.join(kinds)} are {how}.",) if kinds else ()
