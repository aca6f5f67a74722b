"""Which turns of a conversation may go, and the least that must. Pure but for the count it is given.

A conversation is cut at one place: what stands before it goes, what stands after it stays, and of
what stands before, these stay as well:

- every system and developer message, where it was;
- the request that the first kept message works on, where the cut is in the midst of its answer. An
  agent's one request has hundreds of tool calls after it: the old ones can go and the request not.
  So what is left begins with a user's message, as some templates demand, wherever it did before.

A cut never parts a tool call from its result, whether they are told by id (which some models use
again and again: a result belongs to the last call of its id) or by standing beside each other. The
last message, the group of calls and results it belongs to, and the last that the user said always
stay. OpenAI's and Anthropic's shapes are read by the same code, as no message has both.

Cuts are made in strides: among all places only those where so many more bytes have gone. A history
that grows by a turn is then cut where it was cut before, and what the server has cached of it stays
of use until a stride has been filled; cut as closely as possible it would be new with every turn.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

MOST_COUNTS = 16
"""Counts for one conversation. Bytes foretell tokens well, so three to five are usual; where they do
not, at least every second guess halves what is left: 180 places, several times a context in strides."""

RESULTS = frozenset({"tool", "function"})
"""Roles of messages that bring the result of a call; `function` is OpenAI's first name for it."""


class _Part(Enum):
    SYSTEM = auto()
    ASKS = auto()  # the user, and no result of a tool
    ANSWERS = auto()  # results of tools
    BOTH = auto()  # results of tools and words of the user in one message
    WORKS = auto()  # the model, and whatever else there may be


@dataclass(frozen=True, slots=True)
class Cut:
    """One place. Messages from `start` on stay, and before it those of `also`, in order."""

    start: int
    also: tuple[int, ...]
    turns: int  # messages of user and model that go; results of tools go with their calls
    gone: int  # bytes that go


@dataclass(frozen=True, slots=True)
class Found:
    """The cut to make, and what the conversation then counts."""

    cut: Cut
    tokens: int


def kept(messages: Sequence[Any], cut: Cut) -> list[Any]:
    """What is left of `messages`: the very objects, in their order."""
    return [*(messages[at] for at in cut.also), *messages[cut.start :]]


def cuts(messages: Sequence[Any], sizes: Sequence[int], stride: int = 1) -> list[Cut]:
    """Where `messages` may be cut, the least first, each taking with it all that the one before took.

    `sizes` are the bytes of each message. Of the places in every `stride` bytes the first one is
    there, and after the last full stride all of them, so that the last one is always the most that
    may go. Empty where nothing may.
    """
    places: list[Cut] = []
    rest: list[Cut] = []
    filled = 0
    for cut in _everywhere(messages, sizes):
        if cut.gone // stride > filled:
            filled = cut.gone // stride
            places.append(cut)
            rest = []
        else:
            rest.append(cut)
    return places + rest


async def least(
    places: Sequence[Cut], limit: int, whole: int, count: Callable[[Cut], Awaitable[int]]
) -> Found:
    """The first of `places`, which may not be empty, that leaves at most `limit` tokens.

    `whole` is what the uncut conversation counts, above `limit`; `count` says it of a cut one.
    Where even the last place leaves more, that one. After `MOST_COUNTS` counts the best so far.
    """
    low, high = -1, len(places) - 1  # low leaves too much, high does not
    above, found = whole, await count(places[high])
    if found > limit:
        return Found(places[high], found)
    before = 2 * len(places) + 2  # how many were left before the last guess
    for _ in range(1, MOST_COUNTS):
        left = high - low
        if left == 1:
            break
        at = (low + high) // 2
        if left <= before // 2:
            at = _foretold(places, low, high, (above - limit) / max(1, above - found))
        before = left
        tokens = await count(places[at])
        if tokens > limit:
            low, above = at, tokens
        else:
            high, found = at, tokens
    return Found(places[high], found)


def _foretold(places: Sequence[Cut], low: int, high: int, part: float) -> int:
    """The place between two where that `part` of the bytes between them has gone."""
    before = places[low].gone if low >= 0 else 0
    wanted = before + part * (places[high].gone - before)
    at = bisect_left(places, wanted, low + 1, high, key=lambda cut: cut.gone)
    return min(at, high - 1)


def _everywhere(messages: Sequence[Any], sizes: Sequence[int]) -> Iterator[Cut]:
    parts = [_part(message) for message in messages]
    parted = _parted(messages)
    end = _end(parts)
    system: list[int] = []
    asked: list[int] = []  # the newest request: one message, or several in a row
    untouched = False  # nothing was made of it yet, and more may be asked
    asking = False
    turns = gone = 0  # of all that is neither
    for at, part in enumerate(parts[:end]):
        if part is _Part.SYSTEM:
            system.append(at)
            continue
        begins = part is _Part.WORKS and not untouched
        if part is _Part.ASKS and not asking:
            begins = True  # the request before goes with the last that was made of it
            turns, gone = turns + len(asked), gone + sum(sizes[one] for one in asked)
            asked = []
        if begins and gone and not parted[at]:
            yield Cut(at, tuple(sorted(system + asked)), turns, gone)
        asking = untouched = part is _Part.ASKS
        if asking:
            asked.append(at)
        else:
            turns += part is not _Part.ANSWERS
            gone += sizes[at]


def _end(parts: Sequence[_Part]) -> int:
    """Where cuts have to end, so that the last that the user said stays.

    A request of its own stays by itself; words beside results of tools only with those.
    """
    for at in range(len(parts) - 1, -1, -1):
        if parts[at] is _Part.ASKS:
            break
        if parts[at] is _Part.BOTH:
            return at
    return len(parts)


def _parted(messages: Sequence[Any]) -> list[bool]:
    """For each message whether a cut before it would part a call from one of its results."""
    opened = [0] * (len(messages) + 1)  # results after here whose calls are before here: the change
    made: dict[str, int] = {}
    worked = -1  # the last message that may have called
    for at, message in enumerate(messages):
        called, answered, results = _tools(message)
        if results:  # those without a known id belong to what stands before them
            since = [made[ident] for ident in answered if ident in made]
            opened[min([*since, worked if worked >= 0 else at]) + 1] += 1
            opened[at + 1] -= 1
        elif _role(message) == "assistant":
            worked = at
        made.update(dict.fromkeys(called, at))
    open_now = 0
    parted = []
    for change in opened[:-1]:
        open_now += change
        parted.append(open_now > 0)
    return parted


def _part(message: Any) -> _Part:  # noqa: ANN401  # a client may send anything
    role = _role(message)
    if role in {"system", "developer"}:
        return _Part.SYSTEM
    if role in RESULTS:
        return _Part.ANSWERS
    if role != "user":
        return _Part.WORKS
    blocks = _blocks(message)
    results = sum(block.get("type") == "tool_result" for block in blocks)
    if not results:
        return _Part.ASKS
    return _Part.BOTH if results < len(blocks) else _Part.ANSWERS


def _tools(message: Any) -> tuple[list[str], list[str], bool]:  # noqa: ANN401
    """(ids of the calls in a message, of the results in it, whether it holds results)."""
    if not isinstance(message, dict):
        return [], [], False
    blocks = _blocks(message)
    listed = message.get("tool_calls")
    calls = (
        [call.get("id") for call in listed if isinstance(call, dict)]
        if isinstance(listed, list)
        else []
    )
    calls += [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    answered = [block.get("tool_use_id") for block in results]
    answers = _role(message) in RESULTS
    if answers:
        answered.append(message.get("tool_call_id"))
    return _texts(calls), _texts(answered), answers or bool(results)


def _role(message: Any) -> str:  # noqa: ANN401
    """In small letters, as the engine reads all but `user` (0.5.6-0.5.23)."""
    role = message.get("role") if isinstance(message, dict) else None
    return role.lower() if isinstance(role, str) else ""


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []


def _texts(values: list[Any]) -> list[str]:
    return [value for value in values if isinstance(value, str)]
