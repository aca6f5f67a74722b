"""How fast reservations come back, and so when a refused client should try again.

W = tokens ahead of it that do not fit now / drain rate; Retry-After = W with up to 25 % jitter,
1 to 59 s (SDKs obey anything below 60 s; from there on some come back at once).
The rate is an exponentially weighted mean over released KV tokens with a 30 s half-life: long
enough to bridge the end of one long generation, short enough to follow a changed load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HALF_LIFE_S = 30.0
LEAST_S = 1.0
MOST_S = 59.0
JITTER = 0.25
UNKNOWN_S = 5.0
"""Told while nothing has been released yet: the order of one short answer."""

MOST_ETA_S = 3_600.0
"""An estimate above an hour says no more than "not soon", and a vanishing rate has no reciprocal."""


@dataclass(slots=True)
class DrainRate:
    """KV tokens released per second, decayed."""

    started: float
    _tokens: float = 0.0
    _weight_s: float = 0.0
    _at: float | None = None
    _busy: bool = False

    def busy(self, now: float, *, is_busy: bool) -> None:
        """Say whether anything is held from `now` on; idle time does not count."""
        self._decay(now)
        self._busy = is_busy

    def released(self, tokens: int, now: float) -> None:
        """Count a release."""
        self._decay(now)
        self._tokens += tokens

    def stood_still(self, seconds: float) -> None:
        """For so long no release could be seen: that is no time in which there was none."""
        if self._at is not None:
            self._at += seconds

    def per_second(self, now: float) -> float:
        """Tokens per second; 0 while unknown."""
        self._decay(now)
        return self._tokens / self._weight_s if self._weight_s > 0 else 0.0

    def eta_s(self, tokens: float, now: float) -> float | None:
        """Seconds until `tokens` have drained, an hour at most; None while the rate is unknown."""
        rate = self.per_second(now)
        return None if rate <= 0 else min(max(0.0, tokens) / rate, MOST_ETA_S)

    def _decay(self, now: float) -> None:
        last = self.started if self._at is None else self._at
        passed = max(0.0, now - last) if self._busy else 0.0
        keep = math.exp2(-passed / HALF_LIFE_S)
        self._tokens *= keep
        # The mean age weight of an interval: the integral of the kernel over it.
        self._weight_s = self._weight_s * keep + HALF_LIFE_S / math.log(2) * (1 - keep)
        self._at = now


def retry_after_s(eta_s: float | None, jitter: Callable[[], float], stretch: float = 1.0) -> float:
    """Whole seconds, 1..59, spread so that the refused do not come back together.

    `jitter` returns a number in [0, 1). `stretch`: so many times longer than is expected, for who comes
    back early again and again (see `retries`).
    """
    base = max(UNKNOWN_S if eta_s is None else eta_s, LEAST_S if stretch > 1 else 0.0) * stretch
    return float(min(MOST_S, max(LEAST_S, math.ceil(base * (1 + JITTER * jitter())))))
