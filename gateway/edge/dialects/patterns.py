"""Whether a pattern may be tried in ever more ways, as Python's matcher does where something repeated
can be read in two.

Told by its text alone, and on the safe side. Within a repeated group nothing may vary: no repeat and no
`?`, however deep, and of alternatives only plain texts of which none begins another. Each text then has
one reading. What stands side by side (`.*.*x`) is looked at in `ways`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

_MARK: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?#[^)]*\)"
    r"|\((?:\?(?:P?<[^=!>)]*>|[a-zA-Z-]*:|<?[=!]|>)?)?|[)|*+?{.^$]",
    re.DOTALL,
)
"""What is not plain text in a pattern; sets, escapes, comments and beginnings of groups whole."""

_REPEATS: Final = "*+?{"
_SPACED: Final = re.compile(r"\(\?[a-zA-Z]*x")
"""Begins the notation with blanks and comments of its own."""


@dataclass(slots=True)
class _Group:
    """One that is open."""

    start: int  # of what is in it
    varies: bool = False
    chooses: bool = False
    plain: bool = True  # nothing in it but text


def may_not_end(pattern: str) -> bool:
    """Whether a repeated group can be read in more ways than one; or that cannot be told."""
    if _SPACED.search(pattern) is not None:
        return True
    open_ = [_Group(0)]
    for mark in _MARK.finditer(pattern):
        group, what = open_[-1], mark[0]
        if what.startswith(("\\", "[", "(?#", ".", "^", "$")):
            group.plain = False
        elif what.startswith("("):
            group.plain = False
            open_.append(_Group(mark.end(), plain=what != "(?"))  # a condition, a group once more
        elif what == "|":
            group.chooses = True
        elif what in _REPEATS:
            group.varies, group.plain = True, False
        elif len(open_) > 1:
            open_.pop()
            inside = pattern[group.start : mark.start()]
            varies = group.varies or (group.chooses and not (group.plain and _is_a_code(inside)))
            if varies and pattern[mark.end() : mark.end() + 1] in {"*", "+", "{"}:
                return True
            open_[-1].varies |= varies
    return len(open_) > 1


def _is_a_code(alternatives: str) -> bool:
    """Whether no alternative begins another, in whatever case; one that does stands before it in order."""
    words = sorted(alternatives.upper().casefold().split("|"))
    return not any(after.startswith(before) for before, after in pairwise(words))
