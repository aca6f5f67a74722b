"""How many standard deviations: z, found by watching forecasts come true.

Theory. At some grants the forecast is written down: who was in flight, and the moments at each
horizon. While those requests go on it is known of each whether it reached a horizon, so the tokens
they really hold there are summed from below. If that sum passes the bound of admission at a horizon
that mattered (one where the pool could have been half full) the forecast was broken. z is then moved as
an online quantile is tracked (adaptive conformal inference): up by STEP x (1 - MISS) when broken,
down by STEP x MISS when it held to its end. In the long run a share MISS of forecasts is broken,
whatever the distribution.

A forecast of which no horizon mattered says nothing, however it ends, and is not written down: a night of
short answers would otherwise take z to its least, and the morning would begin without a margin.

A retraction, or a pool fuller than 97 %, says at once what cohorts would say in minutes: z rises by
half for a minute (from there on a decode step may find no page: TPOT x4 above 98 % was reported).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.outlook import HORIZONS, reach

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.core.model import RequestId

START = 2.5
"""Above what it settles at (1.4 to 2.1 on reasoning traffic): at first neither the lengths nor their
spread are known, and two or three large requests are no crowd whose luck evens out."""

LEAST, MOST = 1.0, 4.0
MISS = 0.2
"""A forecast that is passed is no retraction yet: it is passed at one of many horizons, mostly far from
the pool's end. In the laboratory 5, 20 and 50 % gave the same number of retractions (none steady, 11
of 1,000 requests with lengths doubled half-way); a larger one leaves less of the pool unused."""

STEP = 0.25
COHORTS = 8
"""Forecasts watched at a time: enough to learn in minutes, few enough to cost nothing."""

FAR = 3.0
"""A horizon matters where the pool might, at so many standard deviations, be half full then."""

ALARM = 0.5
ALARM_S = 60.0
FULL = 0.97


@dataclass(slots=True)
class _Member:
    base: int  # tokens held when the forecast was made
    generated: int  # per sequence, then
    sequences: int
    reached: int = 0  # index of the first horizon not yet reached


def matters(mean: float, var: float, limit: float) -> bool:
    """Whether a pool of `limit` tokens might be half full at a horizon."""
    return mean + reach(var, 0.0, FAR) >= limit / 2


class _Cohort:
    """One forecast and what became of it."""

    def __init__(
        self,
        members: dict[RequestId, _Member],
        mean: Sequence[float],
        var: Sequence[float],
        skew: Sequence[float],
    ) -> None:
        self.members = members
        self._moments = list(zip(mean, var, skew, strict=True))
        self._held = [0.0] * len(HORIZONS)
        self.broken = False

    def saw(self, ident: RequestId, generated: int, z: float, limit: float) -> bool:
        """A member has so many tokens. True if that breaks the forecast, once."""
        member = self.members.get(ident)
        if member is None:
            return False
        ahead = generated - member.generated
        breaks = False
        while member.reached < len(HORIZONS) and HORIZONS[member.reached] <= ahead:
            index = member.reached
            self._held[index] += member.base + HORIZONS[index] * member.sequences
            mean, var, skew = self._moments[index]
            passed = self._held[index] > mean + reach(var, skew, z)
            breaks = breaks or (passed and matters(mean, var, limit))
            member.reached += 1
        if breaks and not self.broken:
            self.broken = True
            return True
        return False


class Confidence:
    """The z of one pool."""

    def __init__(self) -> None:
        self.settled = START
        self._alarm_until = -math.inf
        self._cohorts: list[_Cohort] = []
        self._of: dict[RequestId, list[_Cohort]] = {}

    def z(self, now: float) -> float:
        """Standard deviations to keep free now."""
        extra = ALARM if now < self._alarm_until else 0.0
        return min(self.settled + extra, MOST)

    def alarm(self, now: float) -> None:
        """The pool ran dry, or nearly."""
        self._alarm_until = now + ALARM_S

    @property
    def wants(self) -> bool:
        """Whether another forecast should be watched."""
        return len(self._cohorts) < COHORTS

    def watch(
        self,
        members: Mapping[RequestId, tuple[int, int, int]],
        mean: Sequence[float],
        var: Sequence[float],
        skew: Sequence[float],
        limit: float,
    ) -> None:
        """Watch a forecast of (tokens held, generated per sequence, sequences) each, if it matters."""
        if not any(matters(at, spread, limit) for at, spread in zip(mean, var, strict=True)):
            return
        watched = {ident: _Member(*each) for ident, each in members.items()}
        cohort = _Cohort(watched, mean, var, skew)
        self._cohorts.append(cohort)
        for ident in members:
            self._of.setdefault(ident, []).append(cohort)

    def saw(self, ident: RequestId, generated: int, limit: float) -> None:
        """A request has so many tokens per sequence."""
        for cohort in self._of.get(ident, ()):
            if cohort.saw(ident, generated, self.settled, limit):
                self.settled = min(self.settled + STEP * (1.0 - MISS), MOST)

    def gone(self, ident: RequestId) -> None:
        """A request has ended."""
        for cohort in self._of.pop(ident, ()):
            del cohort.members[ident]
            if not cohort.members:
                self._cohorts.remove(cohort)
                if not cohort.broken:
                    self.settled = max(self.settled - STEP * MISS, LEAST)

    def forget(self) -> None:
        """The server died: its forecasts have no end."""
        self._cohorts.clear()
        self._of.clear()
