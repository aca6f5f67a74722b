"""Text of a wanted length that says nothing: short common words, one token each in most vocabularies.

A vocabulary of English merges a word of three letters with the space before it into one token, and
the twin counts four bytes as one, so `words` words are about `words` tokens anywhere. What a chat
template adds is a handful more. The server's own count, where it tells one, is what gets reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

WORDS = (
    *("the", "and", "for", "are", "but", "not", "you", "all", "any", "can", "her", "was", "one"),
    *("our", "out", "day", "get", "has", "him", "his", "how", "man", "new", "now", "old", "see"),
)
FRAME = 8  # tokens a chat template puts around one message: 5 in the twin, 9 to 12 in Qwen's


def words(count: int, rng: random.Random) -> tuple[str, ...]:
    """`count` words of `rng`: the same generator state, the same words."""
    return tuple(rng.choices(WORDS, k=max(0, count)))


def sentence(chosen: tuple[str, ...]) -> str:
    """One message of `chosen`, each with its space."""
    return "".join(f"{word} " for word in chosen)
