"""Output lengths seen so far, by client: what length-aware baselines predict from.

A client with few of its own borrows everybody's. Lengths are in the order they finished, so short
ones come early; the baselines live with that bias, as they do in the papers.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

WINDOW = 2000  # lengths kept, per client and in all
LEAST = 50  # lengths below which a client borrows, and below which nothing is predicted

Lengths = npt.NDArray[np.float64]


class History:
    """A window of finished output lengths, tokens."""

    def __init__(self) -> None:
        self._windows: dict[str | None, deque[int]] = {}
        self._sorted: dict[str | None, Lengths] = {}

    def add(self, client: str, length: int) -> None:
        """`client` has had an answer of `length` tokens."""
        for key in (client, None):
            self._windows.setdefault(key, deque(maxlen=WINDOW)).append(length)
            self._sorted.pop(key, None)

    def lengths(self, client: str) -> Lengths | None:
        """Sorted lengths to predict `client` from, or None when there are too few."""
        for key in (client, None):
            window = self._windows.get(key)
            if window is not None and len(window) >= LEAST:
                if key not in self._sorted:
                    self._sorted[key] = np.sort(np.array(window, dtype=np.float64))
                return self._sorted[key]
        return None

    def beyond(self, client: str, out: int) -> Lengths | None:
        """Sorted lengths of `client` longer than the `out` tokens it has already; maybe empty."""
        lengths = self.lengths(client)
        return None if lengths is None else lengths[np.searchsorted(lengths, out, side="right") :]


def peak(held: Lengths, remaining: Lengths) -> float:
    """Most KV in use at once when sequence i holds `held[i]` tokens, grows one a step and leaves
    after `remaining[i]` more: max over j of (sum of held of those lasting at least as long as j,
    plus j's remaining times their number)."""
    if not len(held):
        return 0.0
    order = np.argsort(-remaining)
    longest = remaining[order]
    return float((np.cumsum(held[order]) + longest * np.arange(1, len(longest) + 1)).max())
