"""Counts most of a Chinese text by looking it up, before the encoder sees it.

Chinese has no spaces: whole clauses come to byte-pair merging as one piece, and its cost grows with
the square of a piece. But a merge can only reach across the border between two characters if some
token of the vocabulary has bytes of both in it, side by side; where none has, the two sides merge
each by itself. Of Qwen 3's tokens 23,000 cross such a border, and they know 15,000 pairs of
characters; nearly every other pair of neighbours is a cut. What lies between two cuts is mostly one
character, or a word that is a token: its count is known at load. Each run of such words is taken
out and one character Z put in its place, of which no token crosses the borders: the text that
remains has the same pieces and merges around Z, and its count plus what was taken out less the Zs
is the count of the text.

That holds if the pattern that cuts text into pieces cannot tell one Han character from another,
nor a run of one from a run of many: `uniform` says for which patterns that is so. Everything else
is arithmetic on arrays, which holds no text beyond the call and gives up the GIL.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    import numpy.typing as npt

    Codes = npt.NDArray[np.uint32]
    Flags = npt.NDArray[np.uint8]

FIRST, LAST = 0x4E00, 0x9FA5
"""The ideographs of Unicode 1.1: of one category (Lo) and script in every version since, and the
range that DeepSeek's pattern names."""

LEAST: Final = 64
"""Han characters in a text from which the arrays cost less than they save (about 0.2 ms)."""

_LONGEST: Final = 4  # characters of a word that is looked up: four times 15 bits fit into a key
_BITS: Final = 15

_HAN: Final = np.uint8(1)  # flags per code point: is one of ours
_BEFORE: Final = np.uint8(2)  # some token has it whole and a part of the character after it
_AFTER: Final = np.uint8(4)  # some token has it whole and a part of the character before it

_PAIR_SLOTS: Final = 21  # a table of 2^21 bytes: 25,000 pairs take 1 % of the others with them
_WORD_SLOTS: Final = 19  # 2^19 keys: of 30,000 words 3 % find their slot taken and are not known
_MULTIPLIERS: Final = (np.uint32(0x9E3779B1), np.uint32(0x85EBCA77))  # odd, of no structure
_WORD_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


def uniform(pattern: str) -> bool:
    """Whether `pattern` surely treats all Han characters alike, and runs of them by `+` and `*`.

    Properties and negated classes of ASCII cannot tell them apart; a literal above U+3000 could
    (DeepSeek's ranges hold all of ours or none), and so could a counted repetition of letters or
    a look behind.
    """
    rest = pattern.replace(r"\p{N}{1,3}", "").replace("一-龥\u3040-ゟ゠-ヿ", "")
    return rest.isascii() and re.search(r"\{\d|\(\?<|\\[1-9]", rest) is None


class HanWords:
    """What a vocabulary knows about borders between characters, as tables."""

    def __init__(
        self, tokens: Iterable[bytes], unformable: Container[bytes], count: Callable[[str], int]
    ) -> None:
        """`tokens` is the whole vocabulary, `unformable` those that their own bytes do not merge
        into, `count` counts a text without this help. ValueError where there is no Z."""
        self._flags = np.zeros(0x110000, np.uint8)
        self._flags[FIRST : LAST + 1] = _HAN
        self._pairs = np.zeros(1 << _PAIR_SLOTS, np.bool_)
        self._words = np.zeros(1 << _WORD_SLOTS, np.uint64)
        self._word_tokens = np.zeros(1 << _WORD_SLOTS, np.uint8)
        # Tokens of each character alone; 0 (unknown) for one that only a look-up of whole pieces
        # makes a token: inside a clause it is several.
        alone = (chr(code) for code in range(FIRST, LAST + 1))
        self._single = np.array(
            [0 if char.encode() in unformable else count(char) for char in alone], np.uint8
        )
        pairs: set[tuple[int, int]] = set()
        words: list[str] = []
        for token in tokens:
            if token.isascii():
                continue
            self._learn(token, pairs)
            word = token.decode("utf-8", "replace")
            if (
                1 < len(word) <= _LONGEST
                and all(_is_han(ord(char)) for char in word)
                and token not in unformable
            ):
                words.append(word)
        both = np.array(sorted(pairs), np.uint32).reshape(-1, 2)
        self._pairs[_pair_slots(both[:, 0], both[:, 1])] = True
        # Pairs that a token crosses but that are none themselves, by what merging makes of them:
        # what is counted here is in no vocabulary, so no look-up of whole pieces decides it.
        known = dict.fromkeys(words, 1)
        for left, right in pairs:
            if _is_han(left) and _is_han(right):
                word = chr(left) + chr(right)
                if word not in known and word.encode() not in unformable:
                    known[word] = count(word)
        keys = np.array([_key(word) for word in known], np.uint64)
        slots, kept = np.unique(_word_slots(keys), return_index=True)
        self._words[slots] = keys[kept]
        self._word_tokens[slots] = np.array(list(known.values()), np.uint8)[kept]
        self._flags[0xD800:0xE000] |= _BEFORE | _AFTER  # encoded as another character
        paired = {code for pair in pairs for code in pair}
        neutral = (
            code
            for code in range(FIRST, LAST + 1)
            if self._flags[code] == _HAN and self._single[code - FIRST]
        )
        try:
            self._z = next(code for code in neutral if code not in paired)
        except StopIteration:
            raise ValueError("every Han character shares a token with another") from None
        self._z_tokens = int(self._single[self._z - FIRST])

    def _learn(self, token: bytes, pairs: set[tuple[int, int]]) -> None:
        """Note every border between characters that `token` crosses."""
        for at in range(1, len(token)):
            if token[at] & 0xC0 == 0x80:  # noqa: PLR2004 - a continuation byte begins no character
                continue
            left, right = _character_before(token, at), _character_at(token, at)
            if left is not None and right is not None:
                if _is_han(left) or _is_han(right):
                    pairs.add((left, right))
            elif left is not None:
                self._flags[left] |= _BEFORE
            elif right is not None:
                self._flags[right] |= _AFTER
            else:
                self._flags[_characters_from(token[at:])] |= _AFTER

    def reduce(self, text: str) -> tuple[str, int]:
        """(a text to encode in place of `text`, tokens to add to its count)."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        flags = self._flags.take(codes)
        han = flags & _HAN
        if np.count_nonzero(han) < LEAST:
            return text, 0
        starts, sizes = self._between_cuts(codes, flags)
        tokens = self._look_up(codes, han, starts, sizes)
        known = tokens > 0
        starts, ends = starts[known], (starts + sizes)[known]
        if not starts.size:
            return text, 0
        # Of each run of neighbours that are known, the first character becomes Z, the rest goes.
        begins = np.empty(starts.size, np.bool_)
        begins[0] = True
        np.not_equal(starts[1:], ends[:-1], out=begins[1:])
        change = np.zeros(codes.size + 1, np.int8)
        change[starts] += 1
        change[ends] -= 1
        kept = np.cumsum(change[:-1], dtype=np.int8) == 0
        firsts = starts[begins]
        kept[firsts] = True
        codes = codes.copy()
        codes[firsts] = self._z
        reduced = codes[kept].tobytes().decode("utf-32-le", "surrogatepass")
        return reduced, int(tokens.sum(dtype=np.int64)) - firsts.size * self._z_tokens

    def border(self, text: str) -> int:
        """The first place in `text` between two Han characters that no token crosses; 0 if none.

        A text may be cut there where it is one run of letters on both sides of it: the pattern
        takes both sides as such, and nothing merges across.
        """
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        flags = self._flags.take(codes)
        starts, _ = self._between_cuts(codes, flags)
        han = flags & _HAN
        inside = starts[1:]
        found = inside[(han.take(inside) & han.take(inside - 1)) != 0]
        return int(found[0]) if found.size else 0

    def _between_cuts(self, codes: Codes, flags: Flags) -> tuple[npt.NDArray[np.intp], ...]:
        """(starts, sizes) of the stretches between borders that no token crosses."""
        left, right = flags[:-1], flags[1:]
        crossed = self._pairs.take(_pair_slots(codes[:-1], codes[1:]))
        # A pair of which neither is Han may be crossed by tokens that nobody noted.
        crossed |= ((left | right) & _HAN) == 0
        crossed |= (left & _BEFORE) != 0
        crossed |= (right & _AFTER) != 0
        cuts = np.flatnonzero(~crossed) + 1
        borders = np.concatenate(([0], cuts, [codes.size]))
        return borders[:-1], np.diff(borders)

    def _look_up(
        self,
        codes: Codes,
        han: Flags,
        starts: npt.NDArray[np.intp],
        sizes: npt.NDArray[np.intp],
    ) -> npt.NDArray[np.uint8]:
        """Tokens of each stretch; 0 where that is not known."""
        last = codes.size - 1
        place = (codes - np.uint32(FIRST - 1)).astype(np.uint64)  # 1 to 20,902: 15 bits
        known = (sizes <= _LONGEST) & (han.take(starts) != 0)
        keys = place.take(starts)
        for at in range(1, _LONGEST):
            longer = sizes > at
            index = np.minimum(starts + at, last)
            known &= ~longer | (han.take(index) != 0)
            keys = np.where(longer, keys << np.uint64(_BITS) | place.take(index), keys)
        slots = _word_slots(keys)
        known &= self._words.take(slots) == keys
        tokens = np.where(known, self._word_tokens.take(slots), np.uint8(0))
        # One character alone has a table of its own.
        single = np.flatnonzero((sizes == 1) & (han.take(starts) != 0))
        tokens[single] = self._single.take(codes.take(starts.take(single)) - np.uint32(FIRST))
        return tokens


def _is_han(code: int) -> bool:
    return FIRST <= code <= LAST


def _key(word: str) -> int:
    key = 0
    for char in word:
        key = key << _BITS | ord(char) - FIRST + 1
    return key


def _pair_slots(left: Codes, right: Codes) -> Codes:
    mixed = left * _MULTIPLIERS[0] + right * _MULTIPLIERS[1]
    return mixed >> np.uint32(32 - _PAIR_SLOTS)


def _word_slots(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return keys * _WORD_MULTIPLIER >> np.uint64(64 - _WORD_SLOTS)


def _character_before(token: bytes, at: int) -> int | None:
    """The character that ends before byte `at`, None if `token` does not have all of it."""
    start = at - 1
    while start > 0 and token[start] & 0xC0 == 0x80:  # noqa: PLR2004
        start -= 1
    return _decoded(token[start:at])


def _character_at(token: bytes, at: int) -> int | None:
    """The character that begins with byte `at`, None if `token` does not have all of it."""
    end = at + 1
    while end < len(token) and token[end] & 0xC0 == 0x80:  # noqa: PLR2004
        end += 1
    return _decoded(token[at:end])


def _decoded(spelled: bytes) -> int | None:
    try:
        return ord(spelled.decode())
    except (UnicodeDecodeError, TypeError):
        return None


def _characters_from(spelled: bytes) -> slice:
    """The code points whose UTF-8 begins with the incomplete `spelled`, and perhaps some more."""
    lead = spelled[0]
    if lead < 0xE0:  # noqa: PLR2004 - two bytes: 64 characters a lead
        return slice((lead & 0x1F) << 6, ((lead & 0x1F) + 1) << 6)
    if lead < 0xF0:  # noqa: PLR2004 - three bytes: 4,096
        return slice((lead & 0x0F) << 12, ((lead & 0x0F) + 1) << 12)
    return slice(0x10000, 0x110000)
