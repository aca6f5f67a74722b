"""How long the model talks when nobody stops it.

A length source maps a request (its rid and prompt length) to output tokens. It is deterministic: the
same seed and the same order of requests give the same lengths.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

LengthSource = Callable[[random.Random, int], int]
"""(generator, prompt tokens) -> output tokens the model would like to produce, at least 1."""


def fixed(tokens: int) -> LengthSource:
    """Always `tokens`."""

    def draw(_rng: random.Random, _prompt: int) -> int:
        return tokens

    return draw


def talkative(median: float, sigma: float = 0.9) -> LengthSource:
    """Log-normal lengths: what chat traces show (Azure 2023 conversations: median near 200, a tail
    of thousands)."""

    def draw(rng: random.Random, _prompt: int) -> int:
        return max(1, round(median * math.exp(sigma * rng.gauss(0.0, 1.0))))

    return draw


def endless(_rng: random.Random, _prompt: int) -> int:
    """A model that never stops by itself: random weights, or a loop."""
    return 1 << 30
