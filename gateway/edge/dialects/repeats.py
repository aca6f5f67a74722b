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

_TEXT: Final = re.compile(r'"(?:[^"\\\n]++|\\.)*+"?|\[(?:[^\]\\\n]++|\\.)*+\]?|#[^\n]*+')
"""In EBNF a text is no set of letters, and brackets within it are none."""


class TooMany(Exception):
    """More places than MOST_PLACES, MOST_NESTED or MOST_PIECES."""


class _Group:
    """What is in brackets, or all of a pattern."""

    __slots__ = ("closed", "deep", "last", "places", "sets")

    def __init__(self) -> None:
        self.sets: dict[str, int] = {}  # how often each is spelled out
        self.places = 0  # all of these
        self.deep = 1  # the largest product of repeats
        self.last: str | None = None  # the set right before; "" for another letter
        self.closed: _Group | None = None  # the group right before

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
        texts.append(_TEXT.sub(lambda found: found[0] if found[0][0] == "[" else "_", ebnf))
    places, left = 0, MOST_PIECES
    for text in dict.fromkeys(texts):
        sets, left = _places(text, left)
        for name, times in sets.items():
            if times > (known := most.get(name, 0)):
                most[name] = times
                places += times - known
        if places > MOST_PLACES:
            raise TooMany
    return sum(times * (WIDE_S if _is_wide(name) else NARROW_S) for name, times in most.items())


def lengths_s(bounds: Collection[tuple[float | None, float | None]]) -> float:
    """Seconds of one core for texts of such lengths, (least, most), in one schema."""
    least = max((_spelled(low) for low, _ in bounds), default=0)
    most = max((_spelled(high) for _, high in bounds), default=0)
    return max(most * LETTER_S, least * LEAST_S) + len(bounds) * LENGTH_S


def size_s(size: int) -> float:
    """Seconds of one core for what has so many bytes, whatever it says."""
    return 8.0 * (size / EIGHT_S_BYTES) ** 2


def _spelled(bound: float | None) -> int:
    return 0 if bound is None else int(min(max(bound, 0), SPELLED))


def _is_wide(name: str) -> bool:
    return name.startswith((".", "[^", "\\D", "\\S", "\\W"))


def _places(text: str, left: int) -> tuple[dict[str, int], int]:
    """Of each set in a pattern how often it is spelled out, and how many of the pieces that there may be are
    left. Raises TooMany."""
    open_ = [_Group()]
    for piece in _PIECE.finditer(text):
        left -= 1
        if left < 0:
            raise TooMany
        group, kind, what = open_[-1], str(piece.lastgroup), piece[0]
        if kind == "times":
            group.settle(_times(piece["times"]))
            continue
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
    open_[0].settle()
    return open_[0].sets, left


def _close(open_: list[_Group]) -> None:
    inner = open_.pop()
    inner.settle()
    open_[-1].closed = inner


def _times(text: str) -> int:
    """The larger number of a repeat; where it has no end, the smaller."""
    numbers = [one.strip() for one in text.split(",")]
    last = numbers[-1] or numbers[0]
    digits = last.lstrip("0") or "0"
    return max(1, min(int(digits) if len(digits) < _LONG else SPELLED, SPELLED))


_LONG: Final = 6
"""Digits of a number that is above SPELLED whatever they are."""
