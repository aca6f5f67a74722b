"""Text that no cache has seen: English, Chinese and code without end, from a seed.

Both sides of a comparison remember words (`tokenizers` ten thousand of them, by default), so text
repeated, or made of few words, measures the memory and not the work. Here words come with the
frequencies of real prose and code (the standard library's), and, as in real text, a share of every
text is new: names nobody has written before, numbers, compound identifiers. Chinese is made of the
words a vocabulary holds, by Zipf's law, and of the 3,755 common characters of GB 2312; its
pre-tokenizer pieces are whole clauses, and those do not repeat.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import accumulate
from pydoc_data import topics
from typing import TYPE_CHECKING, Final

from tests.tokens.texts import library

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    Maker = Callable[[random.Random, int], str]
    """Makes a text of at least so many characters."""

NEW_WORDS: Final = 0.06
"""Share of words never seen before. Heaps' law with English's usual constants (K = 44, exponent
0.49) gives 3 % new words from 100,000 on and 16 % over the first 1,000; names and typing errors
come on top."""

_ONSETS: Final = (*"bcdfghjklmnprstvw", "br", "ch", "gr", "pr", "qu", "st", "tr")
_RHYMES: Final = (*"aeiou", "ai", "al", "an", "ar", "ea", "el", "en", "er", "ion", "on", "or", "un")


@cache
def _words(kind: str) -> tuple[list[str], list[int]]:
    """(words of real prose or code, their cumulative frequencies)."""
    source = library() if kind == "code" else "\n".join(topics.topics.values())
    counted = Counter(re.findall(r"[A-Za-z]{1,24}", source))
    return list(counted), list(accumulate(counted.values()))


@cache
def _characters() -> list[str]:
    """The common Chinese characters."""
    codes = [(row, cell) for row in range(0xB0, 0xD8) for cell in range(0xA1, 0xFF)]
    found = [bytes(code).decode("gb2312", "ignore") for code in codes]
    return [char for char in found if char]


def _coined(rng: random.Random) -> str:
    word = "".join(rng.choice(_ONSETS) + rng.choice(_RHYMES) for _ in range(rng.randrange(2, 5)))
    return word.capitalize() if rng.random() < 0.5 else word


def english(rng: random.Random, characters: int) -> str:
    """Prose of at least so many characters: sentences, paragraphs, names, figures."""
    words, weights = _words("English")
    parts: list[str] = []
    size = 0
    while size < characters:
        chosen = rng.choices(words, cum_weights=weights, k=rng.randrange(6, 28))
        for at in range(len(chosen)):
            drawn = rng.random()
            if drawn < NEW_WORDS:
                chosen[at] = _coined(rng)
            elif drawn < NEW_WORDS + 0.03:
                chosen[at] = f"{rng.randrange(10 ** rng.randrange(1, 8)):,}"
            elif drawn < NEW_WORDS + 0.08:
                chosen[at] += rng.choice((",", ";", " —", "'s", ")", ":"))
        sentence = " ".join(chosen) + rng.choice((". ", ". ", "? ", ".\n\n"))
        parts.append(sentence)
        size += len(sentence)
    return "".join(parts)


def chinese(words: Sequence[str]) -> Maker:
    """Clauses of `words`, the commonest first, and of common characters, with some figures.

    About ten characters a clause, as in written Chinese: what is between two punctuation marks is
    merged as one piece, and its cost grows with the square of its length.
    """
    weights = list(accumulate(1 / (rank + 10) for rank in range(len(words))))

    def make(rng: random.Random, characters: int) -> str:
        parts: list[str] = []
        size = 0
        while size < characters:
            chosen = rng.choices(words, cum_weights=weights, k=rng.randrange(2, 6))
            chosen += rng.choices(_characters(), k=rng.randrange(3))
            rng.shuffle(chosen)
            figure = f"{rng.randrange(10**4)}年。" if rng.random() < 0.05 else ""
            parts.append("".join(chosen) + (figure or rng.choice("，，，。、；？")))
            size += len(parts[-1])
        return "".join(parts)

    return make


def code(rng: random.Random, characters: int) -> str:
    """Lines of indented assignments, calls and comments with compound identifiers."""
    words, weights = _words("code")

    def name() -> str:
        chosen = rng.choices(words, cum_weights=weights, k=rng.randrange(1, 4))
        if rng.random() < NEW_WORDS:
            chosen.append(_coined(rng))
        return "_".join(chosen) if rng.random() < 0.7 else "".join(map(str.capitalize, chosen))

    lines: tuple[Callable[[], str], ...] = (
        lambda: f"{name()} = {name()}.{name()}({name()}, {name()}={rng.randrange(1 << 20)})",
        lambda: f"if {name()} >= {rng.random():.6f} and not {name()}[{name()!r}]:",
        lambda: f"def {name()}(self, {name()}: {name()}, {name()}: int = 0) -> {name()}:",
        lambda: (
            f"return [{name()}({name()}) for {name()} in {name()}]  # {' '.join(rng.choices(words, cum_weights=weights, k=6))}"
        ),
        lambda: f'raise {name()}(f"{name()} {{{name()}!r}} {rng.getrandbits(64):#x}")',
    )
    parts: list[str] = []
    size = 0
    while size < characters:
        line = "    " * rng.randrange(4) + rng.choice(lines)() + "\n"
        parts.append(line)
        size += len(line)
    return "".join(parts)


def makers(vocabulary: Iterable[bytes]) -> dict[str, Maker]:
    """By kind of text, what makes it. `vocabulary`, in order of rank, knows Chinese words."""
    common = set(_characters())
    spelled = (token.decode("utf-8", "ignore") for token in vocabulary if len(token) % 3 == 0)
    words = [word for word in spelled if len(word) > 1 and common.issuperset(word)]
    return {"English": english, "Chinese": chinese(words), "code": code}
