"""How long answers are: survival of output lengths, learned while they are written.

Theory. What matters is not how long an answer will be but whether one that already has g tokens
goes on for h more: S(g + h) / S(g). S is a Kaplan-Meier product over buckets of length,
S = prod(1 - ended / entered): an answer under way has *entered* each bucket it reached and *ended*
in none, so long ones count from the moment they are long. An average over finished answers would
be short after every restart, since short ones finish first. An answer that was cut (its cap, its
client left, its server died) ended in no bucket either: it is censored.

Three levels, each leaning on the next while it knows little: this client's own, everybody's of this
kind, and a shipped prior for the kind. Leaning is by bucket: (ended + STRENGTH x hazard of the
parent) / (entered + STRENGTH). A client that has written a thousand short answers has its own head
of the curve and still borrows the tail.

Old answers fade (MEMORY), so that a client whose answers become twice as long is believed.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PER_OCTAVE = 4
"""Buckets per doubling: a quarter of an octave is finer than what a few hundred answers can tell."""

_BITS = PER_OCTAVE.bit_length() - 1

BUCKETS = 17 * PER_OCTAVE
"""Up to 2^18 tokens, the longest context any engine here was seen with."""

STRENGTH = 8.0
"""Answers' worth of belief in the level above: the 95 % interval of a hazard of one tenth after
eight answers is as wide as the difference between the shipped priors."""

MEMORY = 300.0
"""Finished answers after which a new one outweighs an old one by e: enough for a tail of one in a
hundred, few enough that a client whose answers change is believed the same hour."""

MOST_CLASSES = 1_024
"""Clients remembered; the one unheard of for longest is forgotten first."""

MOST_MEANS = 32
"""Caps of which the mean is kept: clients send one or two."""

_RESCALE = 1e9

PRIORS: dict[str, tuple[tuple[int, float], ...]] = {
    # (tokens, share of answers longer than that), from public traces: the mean over Azure 2023
    # conversations, Mooncake conversations, ServeGen m-large and ShareGPT turns; above 2,048 tokens
    # thinned by half an octave each, since none of those clients could ask for more.
    "chat": (
        (16, 0.88),
        (64, 0.78),
        (128, 0.62),
        (256, 0.47),
        (512, 0.10),
        (1024, 0.03),
        (2048, 0.01),
        (4096, 4e-3),
        (8192, 1.5e-3),
        (32768, 1e-4),
    ),
    # Azure 2023 code and Mooncake tool calls; the tail is that of an agent that writes a file.
    "tools": (
        (16, 0.53),
        (64, 0.30),
        (128, 0.21),
        (256, 0.13),
        (512, 0.06),
        (1024, 0.03),
        (2048, 0.015),
        (4096, 7e-3),
        (8192, 3e-3),
        (32768, 2e-4),
    ),
    # ServeGen deepseek-r1.
    "reasoning": (
        (128, 0.99),
        (256, 0.96),
        (512, 0.82),
        (1024, 0.65),
        (2048, 0.48),
        (4096, 0.25),
        (8192, 0.065),
        (16384, 6e-3),
        (32768, 2e-4),
    ),
}
USUAL = "chat"
LONG = "reasoning"

LONG_CAP = 8_192
"""Who asks for that much output, or names no limit, may be answered at length: agents do both. Until
there are answers of its own, such a request is taken for a long one, whatever its kind."""


def prior_of(kind: str, cap: int | None) -> str:
    """Whose lengths stand in for a request of `kind` with output cap `cap`."""
    return LONG if cap is None or cap >= LONG_CAP else kind


def bucket(tokens: int) -> int:
    """The bucket of a length. Buckets 0..3 are single tokens, then PER_OCTAVE to each doubling."""
    if tokens < PER_OCTAVE:
        return max(tokens, 0)
    shift = tokens.bit_length() - 1 - _BITS
    return min((shift << _BITS) + (tokens >> shift), BUCKETS - 1)


def edge(index: int) -> int:
    """The smallest length in a bucket."""
    if index < 2 * PER_OCTAVE:
        return index
    shift = (index >> _BITS) - 1
    return (PER_OCTAVE + (index & (PER_OCTAVE - 1))) << shift


EDGES = [edge(index) for index in range(BUCKETS + 1)]


def _prior_hazards(points: tuple[tuple[int, float], ...]) -> list[float]:
    """Hazard of each bucket from points of a survival curve, straight between them in logarithms."""
    known = [(0, 0.0), *((tokens, math.log(share)) for tokens, share in points)]
    slope = (known[-1][1] - known[-2][1]) / (known[-1][0] - known[-2][0])

    def log_survival(tokens: int) -> float:
        for (before, low), (after, high) in pairwise(known):
            if tokens <= after:
                return low + (high - low) * (tokens - before) / (after - before)
        return known[-1][1] + slope * (tokens - known[-1][0])

    logs = [log_survival(tokens) for tokens in EDGES]
    return [1.0 - math.exp(after - before) for before, after in pairwise(logs)]


class Lengths:
    """One level: the answers of one client, or of everybody, of one kind."""

    def __init__(self, parent: Lengths | None, prior: list[float] | None = None) -> None:
        self._parent = parent
        self._entered = [0.0] * BUCKETS
        self._ended = [0.0] * BUCKETS
        self._weight = 1.0  # of the newest answer: growing weights are fading memory
        self._hazards = prior if prior is not None else [0.0] * BUCKETS
        self._shares = _cumulated(self._hazards)
        self._news = math.inf  # events since the curve was drawn
        self._means: dict[int, float] = {}  # by cap, of the curve as it is drawn
        self._from_start: list[float] | None = None  # likewise, see `ahead`
        self.is_prior = prior is not None
        self.drawn = 0  # times the curve was drawn anew
        self.finished = 0.0  # answers that ended by themselves, fading like the rest

    def entered(self, before: int, now: int) -> None:
        """An answer grew from bucket `before` (-1: it began) to bucket `now`."""
        for index in range(before + 1, now + 1):
            self._entered[index] += self._weight
        self._news += 1.0
        if self._parent is not None and not self._parent.is_prior:
            self._parent.entered(before, now)

    def ended(self, index: int) -> None:
        """An answer ended by itself in bucket `index`, which it had entered."""
        self._ended[index] += self._weight
        self.finished = self.finished * (1.0 - 1.0 / MEMORY) + 1.0
        self._weight /= 1.0 - 1.0 / MEMORY
        self._news += 1.0
        if self._weight > _RESCALE:
            self._rescale()
        if self._parent is not None and not self._parent.is_prior:
            self._parent.ended(index)

    def survival(self, have: int, more: int) -> float:
        """Probability that an answer with `have` tokens gets more than `more` further ones."""
        shares = self.curve()
        return _at(shares, have + more) / _at(shares, have)

    def ahead(self, have: int, horizons: tuple[int, ...]) -> list[float]:
        """`survival` of an answer with `have` tokens at each of `horizons`. One that begins is asked
        about with each grant, so what holds for it is kept with the curve."""
        shares = self.curve()
        if have == 0:
            if self._from_start is None:
                self._from_start = [
                    shares[index] + part * (shares[index + 1] - shares[index])
                    for index, part in _places(horizons)
                ]
            return self._from_start
        here = _at(shares, have)
        return [_at(shares, have + more) / here for more in horizons]

    def curve(self) -> list[float]:
        """S at each bucket's edge, drawn anew where enough has happened."""
        if not self.is_prior and self._news >= 1.0 + 0.02 * self._entered[0] / self._weight:
            self._draw()
        return self._shares

    def mean(self, cap: int) -> float:
        """Expected tokens of an answer that has none yet and is cut at `cap`."""
        shares = self.curve()
        if (known := self._means.get(cap)) is not None:
            return known
        total = 0.0
        for index in range(BUCKETS):
            low, high = EDGES[index], EDGES[index + 1]
            if high > cap:
                if cap > low:
                    high = cap
                    total += (high - low) * (shares[index] + _at(shares, high)) / 2
                break
            total += (high - low) * (shares[index] + shares[index + 1]) / 2
        if len(self._means) < MOST_MEANS:
            self._means[cap] = total
        return total

    def quantile(self, level: float) -> int:
        """The length that a share `level` of answers does not exceed, tokens."""
        for index, share in enumerate(self.curve()):
            if share <= 1.0 - level:
                return EDGES[index]
        return EDGES[-1]

    def hazards(self) -> list[float]:
        """Chance to end in each bucket, once in it."""
        self.curve()
        return self._hazards

    def _draw(self) -> None:
        above = self._parent.hazards() if self._parent is not None else self._hazards
        belief = STRENGTH * self._weight
        self._hazards = [
            (ended + belief * before) / (entered + belief)
            for ended, entered, before in zip(self._ended, self._entered, above, strict=True)
        ]
        self._shares = _cumulated(self._hazards)
        self._means.clear()
        self._from_start = None
        self._news = 0.0
        self.drawn += 1

    def _rescale(self) -> None:
        self._entered = [value / self._weight for value in self._entered]
        self._ended = [value / self._weight for value in self._ended]
        self._weight = 1.0


def _cumulated(hazards: list[float]) -> list[float]:
    shares, left = [1.0], 1.0
    for hazard in hazards:
        left *= 1.0 - hazard if hazard < 0.999 else 1.0 - 0.999  # noqa: PLR2004
        shares.append(left if left > 1e-12 else 1e-12)  # noqa: FURB136, PLR2004  # a call costs more
    return shares


def _at(shares: list[float], tokens: int) -> float:
    """S at a length, straight within a bucket."""
    index, part = _place(tokens)
    return shares[index] + part * (shares[index + 1] - shares[index])


def _place(tokens: int) -> tuple[int, float]:
    """The bucket of a length, and which part of it lies below."""
    index = bucket(tokens)
    low, high = EDGES[index], EDGES[index + 1]
    return index, min(1.0, (tokens - low) / (high - low))


@lru_cache(maxsize=4)  # there is one grid of horizons
def _places(horizons: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """The same of each horizon."""
    return tuple(_place(more) for more in horizons)


class LengthBook:
    """All levels, found by client and kind."""

    def __init__(self, priors: Mapping[str, tuple[tuple[int, float], ...]] = PRIORS) -> None:
        self._kinds = {
            kind: Lengths(Lengths(None, _prior_hazards(points))) for kind, points in priors.items()
        }
        self._classes: OrderedDict[tuple[str, str], Lengths] = OrderedDict()

    def of(self, client: str, kind: str) -> Lengths:
        """What is known of this client's answers of this kind; an unknown kind counts as chat."""
        kind = kind if kind in self._kinds else USUAL
        key = (client, kind)
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = Lengths(self._kinds[kind])
            if len(self._classes) > MOST_CLASSES:
                self._classes.popitem(last=False)
        self._classes.move_to_end(key)
        return found
