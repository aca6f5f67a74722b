"""Which characters NFC can change, how long they may get, and which runs make it slow.

`unicodedata.normalize` sorts a run of combining marks by insertion: it is quadratic in the run
and holds the GIL (400,000 marks: more than 25 s). So a text is looked at before it is normalised:
one table look-up a character, vectorised, tells clean text (most of it) from text that needs
normalising and from text where that would not end.

The same table gives the proven growth. NFC(s) is the composition of NFD(s); composing never
lengthens the UTF-8 and reordering keeps it, so bytes(NFC(s)) ≤ Σ bytes(NFD(c)). A text without a
suspect character is its own NFC. Hangul syllables are never suspects and never grow: their parts
are starters, adjacent, and compose again.
"""

# ruff: noqa: PLR2004 - the numbers are UTF-8's own limits

from __future__ import annotations

import sys
import unicodedata
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

LONGEST_RUN: Final = 32
"""Marks in a row above which normalising is refused. Unicode's stream-safe format (UAX #15) has 30."""

_CHUNK: Final = 1 << 16  # characters a step: 256 KiB of UTF-32, so memory stays flat on any input

_HANGUL: Final = range(0xAC00, 0xD7A4)
_SURROGATES: Final = range(0xD800, 0xE000)
# Jamo vowels and trailing consonants compose with what is before them by arithmetic, so they are
# in no decomposition table.
_JAMO: Final = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))


class State(IntEnum):
    """What NFC has to do with a text."""

    CLEAN = 0  # surely its own NFC
    SUSPECT = 1  # has to be normalised
    UNSAFE = 2  # holds a run of marks so long that normalising could take minutes


@cache
def _table() -> npt.NDArray[np.uint8]:
    """Per code point: 0 for clean; else UTF-8 bytes of its NFD (≥ 1): it is a suspect."""
    table = np.zeros(sys.maxunicode + 1, np.uint8)
    composing: set[int] = set(_JAMO)
    for code in range(sys.maxunicode + 1):
        if code in _SURROGATES or code in _HANGUL:
            continue
        char = chr(code)
        decomposed = unicodedata.decomposition(char)
        if decomposed and not decomposed.startswith("<"):
            pair = decomposed.split()
            if len(pair) == 2:
                composing.add(int(pair[1], 16))
        if unicodedata.combining(char) or not unicodedata.is_normalized("NFC", char):
            composing.add(code)
    for code in composing:
        table[code] = len(unicodedata.normalize("NFD", chr(code)).encode())
    return table


@cache
def _growth() -> npt.NDArray[np.uint8]:
    """Per code point: UTF-8 bytes of its NFD (Hangul: of itself)."""
    codes = np.arange(sys.maxunicode + 1)
    size = (1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF)).astype(np.uint8)
    for code in range(0xC0, sys.maxunicode + 1):
        if code not in _HANGUL and unicodedata.decomposition(chr(code)):
            size[code] = max(size[code], len(unicodedata.normalize("NFD", chr(code)).encode()))
    return size


def state_of(text: str) -> State:
    """What NFC has to do with `text`. Linear in its length; about 1 ms a million characters."""
    if text.isascii():
        return State.CLEAN
    table, found, tail = _table(), State.CLEAN, b""
    for start in range(0, len(text), _CHUNK):
        marks = table[_codes(text[start : start + _CHUNK])] != 0
        if marks.any():
            found = State.SUSPECT
            flags = tail + marks.tobytes()
            if b"\x01" * LONGEST_RUN in flags:
                return State.UNSAFE
            tail = flags[-LONGEST_RUN:]
        else:
            tail = b""
    return found


def bytes_bound(text: str) -> int:
    """An upper bound of the UTF-8 bytes of `text` both as it is and after NFC."""
    if text.isascii():
        return len(text)
    if state_of(text) is State.CLEAN:
        return len(text.encode("utf-8", "surrogatepass"))
    growth = _growth()
    chunks = (text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK))
    return sum(int(growth[_codes(chunk)].sum(dtype=np.int64)) for chunk in chunks)


def _codes(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
