"""How full a pool will get: the forecast of everything in flight together.

Theory. Requests do not need their caps at the same time. At a horizon of h tokens from now a
request is still there with probability q(h) = S(g + h) / S(g) and then holds u(h) = prompt + g + h
tokens; h tokens past its cap it is gone. So the pool holds mean(h) = sum u q and varies by
var(h) = sum u^2 q (1 - q). A candidate is let in if, with it, mean + z sd stays inside the pool at
every horizon of a grid. A few large requests are no crowd: their sum is skewed, and z is widened by
(z^2 - 1) / 6 x skewness (Cornish and Fisher, 1938), which fades as they become many. That is an aggregate bound: the sum of single upper bounds (a quantile of
each) wastes the pool, since not all are unlucky at once (a trial on reasoning traffic: 33 % of the
pool in use, against 76 %).

A bound is never more than the worst case: where all caps together fit, nothing is forecast. Who comes in
then is entered as it is, and has its forecast made when one is asked for: most are gone before.

z is found, not chosen; see `confidence`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.core.lengths import Lengths
    from gateway.core.model import Demand, RequestId

HORIZONS = (
    *(0, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1_024, 1_280, 1_536, 1_792),
    *(
        2_048,
        2_560,
        3_072,
        3_584,
        4_096,
        5_120,
        6_144,
        7_168,
        8_192,
        10_240,
        12_288,
        16_384,
        20_480,
    ),
    *(24_576, 32_768, 65_536),
)
"""Tokens from now, a quarter of an octave apart. With half octaves three requests of 19,000 tokens
fitted a pool of 67,000 at 3,072 and at 4,096 tokens ahead, and overflowed it between."""

FRESH = 32
"""A forecast is made anew when its request has 32 tokens more, or an eighth: a second of one stream,
and less than the distance of two horizons."""

MOST_SKEWED = 2.0
"""The correction is a first term of a series; beyond this the worst case bounds better."""

REFRESHED = 6
"""Forecasts made anew in one decision, 0.05 ms each: a third of a millisecond."""


class Flying(Protocol):
    """A request in flight, as far as a forecast of it goes (`ledger.Hold`)."""

    demand: Demand
    lengths: Lengths | None

    @property
    def occupied(self) -> int:
        """KV tokens it holds."""

    @property
    def each(self) -> int:
        """Tokens of output in each of its sequences."""


class Term:
    """What one request adds, by horizon."""

    __slots__ = ("at", "mean", "skew", "var", "worst")

    def __init__(
        self, base: int, generated: int, sequences: int, cap: int, lengths: Lengths
    ) -> None:
        """`base` tokens are held now, of which `generated` in each of `sequences` are output."""
        self.at = generated
        size = len(HORIZONS)
        self.mean, self.var, self.worst = [0.0] * size, [0.0] * size, [0.0] * size
        self.skew = [0.0] * size  # third central moment
        left, before = max(cap - generated, 0), -1
        shares = lengths.ahead(generated, HORIZONS)
        for index, horizon in enumerate(HORIZONS):
            if before >= left:
                break  # it has ended by then, by its cap
            # Where its cap comes before this point, it is looked at there.
            share = shares[index] if horizon <= left else lengths.survival(generated, left)
            held = base + min(horizon, left) * sequences
            spread = held * held * share * (1.0 - share)
            self.mean[index] = held * share
            self.var[index] = spread
            self.skew[index] = spread * held * (1.0 - 2.0 * share)
            self.worst[index] = held
            before = horizon


class Outlook:
    """The forecast of one pool."""

    def __init__(self) -> None:
        self._terms: dict[RequestId, Term] = {}
        self._later: dict[RequestId, Flying] = {}
        self._empty()

    def __contains__(self, ident: RequestId) -> bool:
        return ident in self._terms or ident in self._later

    def __len__(self) -> int:
        return len(self._terms) + len(self._later)

    def enter(self, ident: RequestId, one: Flying) -> None:
        """A request is in flight whose forecast nobody has asked for yet."""
        self._later[ident] = one

    def put(self, ident: RequestId, term: Term) -> None:
        """A request is in flight, or has a new forecast."""
        old = self._terms.pop(ident, None)
        if old is not None:
            self._add(old, -1.0)
        self._terms[ident] = term
        self._add(term, 1.0)

    def drop(self, ident: RequestId) -> None:
        """A request is gone."""
        if self._later.pop(ident, None) is not None:
            return
        self._add(self._terms.pop(ident), -1.0)
        if not self._terms:  # rounding does not outlive the last request
            self._empty()

    def made_at(self, ident: RequestId) -> int | None:
        """How many tokens a request had in each sequence at its last forecast; None without one."""
        term = self._terms.get(ident)
        return None if term is None else term.at

    def moments(self) -> tuple[list[float], list[float], list[float]]:
        """Mean, variance and third central moment of what is in flight, by horizon."""
        self._catch_up()
        return self._mean, self._var, self._skew

    def admits(self, term: Term, limit: float, z: float) -> bool:
        """Whether the pool is forecast to hold what is there and `term`."""
        self._catch_up()
        for index, worst in enumerate(self._worst):
            if worst + term.worst[index] <= limit:
                continue
            mean = self._mean[index] + term.mean[index]
            var = self._var[index] + term.var[index]
            if mean > limit or mean + reach(var, self._skew[index] + term.skew[index], z) > limit:
                return False
        return True

    def peak(self, z: float) -> float:
        """The highest the pool is forecast to get, tokens."""
        self._catch_up()
        points = zip(self._mean, self._var, self._skew, self._worst, strict=True)
        return max(min(worst, mean + reach(var, skew, z)) for mean, var, skew, worst in points)

    def _empty(self) -> None:
        size = len(HORIZONS)
        self._mean, self._var, self._worst = [0.0] * size, [0.0] * size, [0.0] * size
        self._skew = [0.0] * size

    def _catch_up(self) -> None:
        for ident, one in self._later.items():
            if one.lengths is not None:
                demand = one.demand
                self.put(ident, Term(one.occupied, one.each, demand.slots, demand.cap, one.lengths))
        self._later.clear()

    def _add(self, term: Term, sign: float) -> None:
        mean, var, skew, worst = self._mean, self._var, self._skew, self._worst
        for index, held in enumerate(term.worst):
            if held == 0.0:
                break  # beyond its cap; horizons are in order
            mean[index] += sign * term.mean[index]
            var[index] += sign * term.var[index]
            skew[index] += sign * term.skew[index]
            worst[index] += sign * held


def reach(var: float, skew: float, z: float) -> float:
    """How far above its mean a sum is taken to get, at `z`: the one measure of admission, and of whether
    a forecast came true (`confidence`)."""
    if var <= 0.0:
        return 0.0
    sd = math.sqrt(var)
    skewness = min(max(skew / (var * sd), 0.0), MOST_SKEWED)
    return sd * (z + max(z * z - 1.0, 0.0) / 6.0 * skewness)
