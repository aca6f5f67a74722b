"""How the time of a search grows with the text: repeats that can share a stretch of it multiply.

`.*.*=` reads a line without `=` from each of its places, divided in two at each of its places: n * n * n
ways for n characters. So repeats are a pair where one can take what the other takes, with nothing
between them that they could not both take as well; each pair on one way through the pattern makes the
time grow by a power. The search itself is the first repeat: it tries every place of the text. Only what
has to match afterwards makes it try again. `\\n\\s*\\n`, `</?\\w+>` and `Observation:\\s*` have one pair at
most, whatever the text.

A pattern that begins with a repeat of everything, line ends as well, has one pair, but all of the text is its
stretch: `[\\s\\S]*=` takes 0.3 s for 8,000 characters, after each token. It finds no more than `=` does.

It is told on the safe side: what a group holds counts as one set of characters wherever it is repeated,
and of alternatives what all of them let through.
"""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Final

from gateway.edge.dialects.letters import Sets

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST: Final = 2.25
"""Exponent of the time. Every pattern with one repeat is below it (2: `.*=` takes 40 ms for a line of 8,000
characters), and with a second that may take four of the same characters (2.2: 90 ms for 3,000). With one that
takes thirty (2.5: 0.7 s for 2,000) or all (3: `.*.*=` takes 7 s for 3,000) it is above, and so are thirteen
optional characters in a row."""

REPEATS: Final = 64
"""Of a pattern; people write a handful, and each is held against all before it."""

DEPTH: Final = 32
"""Groups in groups. People write three; each is looked at once for every one around it, and 300 took 0.2 s."""

LONG: Final = 1_000
"""Characters of text by which bounded repeats are weighed: `.{0,999}` counts as much as `.*`."""

BREADTH: Final = 1 << 18
"""Characters in all ranges of all patterns of a request. Compiling a pattern looks at them one by one, here
and in the engine's scheduler: 0.15 µs each where case does not matter, so 40 ms; 199 times `[Ā-\uffff]` took
1.7 s. All of Chinese (`[一-龥]`) has 20,902."""

_reader: Final = importlib.import_module("re._parser")
"""Python's own reading of a pattern, by which the engine too tells how far back a pattern may look."""

_SETS: Final = {"LITERAL", "NOT_LITERAL", "ANY", "IN"}
_REPEATS: Final = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}
_LOOKS: Final = {"ASSERT", "ASSERT_NOT"}
Part = tuple[Any, Any]
"""Of a pattern that was read: what it is, and of what. Python's own, without types."""


def degree(pattern: str) -> float:
    """The exponent with which the time of a search grows; infinity from MOST on, or where it cannot be
    told. Raises what `re.compile` raises."""
    read = _reader.parse(pattern)
    try:
        counted = _Ways(pattern, read)
        counted.sequence(read, _Path((_Open(0, counted.every, 1.0, 1.0),), 1.0))
    except _Enough:
        return math.inf
    return counted.worst


def breadth(pattern: str) -> int:
    """How many characters its ranges have, all together; none above U+FFFF is looked at when it is compiled.
    Raises what `re.compile` raises."""
    return sum(max(min(to, _PLANE) - first, 0) for first, to in _ranges(_reader.parse(pattern)))


_PLANE: Final = 1 << 16


class _Enough(Exception):
    """More need not be known."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A repeat with which one to come may be a pair."""

    number: int
    takes: int  # characters, as bits
    weight: float  # as an exponent; of those that it is a pair with, the largest
    before: float  # the exponent of what leads here
    between: frozenset[int] = frozenset()  # of `takes`, what each had that has to match after it

    def passed(self, takes: int) -> _Open | None:
        """After something that has to match; None where no pair can reach over it."""
        shared = self.takes & takes
        return replace(self, between=self.between | {shared}) if shared else None

    def pairs(self, takes: int) -> bool:
        """Whether a repeat of these can take what this one takes."""
        return bool(self.takes & takes) and all(takes & one for one in self.between)


@dataclass(frozen=True, slots=True)
class _Path:
    """What was read so far."""

    open: tuple[_Open, ...]
    exponent: float


class _Ways:
    """One pattern."""

    def __init__(self, pattern: str, read: Iterable[Part]) -> None:
        flags = "".join(re.findall(r"\(\?([a-zA-Z]+)", pattern))
        self._sets = Sets(
            chain.from_iterable(_ranges(read)), folds="i" in flags, dot_is_all="s" in flags
        )
        self.every = self._sets.every
        self._repeats = self._depth = 0
        self.worst = 0.0

    def sequence(self, parts: Iterable[Part], path: _Path) -> _Path:
        """Read on."""
        self._depth += 1
        if self._depth > DEPTH:
            raise _Enough
        for op, of in parts:
            path = self._part(str(op), of, path)
        self._depth -= 1
        return path

    def _part(self, op: str, of: Any, path: _Path) -> _Path:  # noqa: ANN401
        match op:
            case _ if op in _SETS:
                path = self._must(self._sets.of(op, of), path)
            case _ if op in _REPEATS:
                path = self._repeat(of[0], of[1], of[2], path)
            case "SUBPATTERN":
                path = self.sequence(of[-1], path)
            case "ATOMIC_GROUP":
                path = self.sequence(of, path)
            case "BRANCH":
                path = self._alternatives(of[1], path)
            case "AT":
                self._may_fail(path)
            case _ if op in _LOOKS:
                self._may_fail(path)
                self._may_fail(self.sequence(of[1], path))
            case "GROUPREF":  # compared letter by letter
                self._may_fail(path)
                path = self._shares(self.every, 1.0, path)
            case _:
                raise _Enough
        return path

    def _must(self, takes: int, path: _Path) -> _Path:
        """One of these characters has to be here."""
        self._may_fail(path)
        passed = (one.passed(takes) for one in path.open)
        return _Path(tuple(one for one in passed if one is not None), path.exponent)

    def _may_fail(self, path: _Path) -> None:
        self.worst = max(self.worst, path.exponent)
        if self.worst >= MOST:
            raise _Enough

    def _repeat(self, least: int, most: int, parts: Any, path: _Path) -> _Path:  # noqa: ANN401
        takes = self._all(parts)
        if most == 1 or not takes:  # what is optional may hold repeats of its own
            path = self._either([self.sequence(parts, path), path], path, 0)
        elif least and parts.getwidth()[0]:
            path = self._must(takes, path)
        if not takes or least == most:
            return path
        ways = min(most - least, LONG - 1) + 1
        return self._shares(takes, math.log(ways, LONG), path)

    def _shares(self, takes: int, weight: float, path: _Path) -> _Path:
        """A repeat that may take anything of these, or nothing."""
        self._repeats += 1
        if self._repeats > REPEATS:
            raise _Enough
        pairs = [one for one in path.open if one.pairs(takes)]
        ways = (one.before + min(one.weight, weight) for one in pairs)
        exponent = max(path.exponent, *ways, 0.0)
        begins = any(one.number == 0 and not one.between for one in pairs)
        if begins and takes == self.every and weight >= 1.0:
            exponent = math.inf
        most = max(weight, *(one.weight for one in pairs), 0.0)
        mine = _Open(self._repeats, takes, most, exponent)
        return _Path((*path.open, mine), exponent)

    def _alternatives(self, each: Iterable[Any], path: _Path) -> _Path:
        each = list(each)
        takes = self._all(chain.from_iterable(each))
        least = takes if all(parts.getwidth()[0] for parts in each) else 0
        path = self._either([self.sequence(parts, path) for parts in each], path, least)
        if (alike := _alike(each)) == 1:
            return path
        ways = math.log(alike, LONG)
        path = replace(path, exponent=path.exponent + ways)
        return self._shares(takes or self.every, ways, path)

    def _either(self, ends: list[_Path], before: _Path, takes: int) -> _Path:
        """One of these ways was gone; `takes`: what one of them has to match at least, if anything."""
        still: dict[int, _Open] = {}
        for one in chain.from_iterable(end.open for end in ends):
            known = still.get(one.number)
            common = one.between if known is None else one.between & known.between
            still[one.number] = replace(one, between=common)
        for old in before.open if takes else ():
            known = still.get(old.number)
            if known is not None and (passed := known.passed(takes)) is not None:
                still[old.number] = passed
        return _Path(tuple(still.values()), max(end.exponent for end in ends))

    def _all(self, parts: Iterable[Part]) -> int:
        """Everything that is taken anywhere in these."""
        takes = 0
        for op, of in _flat(parts):
            takes |= self.every if op == "GROUPREF" else self._sets.of(op, of)
        return takes


def _alike(each: list[Any]) -> int:
    """How many of these alternatives one text can begin with, by the letters that they begin with."""
    words = []
    for parts in each:
        plain = takewhile(lambda part: str(part[0]) == "LITERAL", parts)
        words.append("".join(chr(of) for _, of in plain).upper().casefold())
    return max(
        sum(one.startswith(other) or other.startswith(one) for other in words) for one in words
    )


def _flat(parts: Iterable[Part], *, looks: bool = False) -> Iterable[tuple[str, Any]]:
    """Every set of characters and reference in these, however deep; `looks`: what is only looked at too."""
    for op_, of in parts:
        op = str(op_)
        if op in _SETS or op == "GROUPREF":
            yield op, of
        elif op in _REPEATS or op == "SUBPATTERN":
            yield from _flat(of[-1], looks=looks)
        elif op == "ATOMIC_GROUP":
            yield from _flat(of, looks=looks)
        elif op == "BRANCH":
            yield from _flat(chain.from_iterable(of[1]), looks=looks)
        elif op in _LOOKS:
            yield from _flat(of[1], looks=True) if looks else ()
        elif op != "AT":
            raise _Enough


def _ranges(parts: Iterable[Part]) -> Iterable[tuple[int, int]]:
    """Where characters begin that are named in these, and where they end."""
    for op, of in _flat(parts, looks=True):
        for kind, what in of if op == "IN" else [(op.removeprefix("NOT_"), of)]:
            if str(kind) == "LITERAL":
                yield what, what + 1
            elif str(kind) == "RANGE":
                yield what[0], what[1] + 1
