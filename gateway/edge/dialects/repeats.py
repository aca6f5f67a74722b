"""What a grammar costs the engine to compile, by the places that its patterns spell out.

xgrammar writes a repeat that has an end out, up to some 256 times, and holds each place against the whole
vocabulary: 30 ms of one core for a set as wide as `.` or `[^a]`, 3 to 8 ms for letters (0.2.1, 151,936
tokens). Repeats within repeats multiply. It does so in threads of the scheduler's process, eight for each
grammar, and nothing ends it before it is done.

Alike sets share that work, whatever their pattern (0.2.1, 0.2.7): counted is, of each set, the pattern
that has it most often. The strings of a schema are one such set: 9.4 s where `maxLength` is 300, and no more
where it is 1,000. So of them the different lengths are counted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MOST_PLACES: Final = 2_048
"""Of all patterns of a grammar. Eight wide sets up to 256 times each, which
were not done after 83 s of one core (0.2.1), and as many as
twenty patterns `^[a-z0-9_-]{1,100}$`, each with other letters, have. Ten wide ones of 50 each
(`[^a]{1,50}[^b]{1,50}…`) were not done in 20 s by 0.1.27, and any number of them fits into 256 KiB."""

MOST_NESTED: Final = 1_000
"""Repeats within repeats, multiplied. `((a{1,10}){1,10}){1,10}` takes 1.2 GB at 0.1.27, `(.{1,100},){1,100}`
more than 24 s; `([0-9]{1,20}){1,20}` 33 MB and 2 s."""

MOST_LENGTHS: Final = 48
"""Different bounds of texts (`minLength`, `maxLength`) in a schema: each costs another second or two. Forty, of 100
to 139, take 39 s of one core at 0.2.1. A database's tables have some twenty."""

MOST_PIECES: Final = 25_000
"""Of an EBNF, or of all patterns of a grammar: what stands between two of `[.(){`, and these. Reading one takes 1 to
4 µs of the loop that all clients share. A choice of 10,000 words, which takes 8 s to compile, has 20,000 in EBNF and
two in a pattern."""

MOST_ROW: Final = 32.0
"""Sets in a row each of which may be left out (`.?.?.?`), a narrow one as NARROW_ROW: 97 s of one core."""

NARROW_ROW: Final = 0.55

ROW_S: Final = 0.003
"""For each of a row, times the square of how many they are: from each place all that follow can be reached at once.
`.?` ten times takes 3.1 s, twenty times 22 s, thirty times more than 80 s; `[a-z]?` ten times 0.4 s and twenty times
3.7 s; `.*` 0.4 and 1.5 s. With a letter between them (`.?a`) twenty take 0.1 s."""

SPELLED: Final = 256
"""Times that a repeat counts at most: 300 and 1,000 take the same."""

WIDE_S: Final = 0.045
NARROW_S: Final = 0.012
"""Of one core a place, for a wide set (`.`, `[^a]`) and for letters (`\\w`, `[a-zA-Z0-9_-]`; `[a-z]` 0.005, a digit
nothing). Measured like all here with 0.2.1, 151,669 tokens, a Xeon."""

LETTER_S: Final = 0.037
"""For each letter of the longest text: 0.8 s where `maxLength` is 20, 4.9 where it is 100, 9.1 from 255 on."""

LEAST_S: Final = 0.02
"""For each letter of the longest least text: 1.3 s where `minLength` is 50, 2.9 from 256 on."""

LENGTH_S: Final = 0.1
"""For each further length: ten of 100 to 109 take 5.7 s."""

OPTIONAL_S: Final = 1.45e-5
"""For each pair of fields of an object that may be left out: 100 texts take 0.17 s, 300 take 1.3, 600 take 5.1 and
1,200 take 20.5; numbers a thirtieth of that, and fields that are required next to nothing."""

MOST_OPTIONAL_S: Final = 90.0
"""2,500 of them in one object."""

EIGHT_S_BYTES: Final = 209_000
"""A choice of 10,000 words takes 8 s, one of 1,000 words 0.02: it grows with the square, or faster."""

LIGHT_S: Final = 0.25
"""What people mostly send takes 0.03 s: 100 fields of texts without bounds, a choice of 1,000 words, any JSON."""

_PIECE: Final = re.compile(
    r"(?P<other>(?:[^\\\[.(){]++|\{(?!\s*+\d)|\\[^wWdDsSpP])++)|(?P<escape>\\.)"
    r"|(?P<letters>\[\^?+\]?+(?:[^\]\\]++|\\.)*+\]?)|(?P<any>\.)|(?P<open>\()|(?P<close>\))"
    r"|\{\s*+(?P<times>\d++\s*+(?:,\s*+\d*+)?+)\s*+\}|(?P<rest>.)",
    re.DOTALL,
)
"""Letters in a row are one piece, as only the last of them may be repeated. What has taken something gives
none of it back (`++`): of `{1` and a thousand spaces, each way to share them out would be tried."""

_TEXT: Final = re.compile(
    r'"(?:[^"\\\n]++|\\.)*+"?|\[(?:[^\]\\\n]++|\\.)*+\]?|#[^\n]*+|[ \t]++'
    r"|[A-Za-z_][A-Za-z0-9_.\-]*+(?:[ \t]*+(?P<mark>[?*]))?+"
)
"""In EBNF a text is no set of letters, and brackets within it are none; a name that may be left out may be one of any
set. A name is taken as a whole, whatever follows: from each of its letters the end would be looked for again."""

_LEFT_OUT: Final = frozenset("?*")
_OPTIONAL: Final = re.compile(r"(?:[^?*|][?*][?+]?|[?+^$])*+")
"""Letters that may be left out, and what is no letter: a row of sets goes on behind them."""


class TooMany(Exception):
    """More places than MOST_PLACES, MOST_NESTED or MOST_PIECES, or a longer row than MOST_ROW."""


class _Group:
    """What is in brackets, or all of a pattern."""

    __slots__ = (
        "closed",
        "deep",
        "empty",
        "last",
        "letters",
        "longest",
        "places",
        "row",
        "sets",
        "ways",
    )

    def __init__(self) -> None:
        self.sets: dict[str, int] = {}  # how often each is spelled out
        self.places = 0  # all of these
        self.deep = 1  # the largest product of repeats
        self.last: str | None = None  # the set right before; "" for another letter
        self.closed: _Group | None = None  # the group right before
        self.row = 0.0  # sets that may be left out, right before, as wide ones
        self.longest = 0.0
        self.letters = False  # there are others than sets
        self.ways = self.empty = False  # there are several, of which one is nothing

    def leaves_out(self, mark: str) -> None:
        """What stood right before may be left out, as `mark` says. Raises TooMany."""
        inner, name = self.closed, self.last or ""
        if inner is not None:
            if not inner.ways and (inner.letters or inner.places != 1):
                return
            name = next((one for one in inner.sets if _is_wide(one)), "")
        self._grow(1.0 if mark != "*" and _is_wide(name) else NARROW_ROW)

    def _grow(self, more: float) -> None:
        self.row += more
        self.longest = max(self.longest, self.row)
        if self.longest > MOST_ROW:
            raise TooMany

    def follows(self, *, end: bool = False) -> None:
        """Something comes next, or the end: what stood right before is not left out, unless it may be nothing.
        Raises TooMany."""
        inner = self.closed
        if inner is not None and inner.empty:
            self.leaves_out("?")
        elif inner is not None and not inner.letters and inner.row and inner.row == inner.longest:
            self._grow(inner.row)  # a row in brackets goes on behind them
        elif inner is not None or self.last:
            self.row = 0.0
            self.letters = self.letters or not end

    def reads(self, text: str) -> None:
        """Letters and marks. Raises TooMany."""
        if text[0] in _LEFT_OUT and (self.closed is not None or self.last):
            self.leaves_out(text[0])
            text = text[1:]
        else:
            self.follows()
        if "|" in text:
            self.ways = True
            self.empty = self.empty or text == "|"
        if not _OPTIONAL.fullmatch(text):
            self.letters = self.letters or text.strip("|") != ""
            self.row = 0.0

    def add(self, name: str, times: int) -> None:
        """Raises TooMany."""
        self.sets[name] = self.sets.get(name, 0) + times
        self.places += times
        if self.places > MOST_PLACES:
            raise TooMany

    def settle(self, times: int = 1) -> None:
        """What stood right before is repeated so often. Raises TooMany."""
        inner, last = self.closed, self.last
        self.closed = self.last = None
        if inner is None:
            if last and times > 1:
                self.add(last, times - 1)
            self.deep = max(self.deep, 1 if last is None else times)
            return
        deep = inner.deep * times
        if inner.deep > 1 and times > 1 and deep >= MOST_NESTED:
            raise TooMany
        self.deep = max(self.deep, deep)
        if times == 1 and inner.places > self.places:  # the fewer are added: brackets may be deep
            self.sets, inner.sets = inner.sets, self.sets
            self.places, inner.places = inner.places, self.places
        for name, each in inner.sets.items():
            self.add(name, each * times)


def check(patterns: Iterable[str], ebnf: str = "") -> float:
    """All patterns of one grammar, and an EBNF: seconds of one core. Raises TooMany."""
    most: dict[str, int] = {}
    texts = [*patterns]
    if ebnf:
        texts.append(_TEXT.sub(_plain, ebnf))
    places, left, row = 0, MOST_PIECES, 0.0
    for text in dict.fromkeys(texts):
        sets, left, longest = _places(text, left)
        row = max(row, longest)
        for name, times in sets.items():
            if times > (known := most.get(name, 0)):
                most[name] = times
                places += times - known
        if places > MOST_PLACES:
            raise TooMany
    each = sum(times * (WIDE_S if _is_wide(name) else NARROW_S) for name, times in most.items())
    return each + ROW_S * row**3


def _plain(found: re.Match[str]) -> str:
    """What stands for a piece of EBNF in the place of a pattern."""
    if found["mark"] is not None:
        return "." + found["mark"]
    return found[0] if found[0][0] == "[" else "" if found[0].isspace() else "_"


def lengths_s(bounds: Collection[tuple[float | None, float | None]]) -> float:
    """Seconds of one core for texts of such lengths, (least, most), in one schema."""
    least = max((_spelled(low) for low, _ in bounds), default=0)
    most = max((_spelled(high) for _, high in bounds), default=0)
    return max(most * LETTER_S, least * LEAST_S) + len(bounds) * LENGTH_S


def optional_s(counts: Iterable[int]) -> float:
    """Seconds of one core for objects of which so many fields may be left out."""
    return OPTIONAL_S * sum(count * count for count in counts)


def size_s(size: int) -> float:
    """Seconds of one core for what has so many bytes, whatever it says."""
    return 8.0 * (size / EIGHT_S_BYTES) ** 2


def _spelled(bound: float | None) -> int:
    return 0 if bound is None else int(min(max(bound, 0), SPELLED))


def _is_wide(name: str) -> bool:
    return name.startswith((".", "[^", "\\D", "\\S", "\\W"))


def _places(text: str, left: int) -> tuple[dict[str, int], int, float]:
    """Of each set in a pattern how often it is spelled out, how many of the pieces that there may be are
    left, and the longest row of sets that may be left out. Raises TooMany."""
    open_ = [_Group()]
    for piece in _PIECE.finditer(text):
        left -= 1
        if left < 0:
            raise TooMany
        group, kind, what = open_[-1], str(piece.lastgroup), piece[0]
        if kind == "times":
            group.settle(_times(piece["times"]))
            continue
        if kind == "other":
            group.reads(what)
        else:
            group.follows(end=kind == "close")
        group.settle()
        if kind in {"letters", "any", "escape"}:
            group.last = what
            group.add(what, 1)
        elif kind == "open":
            open_.append(_Group())
        elif kind == "close" and len(open_) > 1:
            _close(open_)
        else:
            group.last = ""
    while len(open_) > 1:  # never closed: the engine's parser will say so
        _close(open_)
        open_[-1].settle()
    open_[0].follows(end=True)
    open_[0].settle()
    return open_[0].sets, left, open_[0].longest


def _close(open_: list[_Group]) -> None:
    inner, outer = open_.pop(), open_[-1]
    inner.settle()
    outer.longest = max(outer.longest, inner.longest)
    outer.closed = inner


def _times(text: str) -> int:
    """The larger number of a repeat; where it has no end, the smaller."""
    numbers = [one.strip() for one in text.split(",")]
    last = numbers[-1] or numbers[0]
    digits = last.lstrip("0") or "0"
    return max(1, min(int(digits) if len(digits) < _LONG else SPELLED, SPELLED))


_LONG: Final = 6
"""Digits of a number that is above SPELLED whatever they are."""
