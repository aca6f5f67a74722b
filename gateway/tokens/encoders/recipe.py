"""DeepSeek V4 and V4.1 from SGLang 0.5.23 on: DeepSeek's own `deepseek-recipe` writes the prompt.

It refuses what it cannot follow (calls without results, schemas that are no objects), and what a
client spells like a special token is text to it. Both models share all but a few habits (`Style`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.tokens.encoders.dsv4 import BLOCK, Joined, Said, effort_of, joined, user_text
from gateway.tokens.encoders.turns import (
    Turn,
    as_json,
    calls_block,
    raw_arguments,
    thinks,
    turns_of,
)
from gateway.tokens.encoders.words import (
    ASSISTANT,
    BOS,
    EOS,
    REMINDER,
    SYSTEM,
    TASKS,
    THINK,
    THOUGHT,
    USER,
    Words,
)
from gateway.tokens.profile import NotPrepared, tools_left

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.tokens.profile import Profile

_LOW: Final = frozenset({"minimal", "low"})
_HIGH: Final = frozenset({None, "none", "medium", "high", "xhigh"})
_MAX: Final = frozenset({"max", "ultra"})
_UNTOLD: Final = frozenset({None, "text", "structural_tag"})

Parts = tuple[str, ...]
"""Some of a prompt, as encoders write it."""


@dataclass(frozen=True, slots=True)
class Style:
    """Where the two models differ."""

    block: str
    gap: str  # between mark and name of a tag
    inline_system: bool  # system messages stay where they are; empty user texts count
    empty_line: bool  # in a call without arguments
    sorted_calls: bool  # by their ids, whatever order they were made in
    efforts: tuple[str | int, str | int, str | int]  # low, high, highest: words or numbers
    any_json: str  # the schema for any JSON, where that is asked for like another
    python_floats: bool  # 1e-08, not 1e-8


V4: Final = Style(
    block=BLOCK, gap="", inline_system=False, empty_line=False, sorted_calls=True,
    efforts=("", "effort_high", "effort_max"), any_json="", python_floats=False,
)  # fmt: skip
V41: Final = Style(
    block="calls", gap=" ", inline_system=True, empty_line=True, sorted_calls=False,
    efforts=(50, 75, 100), any_json='{"type": "json_object"}', python_floats=True,
)  # fmt: skip


def encode_recipe(
    chat: Mapping[str, Any], profile: Profile, words: Words, style: Style
) -> tuple[Iterator[str], str | None]:
    """(the parts of the prompt, text appended to it); NotPrepared where the engine would refuse."""
    turns = turns_of(chat, profile, raw_arguments, between="\n\n")
    task, thinking = chat.get("task"), thinks(chat, profile)
    if task is not None and task not in TASKS:
        raise NotPrepared("task")
    continued, prefix = _last(turns, chat, with_task=task is not None)
    _answered(turns)
    for turn in turns if style.sorted_calls else ():
        turn.calls.sort(key=lambda call: str(call.id))
    effort = _effort(chat, profile, words, style) if thinking else ()
    tools = _tools(chat, profile, words)
    rest = [
        Turn("system", turn.text) if turn.role == "developer" else turn
        for turn in turns
        if turn.role not in {"system", "developer"} or turn.text
    ]
    head = ""
    if not style.inline_system:
        head = "\n\n".join(turn.text for turn in rest if turn.role == "system")
        rest = [turn for turn in rest if turn.role != "system"]
    else:
        if rest and rest[0].role == "system":
            head = rest.pop(0).text
        # Of reminders in a row the first is told.
        pairs = zip([None, *rest], rest, strict=False)
        rest = [turn for before, turn in pairs if not before or not _both_remind(before, turn)]
    parts = [BOS, *_head(head, effort, tools, _format(chat, words, style), style)]
    parts += _written(joined(rest), style, thinking=thinking, keeps=bool(tools))
    if prefix is not None:
        if tools:
            raise NotPrepared("continued")
        # V4.1 does not think where nothing was said before.
        parts += _prefixed(prefix, thinking=thinking and bool(turns or not style.inline_system))
    elif task is None or task == "action":
        parts += [ASSISTANT, THINK if thinking else THOUGHT]
    if task is not None:
        parts.append(TASKS[task])
    printed: list[object] = [call.arguments for turn in turns for call in turn.calls]
    printed += [chat.get("tools"), chat.get("response_format")]
    if not style.python_floats and any(map(_has_small, printed)):
        raise NotPrepared("small_number")
    return iter(parts), continued


def _last(
    turns: list[Turn], chat: Mapping[str, Any], *, with_task: bool
) -> tuple[str | None, Turn | None]:
    """(text appended, the turn that is continued), taken out of `turns`."""
    if not turns:
        raise NotPrepared("empty")
    last = turns[-1]
    goes_on = bool(chat.get("continue_final_message"))
    if last.role != "assistant":
        return None, None
    if last.listed:
        # Left as it is without the field, and continued with it, its calls with it.
        if not goes_on:
            return None, None
        if last.calls or with_task:
            raise NotPrepared("continued")
        return None, turns.pop()
    if not goes_on:
        turns[-1] = Turn("user", last.text)
        return None, None
    turns.pop()
    return (last.text, None) if with_task else (None, last)


def _answered(turns: list[Turn]) -> None:
    """NotPrepared unless every call has one result, right behind it, and every result a call."""
    open_calls: set[object] = set()
    for turn in turns:
        if turn.role == "function":
            raise NotPrepared("role")
        if turn.role == "tool":
            if turn.call_id not in open_calls:
                raise NotPrepared("tool_order")
            open_calls.remove(turn.call_id)
            continue
        if open_calls:
            raise NotPrepared("tool_order")
        open_calls = {call.id for call in turn.calls}
        if len(open_calls) < len(turn.calls) or None in open_calls:
            raise NotPrepared("tool_order")
    if open_calls:
        raise NotPrepared("tool_order")


def _effort(chat: Mapping[str, Any], profile: Profile, words: Words, style: Style) -> Parts:
    asked = effort_of(chat, profile)
    if isinstance(asked, str | None):
        for names, said in zip((_LOW, _HIGH, _MAX), style.efforts, strict=True):
            if asked in names:
                if isinstance(said, int):
                    return _by_number(said, words)
                return words.say(said) if said else ()
    elif isinstance(style.efforts[0], int) and isinstance(asked, int | float) and 0 <= asked < 1:
        return _by_number(max(1, round(asked * 100)), words)
    raise NotPrepared("effort")


def _by_number(number: int, words: Words) -> Parts:
    return (*words.say("number_before"), str(number), *words.say("number_after"))


def _tools(chat: Mapping[str, Any], profile: Profile, words: Words) -> Parts:
    """The schemas of the tools on offer, one a line, and what is said around them."""
    printed = []
    for tool in tools_left(chat, profile) or ():
        function = tool["function"]
        parameters = function.get("parameters")
        if parameters is None:
            parameters = {}
        elif not isinstance(parameters, dict) or parameters.get("type") != "object":
            raise NotPrepared("tools")
        if function.get("strict") or function.get("defer_loading"):
            raise NotPrepared("tools")  # a strict schema is completed there
        described = function.get("description") or ""
        printed.append(
            as_json({"name": function["name"], "description": described, "parameters": parameters})
        )
    if not printed:
        return ()
    return (*words.say("tools_before"), "\n".join(printed), *words.say("tools_after"))


def _format(chat: Mapping[str, Any], words: Words, style: Style) -> Parts:
    asked = chat.get("response_format")
    if not isinstance(asked, dict) or asked.get("type") in _UNTOLD:
        return ()
    if asked["type"] == "json_object":
        any_json = style.any_json
        return (*words.say("schema"), any_json) if any_json else words.say("json_object")
    named = asked.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if asked["type"] == "json_schema" and isinstance(schema, dict):
        return (*words.say("schema"), as_json(schema))
    raise NotPrepared("response_format")


def _head(text: str, effort: Parts, tools: Parts, answers: Parts, style: Style) -> Iterator[str]:
    if style.inline_system and (text or effort or tools or answers):
        yield SYSTEM
    yield from effort
    yield text
    if tools:
        yield "\n\n"
        yield from tools
    if answers:
        # A line of its own, as the tools have; they end with one already.
        yield "\n\n"
        yield from answers


def _written(
    all_joined: list[Joined], style: Style, *, thinking: bool, keeps: bool
) -> Iterator[str]:
    for each in all_joined:
        turn = each.turn
        if turn.role != "assistant":
            yield {"user": USER, "system": SYSTEM}.get(turn.role, REMINDER)
            if turn.role == "user" and not style.inline_system:
                each.said = _without_empty(each.said)
            yield user_text(each) if turn.role == "user" else turn.text
            continue
        yield ASSISTANT
        if thinking and keeps:
            yield THINK
            yield turn.reasoning
        yield THOUGHT
        yield turn.text
        if turn.calls:
            yield from calls_block(turn.calls, style.block, style.gap, empty_line=style.empty_line)
        yield EOS


def _without_empty(said: list[Said]) -> list[Said]:
    """The user's own texts as one, those left out that say nothing; it stands behind the results."""
    own = [text for is_result, _, text in said if not is_result]
    results = [each for each in said if each[0]]
    return [*results, (False, None, "\n\n".join(filter(None, own)))] if own else results


def _both_remind(before: Turn, turn: Turn) -> bool:
    return before.role == turn.role == "latest_reminder"


def _has_small(value: object) -> bool:
    """Whether a number in `value` has an exponent that Python prints with a zero in front."""
    if isinstance(value, dict):
        return any(map(_has_small, value.values()))
    if isinstance(value, list):
        return any(map(_has_small, value))
    return isinstance(value, float) and "e-0" in repr(value)


def _prefixed(turn: Turn, *, thinking: bool) -> Iterator[str]:
    yield ASSISTANT
    if thinking:
        yield THINK
        yield turn.reasoning
    if turn.text or not thinking:
        yield THOUGHT
    yield turn.text
