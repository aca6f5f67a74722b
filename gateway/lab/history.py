"""Output lengths seen so far, by client: what length-aware baselines predict from.

A client with few of its own borrows everybody's. Lengths are in the order they finished, so short
ones come early; the baselines live with that bias, as they do in the papers.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import random

WINDOW = 2000  # lengths kept, per client and in all
LEAST = 50  # lengths below which a client borrows, and below which nothing is predicted

Lengths = npt.NDArray[np.float64]


class Window:
    """The last WINDOW lengths, in order of time and in order of size."""

    def __init__(self) -> None:
        self.ordered: list[int] = []
        self._in_time: deque[int] = deque()

    def add(self, length: int) -> None:
        """One more; the oldest goes when there are too many."""
        self._in_time.append(length)
        insort(self.ordered, length)
        if len(self._in_time) > WINDOW:
            del self.ordered[bisect_left(self.ordered, self._in_time.popleft())]


class History:
    """Finished output lengths, tokens."""

    def __init__(self) -> None:
        self._windows: dict[str | None, Window] = {}

    def add(self, client: str, length: int) -> None:
        """`client` has had an answer of `length` tokens."""
        for key in (client, None):
            self._windows.setdefault(key, Window()).add(length)

    def lengths(self, client: str) -> list[int] | None:
        """Sorted lengths to predict `client` from, or None when there are too few."""
        for key in (client, None):
            window = self._windows.get(key)
            if window is not None and len(window.ordered) >= LEAST:
                return window.ordered
        return None

    def quantile(self, client: str, level: float) -> float | None:
        """A quantile of the lengths of `client`, linear between two; None when there are too few."""
        lengths = self.lengths(client)
        if lengths is None:
            return None
        place = level * (len(lengths) - 1)
        below = int(place)
        above = min(below + 1, len(lengths) - 1)
        return lengths[below] + (place - below) * (lengths[above] - lengths[below])

    def quantile_beyond(self, client: str, out: int, level: float) -> int | None:
        """The upper quantile, at `level`, of the lengths of `client` longer than the `out` tokens it
        has already; None when there are too few lengths, or none so long."""
        lengths = self.lengths(client)
        start = 0 if lengths is None else bisect_right(lengths, out)
        if lengths is None or start == len(lengths):
            return None
        count = len(lengths) - start
        return lengths[start + min(count, math.ceil(level * (count + 1))) - 1]

    def draw_beyond(self, client: str, out: int, rng: random.Random) -> int | None:
        """One of those lengths at random; None as for `quantile_beyond`."""
        lengths = self.lengths(client)
        start = 0 if lengths is None else bisect_right(lengths, out)
        if lengths is None or start == len(lengths):
            return None
        return lengths[start + int(rng.random() * (len(lengths) - start))]


def peak(held: Lengths, remaining: Lengths) -> float:
    """Most KV in use at once when sequence i holds `held[i]` tokens, grows one a step and leaves
    after `remaining[i]` more: max over j of (sum of held of those lasting at least as long as j,
    plus j's remaining times their number)."""
    if not len(held):
        return 0.0
    order = np.argsort(-remaining)
    longest = remaining[order]
    return float((np.cumsum(held[order]) + longest * np.arange(1, len(longest) + 1)).max())
