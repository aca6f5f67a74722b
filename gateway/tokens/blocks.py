"""Cuts a long text into blocks that count to the same, so that counting can stop between them.

The encoder itself cannot be interrupted. But every pre-tokenizer in use ends a piece where a
letter is followed by a space, a line end, a digit, a comma or a full stop, whatever else stands
around: letters are matched by runs of letters, and none of those characters joins them from
behind. So a text may be cut there and its blocks counted one by one. A text without such a border
for a long way is no text that anybody reads (a million equal characters, combining marks, bare
white space): its pieces are as long as it is, merging takes a microsecond for each byte and more,
and it is not begun at all.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import tiktoken

from gateway.tokens.vocabulary import OutOfTime, Unencodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK: Final = 1 << 16
"""Characters of a block: 10 ms of work, and arrays over it stay in the processor's cache."""
LONGEST: Final = 1 << 18
"""Characters without a border that are still encoded: about 1 s where they are one piece."""

_LETTERS: Final = "az一"
_ENDS: Final = " \n09.,，。、"
_BORDER: Final = re.compile("[A-Za-z一-龥](?=[ \n0-9.,，。、])")


def has_borders(pattern: str) -> bool:
    """Whether `pattern` ends a piece at every border; tried out on each kind.

    With a vocabulary in which a letter and what ends it are one token, they become one exactly
    where the pattern leaves them in one piece.
    """
    ranks = {bytes([byte]): byte for byte in range(256)}
    for letter in _LETTERS:
        for end in _ENDS:
            word = letter.encode() + end.encode()
            for size in range(2, len(word) + 1):
                for start in range(len(word) - size + 1):
                    ranks.setdefault(word[start : start + size], len(ranks))
    joined = tiktoken.Encoding("joined", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    for letter in _LETTERS:
        for end in _ENDS:
            apart = len(joined.encode_ordinary(letter)) + len(joined.encode_ordinary(end))
            if len(joined.encode_ordinary(letter + end)) != apart:
                return False
    return "(?<" not in pattern


def blocks(text: str, other_border: Callable[[str], int] | None = None) -> Iterator[str]:
    """`text` in parts of about BLOCK characters, cut at borders; Unencodable where there is none.

    `other_border` finds a place in a text where it may be cut as well, 0 where it knows none.
    """
    start = 0
    while len(text) - start > BLOCK + LONGEST:
        sought = start + BLOCK
        found = _BORDER.search(text, sought, sought + LONGEST)
        if found is not None:
            end = found.end()
        elif other_border and (further := other_border(text[sought : sought + BLOCK])):
            end = sought + further
        else:
            raise Unencodable
        yield text[start:end]
        start = end
    yield text[start:]


def counted(
    text: str,
    count: Callable[[str], int],
    until: float,
    *,
    cuts: bool,
    other_border: Callable[[str], int] | None = None,
) -> int:
    """Tokens of `text`, block by block where it may be cut; OutOfTime once it is past `until`."""
    total = 0
    for block in blocks(text, other_border) if cuts else (text,):
        if time.monotonic() > until:
            raise OutOfTime
        total += count(block)
    return total
