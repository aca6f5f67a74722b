"""Sets of characters of a pattern, as bits, so that two can be held against each other.

Of all characters a few stand for the rest: those of ASCII, and where a character or range that the
pattern names begins and where it ends. Sets of such that have one in common have one of these in common.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_ASCII: Final = 128

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
        far = sorted({code for code in codes if code >= _ASCII})
        self._codes = [*range(_ASCII), *far]
        self.every = (1 << len(self._codes)) - 1
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
        return self.every & ~found if negated else found

    def _range(self, first: int, last: int) -> int:
        low, high = bisect_left(self._codes, first), bisect_right(self._codes, last)
        return (1 << high) - (1 << low)

    def _pairs(self) -> Iterable[tuple[int, int]]:
        """Characters that are alike but for their case."""
        known = {chr(code): 1 << bit for bit, code in enumerate(self._codes)}
        for text, bit in known.items():
            for other in (text.lower(), text.upper()):
                if other != text and other in known:
                    yield bit, known[other]
