"""What an image costs, from the first bytes of its data URL; sound and video at a stated ceiling.

An image becomes (height/f) × (width/f) tokens after the processor has resized it to multiples of
f = patch × merge pixels within the model's bounds. Nothing is decoded: the size stands in the
header of PNG, JPEG, GIF, WebP and BMP, and a few bytes of base64 reach it. The engine fetches
remote URLs itself; the gate never does (a client could aim it at the inside of the network), so
they cost the model's ceiling. The base64 text itself is never counted as text.

Source of the formula: `smart_resize` in Hugging Face's Qwen2VLImageProcessor (transformers 5.12.1),
which SGLang calls; 5,993 sizes give the same number.
"""

# ruff: noqa: PLR2004 - the numbers are the formats' own offsets, lengths and markers

from __future__ import annotations

import base64
import binascii
import math
import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from gateway.tokens.model import CountRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.tokens.request import Media, Request

_MARKERS: Final = 2  # around an image: <|vision_start|> and <|vision_end|>, or the like
_RATIO: Final = 200  # longer images are refused by the processor

# Base64 characters looked at, step by step: most headers are in the first 48; a JPEG with an EXIF
# thumbnail needs up to 64 KiB a segment, and ICC profiles come in several.
_STEPS: Final = (48, 4096, 131_072, 2_097_152)

# Frames are merged in pairs and the total is bounded by VIDEO_MAX_PIXELS = 128,000 × 28² × 0.9
# (qwen_vl.py): 115,200 tokens, and at most 384 pairs with a timestamp of about 12 tokens each.
_VIDEO_CEILING: Final = 120_000
# 25 tokens a second (Qwen2-Audio: two halvings of 100 mel frames): five and a half minutes.
_AUDIO_CEILING: Final = 8_192


@dataclass(frozen=True, slots=True)
class MediaRules:
    """How a model prices media. Pixels and tokens."""

    factor: int | None = (
        None  # patch × merge, pixels a token side; None: not a Qwen-VL, ceilings only
    )
    min_pixels: int = 4 * 28 * 28
    max_pixels: int = 16_384 * 28 * 28  # SGLANG_IMAGE_MAX_PIXELS
    video: int = _VIDEO_CEILING
    audio: int = _AUDIO_CEILING

    @property
    def image_ceiling(self) -> int:
        """The most tokens an image can become."""
        if self.factor is None:
            return 16_384  # the largest any supported model makes of one image
        return self.max_pixels // (self.factor * self.factor)


_FACTORS: Final[Mapping[str, int]] = {
    "qwen2_vl": 28,
    "qwen2_5_vl": 28,
    "qwen2_5_omni": 28,
    "qwen3_vl": 32,
    "qwen3_vl_moe": 32,
    "qwen3_omni_moe": 32,
    "qwen3_5": 32,
    "qwen3_5_moe": 32,
}


def rules_for(model_type: str | None, processor: Mapping[str, Any] | None = None) -> MediaRules:
    """The rules of a model, from its `model_type` and its preprocessor_config.json where present."""
    config = processor or {}
    factor = _FACTORS.get(model_type or "")
    if factor is None:
        return MediaRules()
    patch, merge = config.get("patch_size"), config.get("merge_size")
    if isinstance(patch, int) and isinstance(merge, int):
        factor = patch * merge
    size = config.get("size")
    edges: Mapping[str, Any] = size if isinstance(size, dict) else {}
    smallest = config.get("min_pixels") or edges.get("shortest_edge") or 4 * factor * factor
    largest = config.get("max_pixels") or edges.get("longest_edge") or 16_384 * factor * factor
    return MediaRules(factor=factor, min_pixels=int(smallest), max_pixels=int(largest))


def media_tokens(
    request: Request, rules: MediaRules, placeholder: int
) -> tuple[dict[int, int], bool]:
    """(tokens of media by prompt, whether all of them are exact).

    `placeholder` is how many tokens of each the count of the text already has: the engine replaces
    a placeholder by what the media become. Zero where the text was bounded without media; then two
    are added for the markers around them.
    """
    extra: dict[int, int] = {}
    exact = True
    for item in request.media:
        tokens, sure = _tokens_of(item, rules)
        tokens += -placeholder if sure and placeholder else _MARKERS
        extra[item.prompt] = extra.get(item.prompt, 0) + tokens
        exact = exact and sure
    return extra, exact


LARGEST_IMAGE: Final = 178_956_970
"""Pixels of one image that Pillow opens at all: twice what it warns of. SGLang's reader for Nemotron takes any,
and unpacks it before it is made smaller, as all do (0.5.6-0.5.23): 179 million pixels, a PNG of 21,840 bytes, took
5 s and 868 MiB of main memory."""


def pixels_of(request: Request) -> int:
    """Of all images that are in the body; one of a format that is not known here counts as the largest that
    there may be. Raises CountRefused for one that is larger than any reader takes."""
    total = 0
    for item in request.media:
        if item.modality != "image" or "://" in item.source[:16]:
            continue
        size = size_of_source(item.source)
        if size is None:
            total += LARGEST_IMAGE
            continue
        if size[0] * size[1] > LARGEST_IMAGE:
            msg = f"An image has {size[0]:,} × {size[1]:,} pixels; {LARGEST_IMAGE:,} are the most that is read. Make it smaller."
            raise CountRefused(msg)
        total += size[0] * size[1]
    return total


def _tokens_of(item: Media, rules: MediaRules) -> tuple[int, bool]:
    if item.modality == "video":
        return rules.video, False
    if item.modality == "audio":
        return rules.audio, False
    size = None if rules.factor is None else size_of_source(item.source)
    if size is None or rules.factor is None:
        return rules.image_ceiling, False
    tokens = image_tokens(*size, rules)
    if tokens is None or item.resized:
        # A client may move the bounds (`mm_processor_kwargs`); unscaled is the most it can get,
        # unless it is scaled up to a minimum.
        width, height = size
        unscaled = math.ceil(width / rules.factor) * math.ceil(height / rules.factor)
        return max(unscaled, rules.image_ceiling), False
    return tokens, True


def image_tokens(width: int, height: int, rules: MediaRules) -> int | None:
    """Tokens of an image of `width` × `height` pixels; None where the processor refuses it."""
    factor = rules.factor
    if factor is None or min(width, height) < 1 or max(width, height) / min(width, height) > _RATIO:
        return None
    rows = round(height / factor)  # may be none: a sliver is then scaled up by the minimum
    columns = round(width / factor)
    pixels = rows * columns * factor * factor
    if pixels > rules.max_pixels:
        scale = math.sqrt(height * width / rules.max_pixels)
        rows = max(1, math.floor(height / scale / factor))
        columns = max(1, math.floor(width / scale / factor))
    elif pixels < rules.min_pixels:
        scale = math.sqrt(rules.min_pixels / (height * width))
        rows = math.ceil(height * scale / factor)
        columns = math.ceil(width * scale / factor)
    return rows * columns


def size_of_source(source: str) -> tuple[int, int] | None:
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
            head = base64.b64decode(piece[: len(piece) // 4 * 4])
        except (binascii.Error, ValueError):
            return None
        size = size_of_header(head)
        if size is not _Header.SHORT:
            return size if isinstance(size, tuple) else None
        if len(source) - start <= step:
            return None
    return None


class _Header(Enum):
    SHORT = "more bytes are needed"


def size_of_header(head: bytes) -> tuple[int, int] | _Header | None:
    """(width, height) from an image's first bytes, SHORT where they end too soon, None: unknown."""
    for magic, enough, read in _FORMATS:
        if head.startswith(magic):
            return read(head) if len(head) >= enough else _Header.SHORT
    return None


def _png(head: bytes) -> tuple[int, int]:
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def _gif(head: bytes) -> tuple[int, int]:
    return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")


def _bmp(head: bytes) -> tuple[int, int]:
    width, height = struct.unpack("<ii", head[18:26])
    return abs(width), abs(height)  # a negative height means rows from the top


def _webp(head: bytes) -> tuple[int, int] | None:
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


def _jpeg(head: bytes) -> tuple[int, int] | _Header | None:
    """Walk the segments to the start-of-frame. EXIF rotation does not change rows × columns."""
    at = 2
    while at + 9 < len(head):
        if head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        else:
            at += 2 + max(2, int(struct.unpack(">H", head[at + 2 : at + 4])[0]))
    return _Header.SHORT


# Magic, bytes that hold the size, reader.
_FORMATS: Final[
    tuple[tuple[bytes, int, Callable[[bytes], tuple[int, int] | _Header | None]], ...]
] = (
    (b"\x89PNG\r\n\x1a\n", 24, _png),
    (b"\xff\xd8", 12, _jpeg),
    (b"RIFF", 30, _webp),
    (b"GIF87a", 10, _gif),
    (b"GIF89a", 10, _gif),
    (b"BM", 26, _bmp),
)
