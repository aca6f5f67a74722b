"""Sets of characters of a pattern, as bits, so that two can be held against each other.

Of all characters a few stand for the rest: those of ASCII, and where a character or range that the
pattern names begins and where it ends. Sets of such that have one in common have one of these in common.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_ASCII: Final = 128

_STRANGE: Final = {"\u0130": "i", "\u0131": "i", "\u017f": "s", "\u212a": "k"}
"""Letters beyond ASCII that are alike with one of ASCII but for their case, with that one."""

_LAST_CASED: Final = 0x1E943
"""No letter after it has two cases (Unicode 14 and 15, those of Python 3.11 to 3.13)."""

_CLASSES: Final = {
    name: sum(1 << code for code in range(_ASCII) if re.match(text, chr(code)))
    for name, text in {
        "CATEGORY_DIGIT": r"\d",
        "CATEGORY_NOT_DIGIT": r"\D",
        "CATEGORY_SPACE": r"\s",
        "CATEGORY_NOT_SPACE": r"\S",
        "CATEGORY_WORD": r"\w",
        "CATEGORY_NOT_WORD": r"\W",
    }.items()
}
"""Which of ASCII are in them. Of what lies beyond, one that stands for its neighbours has some that are
in and some that are not: it counts as what makes a set larger."""


class Sets:
    """Those of one pattern. `codes`: where what it names begins and ends."""

    def __init__(self, codes: Iterable[int], *, folds: bool, dot_is_all: bool) -> None:
        named = {code for code in codes if _ASCII <= code <= sys.maxunicode}
        far = sorted(named.union(map(ord, _STRANGE)) if folds else named)
        self._codes = [*range(_ASCII), *far]
        self._cased = 1 << len(self._codes) if folds else 0
        """Beyond ASCII letters of two cases count as one: ranges of them may hold each other's."""
        self.every = ((1 << len(self._codes)) - 1) | self._cased
        self._beyond = self.every & ~((1 << _ASCII) - 1)
        self._any = self.every if dot_is_all else self.every & ~(1 << ord("\n"))
        self._cases = list(self._pairs()) if folds else []

    def of(self, op: str, of: Any) -> int:  # noqa: ANN401
        """What one part of a pattern takes."""
        if op == "ANY":
            return self._any
        inside = of if op == "IN" else [(op.removeprefix("NOT_"), of)]
        negated = op == "NOT_LITERAL" or (op == "IN" and str(of[0][0]) == "NEGATE")
        found = 0
        for kind, what in inside:
            match str(kind):
                case "LITERAL":
                    found |= self._range(what, what)
                case "RANGE":
                    found |= self._range(*what)
                case "CATEGORY":
                    found |= _CLASSES[str(what)] | (0 if negated else self._beyond)
                case _:
                    pass
        for one, other in self._cases:
            if found & (one | other):
                found |= one | other
        return (self.every & ~found) | self._cased if negated else found

    def _range(self, first: int, last: int) -> int:
        low, high = bisect_left(self._codes, first), bisect_right(self._codes, last)
        found = (1 << high) - (1 << low)
        return found | self._cased if self._cased and _has_cased(first, last) else found

    def _pairs(self) -> Iterable[tuple[int, int]]:
        """Characters that are alike but for their case."""
        known = {chr(code): 1 << bit for bit, code in enumerate(self._codes)}
        for text, bit in known.items():
            for other in (text.lower(), text.upper(), _STRANGE.get(text, text)):
                if other != text and other in known:
                    yield bit, known[other]


@cache
def _far_cased() -> list[int]:
    """Letters beyond ASCII that have another case, in order."""
    every = ((code, chr(code)) for code in range(_ASCII, _LAST_CASED + 1))
    return [code for code, text in every if text.lower() != text.upper()]


def _has_cased(first: int, last: int) -> bool:
    """Whether any of these is such a letter."""
    known = _far_cased()
    return bisect_left(known, first) < bisect_right(known, last)
