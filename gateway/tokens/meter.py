"""Compares every number with the engine's own, and learns how far to move the next one.

A number that is not exact is off by a factor (bytes a token, another tokenizer) and by a constant
(a template the gate does not know). The two are told apart by size: from small prompts the
constant is learned, from larger ones the factor, each as the *highest* of the last `WINDOW`
requests and a little more, because too high costs some room and too low breaks the promise. A
factor below one is believed only after `TRUST` requests; a shortfall moves it up at once.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Final

from gateway.tokens.model import Accuracy

SMALL: Final = 1024
"""Raw tokens up to which a difference is taken for the template's constant, not for a factor."""
WINDOW: Final = 256
"""Requests remembered: a day of one agent, minutes of a busy server; old languages fade out."""
TRUST: Final = 8
"""Requests before a bound may be lowered."""
SPARE: Final = 1.02
"""Put on a learned factor, so that the next, slightly denser text does not come out low."""


class Correction:
    """Factor and margin for one way of counting, learned from `usage`."""

    def __init__(self, *, floor: float = 0.0) -> None:
        """`floor` is the lowest factor to believe: 1.0 for counts that are close already."""
        self._floor = floor
        self._factors: deque[float] = deque(maxlen=WINDOW)
        self._margins: deque[int] = deque(maxlen=WINDOW)

    @property
    def factor(self) -> float:
        """What a raw number is multiplied with."""
        highest = max(self._factors, default=0.0) * SPARE
        lowest = self._floor if len(self._factors) >= TRUST else 1.0
        return max(lowest, highest)

    @property
    def margin(self) -> int:
        """Tokens then added."""
        return max(0, max(self._margins, default=0))

    def apply(self, raw: int) -> int:
        """What a raw number of tokens has turned out to mean."""
        return math.ceil(raw * self.factor) + self.margin if raw > 0 else 0

    def learn(self, raw: int, actual: int) -> None:
        """Take the engine's number for a request whose raw number was `raw`."""
        if raw <= SMALL:
            self._margins.append(actual - raw)
        else:
            self._factors.append(max(0, actual - self.margin) / raw)


class Meter:
    """The comparison since start, whatever way each number came."""

    def __init__(self) -> None:
        self._error_sum = 0
        self._seen = Accuracy()

    def observe(self, predicted: int, actual: int) -> int:
        """Compare two numbers of tokens; returns predicted − actual, negative for an under-count."""
        error = predicted - actual
        seen = self._seen
        self._error_sum += error
        self._seen = replace(
            seen,
            requests=seen.requests + 1,
            exact=seen.exact + (error == 0),
            unders=seen.unders + (error < 0),
            worst_under=max(seen.worst_under, -error),
            worst_over=max(seen.worst_over, error),
        )
        return error

    def snapshot(self, correction: Correction | None) -> Accuracy:
        """The comparison so far, with the correction in force."""
        mean = self._error_sum / self._seen.requests if self._seen.requests else 0.0
        if correction is None:
            return replace(self._seen, mean_error=mean)
        return replace(
            self._seen, mean_error=mean, correction=correction.factor, margin=correction.margin
        )
