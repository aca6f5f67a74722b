"""What an image costs, by its size; sound and video at a stated ceiling.

An image becomes (height/f) × (width/f) tokens after the processor has resized it to multiples of
f = patch × merge pixels within the model's bounds. Nothing is decoded: its size stands in its first
bytes (`tokens.sizes`). The engine fetches remote URLs itself; the gate never does (a client could aim it at the inside of the network), so
they cost the model's ceiling. The base64 text itself is never counted as text.

Source of the formula: `smart_resize` in Hugging Face's Qwen2VLImageProcessor (transformers 5.12.1),
which SGLang calls; 5,993 sizes give the same number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.tokens.model import CountRefused
from gateway.tokens.sizes import size_of_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.tokens.request import Media, Request

_MARKERS: Final = 2  # around an image: <|vision_start|> and <|vision_end|>, or the like
_RATIO: Final = 200  # longer images are refused by the processor

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


FETCHED: Final = ("http://", "https://")
"""How an address begins, to the letter: all else the engine unpacks from the body (`dialects.pointers`)."""

LARGEST_IMAGE: Final = 178_956_970
"""Pixels of one image that Pillow opens at all: twice what it warns of. SGLang's reader for Nemotron takes any,
and unpacks it before it is made smaller, as all do (0.5.6-0.5.23): 179 million pixels, a PNG of 21,840 bytes, took
5 s and 868 MiB of main memory."""


class Pixels(NamedTuple):
    """Of all images that are in a body together. Those of no known size count as the largest that there may be."""

    total: int = 0
    unknown: int = 0  # how many these are


def pixels_of(request: Request) -> Pixels:
    """Raises CountRefused for an image that is larger than any reader takes."""
    total = unknown = 0
    for item in request.media:
        if item.modality != "image" or item.source.startswith(FETCHED):
            continue
        size = size_of_source(item.source)
        if size is None:
            unknown += 1
            continue
        if size[0] * size[1] > LARGEST_IMAGE:
            msg = f"An image has {size[0]:,} × {size[1]:,} pixels; {LARGEST_IMAGE:,} are the most that is read. Make it smaller."
            raise CountRefused(msg)
        total += size[0] * size[1]
    return Pixels(total + unknown * LARGEST_IMAGE, unknown)


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
