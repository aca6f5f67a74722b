"""How large an image is, from the first bytes of its data URL: PNG, JPEG, GIF, WebP and BMP.

Those who send an image choose its bytes, and a reader (Pillow, in the engine) does not stop at the first
numbers: a GIF's first frame may be larger than its screen, a PNG may have two headers, or a text before
them, and what is no marker in a JPEG is skipped. So the walk goes on to where the pixels begin, of several
sizes the largest counts in each direction, and a file that is not put together as plain ones are has no
size here: it costs its ceiling.
"""

# ruff: noqa: PLR2004 - the numbers are the formats' own offsets, lengths and markers

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Base64 characters looked at, step by step: most headers are in the first 4,096; a JPEG with an EXIF
# thumbnail needs up to 64 KiB a segment, and ICC profiles come in several.
_STEPS: Final = (48, 4096, 131_072, 2_097_152)

_MOST_PIECES: Final = 1_024
"""Segments, chunks or blocks before the pixels. Profiles and thumbnails take some dozens; a megabyte of
empty ones takes a second to walk, on the loop."""

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Short:
    """The bytes end before the pixels begin; where there are no more of them, what was found is all."""

    size: Size | None = None


_Found = Size | _Short | None


def size_of_source(source: str) -> Size | None:
    """(width, height) of a base64 data URL or bare base64 text; None for anything else."""
    start = 0
    if source.startswith("data:"):
        # A media type with parameters stays below 200 characters; never scan megabytes for a comma.
        comma = source.find(",", 0, 200)
        if comma < 0 or ";base64" not in source[:comma]:
            return None
        start = comma + 1
    elif "://" in source[:16]:
        return None
    for step in _STEPS:
        piece = source[start : start + step]
        try:
            found = _read(base64.b64decode(piece[: len(piece) // 4 * 4]))
        except (binascii.Error, ValueError):
            return None
        if not isinstance(found, _Short):
            return found
        if len(source) - start <= step:
            return found.size
    return None


def _read(head: bytes) -> _Found:
    for magic, enough, read in _FORMATS:
        if head.startswith(magic):
            return read(head) if len(head) >= enough else _Short()
    return None


def _larger(one: Size | None, width: int, height: int) -> Size:
    return (width, height) if one is None else (max(one[0], width), max(one[1], height))


def _png(head: bytes) -> _Found:
    """Walk the chunks to the first with pixels. IHDR is the first of all."""
    at, size = 8, None
    for _ in range(_MOST_PIECES):
        length, kind = int.from_bytes(head[at : at + 4], "big"), head[at + 4 : at + 8]
        if kind == b"IHDR" and length == 13:
            if at + 16 > len(head):
                return _Short(size)
            size = _larger(size, *struct.unpack(">II", head[at + 8 : at + 16]))
        elif len(kind) < 4:
            return _Short(size)
        elif size is None or kind in (b"IHDR", b"IDAT"):
            return size if kind == b"IDAT" else None
        at += 12 + length
    return None


def _gif(head: bytes) -> _Found:
    """Walk the extensions to the first frame, which is what is read: it may reach beyond the screen."""
    at, pieces = 13 + (6 << (head[10] & 7) if head[10] & 0x80 else 0), 0
    while pieces < _MOST_PIECES and head[at : at + 1] == b"!":
        # Readers differ on where an extension ends that says nothing: an application's name and no more, too.
        least = 2 if head[at + 1 : at + 2] == b"\xff" else 1
        blocks, at = _blocks(head, at + 2, _MOST_PIECES - pieces)
        if blocks < least and at <= len(head):
            return None
        pieces += blocks
    if at + 9 > len(head):
        return _Short()
    if head[at : at + 1] != b",":
        return None
    left, top, width, height = struct.unpack("<HHHH", head[at + 1 : at + 9])
    return _larger(struct.unpack("<HH", head[6:10]), left + width, top + height)


def _blocks(head: bytes, at: int, most: int) -> tuple[int, int]:
    """(how many there are from `at` on, `most` at most, where they end: beyond `head` where that is not there)."""
    for blocks in range(most):
        if at >= len(head):
            break
        if not (length := head[at]):
            return blocks, at + 1
        at += 1 + length
    else:
        return most, at
    return 0, len(head) + 1


def _bmp(head: bytes) -> _Found:
    kind = int.from_bytes(head[14:18], "little")  # the length of the header that follows
    if kind == 12:
        width, height = struct.unpack("<HH", head[18:22])
    elif kind in (40, 52, 56, 64, 108, 124):
        width, height = struct.unpack("<ii", head[18:26])
    else:
        return None
    return abs(width), abs(height)  # a negative height means rows from the top


def _webp(head: bytes) -> _Found:
    """All frames lie within the canvas: its reader refuses the file else."""
    match head[8:16]:
        case b"WEBPVP8 ":
            width, height = struct.unpack("<HH", head[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case b"WEBPVP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
        case b"WEBPVP8X":
            width = int.from_bytes(head[24:27], "little") + 1
            return width, int.from_bytes(head[27:30], "little") + 1
        case _:
            return None


_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PLAIN: Final = frozenset({0xC4, 0xCC, 0xDB, 0xDC, 0xDD, *range(0xE0, 0xF0), 0xFE})
"""Markers with a length to every reader. Of others some take none to follow, and go on elsewhere."""


def _jpeg(head: bytes) -> _Found:
    """Walk the segments to the start of the scan. EXIF rotation does not change rows × columns."""
    at, size = 2, None
    for _ in range(_MOST_PIECES):
        if at + 4 > len(head):
            return _Short(size)
        marker = head[at + 1]
        if head[at] != 0xFF:
            return None
        if marker == 0xFF:  # padding
            at += 1
            continue
        if marker in _FRAMES:
            if at + 9 > len(head):
                return _Short(size)
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            size = _larger(size, width, height)
        elif marker not in _PLAIN:
            return size if marker == 0xDA else None
        at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4], "big"))
    return None


# Magic, bytes that hold the size, reader.
_FORMATS: Final[tuple[tuple[bytes, int, Callable[[bytes], _Found]], ...]] = (
    (b"\x89PNG\r\n\x1a\n", 24, _png),
    (b"\xff\xd8", 12, _jpeg),
    (b"RIFF", 30, _webp),
    (b"GIF87a", 13, _gif),
    (b"GIF89a", 13, _gif),
    (b"BM", 26, _bmp),
)
