"""NFC in linear time and short steps, and how many bytes it can make of a text.

`unicodedata.normalize` sorts a run of combining marks by insertion: it is quadratic in the run
and holds the GIL (400,000 marks: more than 25 s). So a text is looked at first: one table look-up
a character, vectorised, tells clean text (most of it) from text with suspects. Only the latter is
normalised, chunk by chunk so that other threads get their turn, and a long run of marks is first
put into canonical order by a stable sort, after which the insertion has nothing left to do. A
chunk is cut before a clean character: such a one is a starter, its own NFC, and composes with
nothing before it, so NFC cannot reach across the cut.

The same table gives the proven growth. NFC(s) is the composition of NFD(s); composing never
lengthens the UTF-8 and reordering keeps it, so bytes(NFC(s)) ≤ Σ bytes(NFD(c)). A text without a
suspect character is its own NFC. Hangul syllables are never suspects and never grow: their parts
are starters, adjacent, and compose again.
"""

# ruff: noqa: PLR2004 - the numbers are UTF-8's own limits

from __future__ import annotations

import sys
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_SORTED_RUN: Final = 32
# Marks in a row from which they are sorted here. Unicode's stream-safe format (UAX #15) ends at 30.

LONGEST_RUN: Final = 1 << 16
"""Suspects in a row that are still normalised; no text has them, and one step should stay short."""

_CHUNK: Final = 1 << 16  # characters a step: 256 KiB of UTF-32, so memory stays flat on any input

# Code points above have neither combining classes (but for selectors, class 0) nor decompositions.
_END: Final = 0x30000

_HANGUL: Final = range(0xAC00, 0xD7A4)
_SURROGATES: Final = range(0xD800, 0xE000)
# Jamo vowels and trailing consonants compose with what is before them by arithmetic, so they are
# in no decomposition table.
_JAMO: Final = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))


class EndlessRun(Exception):
    """More than LONGEST_RUN characters in a row without one that NFC leaves alone."""


@cache
def _table() -> npt.NDArray[np.bool_]:
    """Per code point: whether NFC may change it or what is before it."""
    table = np.zeros(sys.maxunicode + 1, np.bool_)
    composing: set[int] = set(_JAMO)
    for code in range(0x80, _END):
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
    table[list(composing)] = True
    return table


@cache
def _growth() -> npt.NDArray[np.uint8]:
    """Per code point: UTF-8 bytes of its NFD (Hangul: of itself)."""
    codes = np.arange(sys.maxunicode + 1)
    size = (1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF)).astype(np.uint8)
    for code in range(0xC0, _END):
        if code not in _HANGUL and unicodedata.decomposition(chr(code)):
            size[code] = max(size[code], len(unicodedata.normalize("NFD", chr(code)).encode()))
    return size


@cache
def _class() -> npt.NDArray[np.uint8]:
    """Per code point: its canonical combining class."""
    classes = np.zeros(sys.maxunicode + 1, np.uint8)
    classes[:_END] = [unicodedata.combining(chr(code)) for code in range(_END)]
    return classes


# Marks that decompose into marks: taken apart before sorting, as NFD would.
@cache
def _split_marks() -> dict[int, str]:
    marks = map(chr, np.flatnonzero(_class()).tolist())
    return {
        ord(mark): unicodedata.normalize("NFD", mark)
        for mark in marks
        if unicodedata.decomposition(mark)
    }


def warm() -> None:
    """Build the tables: 0.2 s, once a process, better at start than in a request."""
    _table(), _growth(), _class(), _split_marks()


def is_clean(text: str) -> bool:
    """Whether `text` is surely its own NFC. About 1 ms a million characters."""
    return text.isascii() or not any(_suspects(chunk).any() for chunk in _chunks(text))


def nfc(text: str) -> str:
    """NFC of `text`, in time linear in its length. Raises EndlessRun."""
    if is_clean(text):
        return text
    pieces, start = [], 0
    while start < len(text):
        end = _boundary(text, start + _CHUNK)
        piece = text[start:end]
        marks = _suspects(piece)
        if marks.any():
            if b"\x01" * _SORTED_RUN in marks.tobytes():
                piece = _ordered(piece)
            piece = unicodedata.normalize("NFC", piece)
        pieces.append(piece)
        start = end
    return "".join(pieces)


def _boundary(text: str, at: int) -> int:
    """The first clean character from `at` on: a place where NFC can be cut."""
    clean = np.flatnonzero(~_suspects(text[at : at + LONGEST_RUN]))
    if clean.size:
        return at + int(clean[0])
    if at + LONGEST_RUN < len(text):
        raise EndlessRun
    return len(text)


def _ordered(text: str) -> str:
    """`text` with every run of marks in canonical order, so that NFC has nothing to sort."""
    codes = _codes(text.translate(_split_marks()))
    classes = _class()[codes]
    runs = np.cumsum(classes == 0)  # a starter begins a new run
    order = np.lexsort((classes, runs))  # stable: equal classes keep their order
    return codes[order].tobytes().decode("utf-32-le", "surrogatepass")


def bytes_bound(text: str) -> int:
    """An upper bound of the UTF-8 bytes of `text` both as it is and after NFC."""
    if text.isascii():
        return len(text)
    if is_clean(text):
        return len(text.encode("utf-8", "surrogatepass"))
    growth = _growth()
    return sum(int(growth.take(_codes(chunk)).sum(dtype=np.int64)) for chunk in _chunks(text))


def _chunks(text: str) -> Iterator[str]:
    return (text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK))


def _suspects(text: str) -> npt.NDArray[np.bool_]:
    return _table().take(_codes(text))  # twice as fast as an index


def _codes(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
