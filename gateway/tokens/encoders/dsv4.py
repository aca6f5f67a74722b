"""DeepSeek V4's chats, as SGLang's own encoder writes them out (0.5.12 to before 0.5.23).

Tool results are part of the user's turns there, in the order of the calls. With tools on offer all
earlier thoughts stay, else those before the last user's turn go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from gateway.tokens.encoders.turns import (
    ASKING,
    Turn,
    calls_block,
    last_asking,
    last_taken_apart,
    late_or_raw_arguments,
    schemas,
    strict_arguments,
    thinks,
    turns_of,
)
from gateway.tokens.encoders.words import (
    ASSISTANT,
    BOS,
    EOS,
    REMINDER,
    TASKS,
    THINK,
    THOUGHT,
    USER,
    Words,
)
from gateway.tokens.profile import NotPrepared, arguments_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gateway.tokens.profile import Profile

BLOCK: Final = "tool_calls"
_STAY: Final = frozenset({"user", "system", "latest_reminder"})
_ANSWERS: Final = frozenset({"assistant", "latest_reminder"})


Said = tuple[bool, object, str]
"""(whether it is a tool result, the id of its call, text)"""


@dataclass(slots=True)
class Joined:
    """Turns of one side in a row, and what they say."""

    turn: Turn
    said: list[Said]


def joined(turns: Sequence[Turn]) -> list[Joined]:
    """User turns and tool results in a row as one, the results in the order of their calls."""
    found: list[Joined] = []
    for turn in turns:
        before = found[-1] if found and found[-1].turn.role == "user" else None
        if turn.role == "tool":
            said = (True, turn.call_id, turn.text)
            if before is None:
                found.append(Joined(Turn("user", ""), [said]))
            else:
                before.said.append(said)
        elif turn.role == "user" and before is not None and before.turn.task is None:
            before.said.append((False, None, turn.text))
        else:
            found.append(Joined(turn, [(False, None, turn.text)]))
    _in_order(found)
    return found


def _in_order(found: list[Joined]) -> None:
    order: dict[object, int] = {}
    for each in found:
        if each.turn.calls:
            order = {call.id: at for at, call in enumerate(each.turn.calls) if call.id}
        elif each.turn.role == "user" and order:
            results = sorted((s for s in each.said if s[0]), key=lambda s: order.get(s[1], 0))
            following = iter(results)
            each.said = [next(following) if said[0] else said for said in each.said]


def user_text(each: Joined) -> str:
    """What the user's side says, tool results as tags."""
    return "\n\n".join(
        f"<tool_result>{text}</tool_result>" if is_result else text
        for is_result, _, text in each.said
    )


def encode_dsv4(
    chat: Mapping[str, Any], profile: Profile, words: Words
) -> tuple[Iterator[str], str | None]:
    """(the parts of the prompt, text appended to it); NotPrepared where the engine would refuse."""
    parse = late_or_raw_arguments if profile.late_arguments else strict_arguments
    turns = turns_of(chat, profile, parse)
    continued, thinking = last_taken_apart(turns, chat), thinks(chat, profile)
    if not turns:
        raise NotPrepared("empty")
    if turns[0].role != "system":
        turns.insert(0, Turn("system", ""))
    tools = chat.get("tools")
    if isinstance(tools, list) and tools:
        turns[0].tools = tools
    task = chat.get("task")
    if task is not None:
        asking = last_asking(turn.role for turn in turns)
        if asking < 0 or task not in TASKS:
            raise NotPrepared("task")
        turns[asking].task = task
    all_joined = joined(turns)
    drops = thinking and not any(each.turn.tools for each in all_joined)
    if drops:
        all_joined = _dropped(all_joined)
    asked = effort_of(chat, profile)
    effort = words.say("effort_max") if thinking and asked == "max" else ()
    parts = _written(all_joined, profile, words, thinking=thinking, drops=drops)
    return chain((BOS, *effort), parts), continued


def template_effort(chat: Mapping[str, Any]) -> object:
    """The effort among the client's template arguments; None where there is none."""
    own = chat.get("chat_template_kwargs")
    return own.get("reasoning_effort") if isinstance(own, dict) else None


def effort_of(chat: Mapping[str, Any], profile: Profile) -> object:
    """The effort asked for; None where there is none.

    A template argument of that name comes first: a served chat is given it as its effort (/v1/tokenize
    leaves it where it is).
    """
    own = template_effort(chat)
    if own is not None:
        return own
    plain = {key: value for key, value in chat.items() if key != "chat_template_kwargs"}
    return arguments_of(plain, profile).get("reasoning_effort")


def _dropped(all_joined: list[Joined]) -> list[Joined]:
    """Without the thoughts, and without the developers, before the last question."""
    last = last_asking(each.turn.role for each in all_joined)
    kept = []
    for index, each in enumerate(all_joined):
        if index >= last or each.turn.role in _STAY:
            kept.append(each)
        elif each.turn.role == "assistant":
            kept.append(Joined(replace(each.turn, reasoning=""), each.said))
    return kept


def _written(
    all_joined: list[Joined], profile: Profile, words: Words, *, thinking: bool, drops: bool
) -> Iterator[str]:
    last = last_asking(each.turn.role for each in all_joined)
    for index, each in enumerate(all_joined):
        turn = each.turn
        if turn.role == "assistant":
            answers_task = index > 0 and all_joined[index - 1].turn.task is not None
            thought = thinking and not answers_task and (not drops or index > last)
            yield from _answer(turn, thought=thought)
        else:
            yield from _question(each, profile, words)
        if index + 1 < len(all_joined) and all_joined[index + 1].turn.role not in _ANSWERS:
            continue
        opens = thinking and (not drops or index >= last)
        yield from _opening(turn, THINK if thinking else THOUGHT, opens=opens)


def _question(each: Joined, profile: Profile, words: Words) -> Iterator[str]:
    turn = each.turn
    match turn.role:
        case "user":
            yield USER
            yield user_text(each)
        case "latest_reminder":
            yield REMINDER
            yield turn.text
        case "system" | "developer":
            if turn.role == "developer":
                if not turn.text:
                    raise NotPrepared("empty")
                yield USER
            yield turn.text
            if turn.tools:
                yield "\n\n"
                yield from words.say("tools_before")
                yield schemas(turn.tools, profile)
                yield from words.say("tools_after")
        case _:
            raise NotPrepared("role")


def _answer(turn: Turn, *, thought: bool) -> Iterator[str]:
    if thought:
        yield turn.reasoning
        yield THOUGHT
    yield turn.text
    if turn.calls:
        yield from calls_block(turn.calls, BLOCK)
    yield EOS


def _opening(turn: Turn, mode: str, *, opens: bool) -> Iterator[str]:
    """What comes before the answer that follows `turn`."""
    if turn.task is not None:
        if turn.task == "action":
            yield ASSISTANT
            yield mode
        yield TASKS[turn.task]
    elif turn.role in ASKING:
        yield ASSISTANT
        yield THINK if opens else THOUGHT
