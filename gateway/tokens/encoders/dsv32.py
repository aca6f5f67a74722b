"""DeepSeek V3.2's chats, as SGLang writes them out where the model brings no template.

The same from 0.5.6 to 0.5.23, but for what is put in front: 0.5.6 has a system message of its own
and leaves the last assistant turn as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.tokens.encoders.turns import (
    Turn,
    calls_block,
    last_asking,
    last_taken_apart,
    late_arguments,
    schemas,
    strict_arguments,
    thinks,
    turns_of,
)
from gateway.tokens.encoders.words import ASSISTANT, BOS, EOS, THINK, THOUGHT, USER, Words
from gateway.tokens.profile import NotPrepared, tools_left

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.tokens.profile import Profile

_STAY: Final = frozenset({"user", "system", "tool", "assistant"})


def encode_dsv32(
    chat: Mapping[str, Any], profile: Profile, words: Words
) -> tuple[Iterator[str], str | None]:
    """(the parts of the prompt, text appended to it); NotPrepared where the engine would refuse."""
    turns = turns_of(chat, profile, late_arguments if profile.late_arguments else strict_arguments)
    continued, thinking = None, thinks(chat, profile)
    if profile.bare_encoder:
        if any(turn.listed for turn in turns):
            raise NotPrepared("content")  # printed there as Python prints a list
    else:
        continued = last_taken_apart(turns, chat)
    if not turns:
        raise NotPrepared("empty")
    if turns[0].role != "system":
        turns.insert(0, Turn("system", _first(words) if profile.bare_encoder else ""))
    tools = chat.get("tools")
    if isinstance(tools, list) and tools and not _left_out(chat, profile):
        turns[0].tools = tools
    last = last_asking(turn.role for turn in turns)
    others = any(turn.role not in _STAY for turn in turns[: max(last, 0)])
    if thinking and others and not profile.bare_encoder:
        raise NotPrepared("order")  # the engine loses count of its messages and refuses
    return _written(turns, last, profile, words, thinking=thinking), continued


def _first(words: Words) -> str:
    said = words.say("system")
    return said[0] if len(said) == 1 else "".join(said)


def _left_out(chat: Mapping[str, Any], profile: Profile) -> bool:
    """Whether the choice of tools leaves none. Earlier versions print them all the same."""
    return profile.encoder_heeds_choice and not tools_left(chat, profile)


def _written(
    turns: list[Turn], last: int, profile: Profile, words: Words, *, thinking: bool
) -> Iterator[str]:
    yield BOS
    expected = seen = 0  # tool results of the calls before them
    for index, turn in enumerate(turns):
        if turn.role == "tool":
            seen += 1
            if seen > expected:
                raise NotPrepared("tool_order")
            if seen == 1:
                yield "\n\n<function_results>"
            yield f"\n<result>{turn.text}</result>"
            if seen == expected:
                yield "\n</function_results>\n\n"
                yield THINK if thinking and index >= last else THOUGHT
            continue
        expected, seen = len(turn.calls), 0
        if turn.role == "system":
            yield turn.text
            yield from _tools(turn, profile, words)
        elif turn.role == "assistant":
            yield from _answer(turn, thinking=thinking and index > last)
        else:
            yield from _question(turn, profile, words)
            yield THINK if thinking and index == last else THOUGHT


def _question(turn: Turn, profile: Profile, words: Words) -> Iterator[str]:
    yield USER
    if turn.role == "developer":
        if not turn.text:
            raise NotPrepared("empty")
        yield from _tools(turn, profile, words)
        yield from words.say("developer")
    elif turn.role != "user":
        raise NotPrepared("role")
    yield turn.text
    yield ASSISTANT


def _answer(turn: Turn, *, thinking: bool) -> Iterator[str]:
    if thinking:
        if not (turn.reasoning or turn.calls):
            raise NotPrepared("reasoning")
        yield turn.reasoning
        yield THOUGHT
    yield turn.text
    if turn.calls:
        yield from calls_block(turn.calls, "function_calls")
    yield EOS


def _tools(turn: Turn, profile: Profile, words: Words) -> Iterator[str]:
    if turn.tools:
        yield "\n\n"
        yield from words.say("tools_before")
        yield schemas(turn.tools, profile)
        yield from words.say("tools_after")
