"""When the first token will come, once a request is sent.

Theory. The engine reads prompts in order of arrival, before it decodes on. So

    TTFT = rest of the decode step in progress           where only decoding goes on
         + what is left of the prompts being read        where some are
         + its own prompt, whose attention grows with the square.

The middle term is known in seconds: when the first token of the request sent last is due was predicted
when it was sent, so that a prompt nine tenths read counts a tenth. The first term is known where streams are
heard: each step sends each of them a token, so that a step's time less what has passed since is left; where
nothing was heard for so long, half of one. What the server has in its cache (see `prefix`) is not read again,
but looked at. So it is nearly linear in

    1, seconds until the others are read, tokens of its own to read, these times its prompt, rest of the step,

with coefficients that differ by machine: found by recursive least squares with forgetting (Ljung
1999), each sample weighted by 1/TTFT^2 so that the error is relative. The bound is the 95th
percentile of real over predicted among the last WINDOW requests sent alike (split conformal, in groups;
Vovk 2012): what is sent as a step ends is predicted far better than what comes in the middle of one.

Weighted so, a first token that took a hundred times longer than predicted hardly counts: its relative
error is 1 however wrong the prediction was, and its weight a ten-thousandth. One of those is chance.
IN_A_ROW of them beyond the bound are another machine: what was learned stays as a guess whose certainty
is gone, so that the next samples decide.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

FORGET = 0.99
"""The last 100 requests, twenty for each coefficient. The last 50 predict a tenth worse in the laboratory; a
machine that changed is noticed by itself (IN_A_ROW)."""

WINDOW = 200
LEVEL = 0.95
LEAST_SAMPLES = 20  # a 95th percentile of fewer is their maximum
LEAST_S = 1e-3
TESTED = 5  # as many as there are coefficients: fewer leave some at what was assumed
TESTED_S = 60.0
"""After so long without a sample a prediction is of another hour: what made it slow may be over."""
IN_A_ROW = 6
"""First tokens beyond the bound, which one in twenty is, after which the machine is another one. In the
laboratory, where it never is, six in a row changed one of six scenarios (`tools`, goodput +4 %, two seeds);
four also did where answers double and beside a runaway: requests that are sent together are late
together."""
_PRIOR = 1e4
"""Variance of coefficients before the first sample: they are unknown. And the most they may have:
directions without samples must not grow without end while others are forgotten."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds from sending to the first token: the likely, and the one that 95 % stay below."""

    likely: float
    high: float
    features: tuple[float, ...]
    timely: bool  # sent as a step ended

    @property
    def wait_s(self) -> float:
        """Of it, until the prompts before it are read."""
        return self.features[1]


class TtftModel:
    """One pool."""

    def __init__(self, prefill_rate: float) -> None:
        """`prefill_rate`, tokens per second, stands in until something was measured."""
        per_k = 1000.0 / prefill_rate
        self._weights = [0.05, 1.0, per_k, 0.0, 1.0]
        self._cov = _unknown(len(self._weights))
        self._errors = {timely: Errors() for timely in (False, True)}
        self._samples = 0
        self._tested_at = 0.0
        self._beyond = 0  # samples in a row that took longer than the bound

    def tested(self, now: float) -> bool:
        """Whether predictions rest on samples, and on recent ones."""
        return self._samples >= TESTED and now - self._tested_at <= TESTED_S

    def predict(
        self, left: int, prompt: int, wait_s: float, rest_s: float, *, timely: bool = False
    ) -> Prediction:
        """For `left` of `prompt` tokens to be read, others' for `wait_s` before, or after a step that
        goes on for `rest_s`. `timely`: sent as a step ended."""
        k = left / 1000.0
        features = (1.0, wait_s, k, k * prompt / 100_000.0, rest_s)
        likely = self._likely(features)
        return Prediction(likely, likely * self._errors[timely].bound, features, timely)

    def alone_s(self, prediction: Prediction) -> float:
        """What `prediction` was about, by what is known now, had its server had nothing else to do."""
        one, _, k, k_prompt, _ = prediction.features
        a, _, c, d, _ = self._weights
        return max(a * one + c * k + d * k_prompt, LEAST_S)

    def learn(self, prediction: Prediction, took_s: float, now: float) -> None:
        """What `prediction` was about took so long."""
        self._samples += 1
        self._tested_at = now
        took = max(took_s, LEAST_S)
        self._beyond = self._beyond + 1 if took > prediction.high else 0
        if self._beyond >= IN_A_ROW:
            self._beyond = 0
            self._cov = _unknown(len(self._weights))
        self._errors[prediction.timely].add(took / prediction.likely)
        # Weighted by 1/took: the error to be small is the relative one.
        x = [value / took for value in prediction.features]
        size = len(x)
        gain = [sum(self._cov[i][j] * x[j] for j in range(size)) for i in range(size)]
        scale = FORGET + sum(x[i] * gain[i] for i in range(size))
        error = 1.0 - sum(w * value for w, value in zip(self._weights, x, strict=True))
        for i in range(size):
            self._weights[i] += gain[i] / scale * error
        for i in range(size):
            for j in range(size):
                self._cov[i][j] = (self._cov[i][j] - gain[i] * gain[j] / scale) / FORGET
        for i in range(size):
            if self._cov[i][i] > _PRIOR:
                shrink = math.sqrt(_PRIOR / self._cov[i][i])
                for j in range(size):  # rows and columns alike: it stays a covariance
                    self._cov[i][j] *= shrink
                    self._cov[j][i] *= shrink

    def reads_at(self, rate: float, *, slower: bool) -> None:
        """So many tokens of a prompt are read in a second, or more; just so many where it may be `slower` than
        believed. For as long as nothing was `tested`: no sample, only a better guess."""
        per_k = 1000.0 / rate
        self._weights[2] = per_k if slower else min(per_k, self._weights[2])

    def _likely(self, features: tuple[float, ...]) -> float:
        # Written out: a generator would take five times as long, for each request that is read.
        a, b, c, d, e = self._weights
        one, wait, k, k_prompt, rest = features
        return max(a * one + b * wait + c * k + d * k_prompt + e * rest, LEAST_S)


class Errors:
    """Real over predicted, the last WINDOW of them."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    @property
    def bound(self) -> float:
        """What LEVEL of them stay below, 1 at least."""
        if len(self._sorted) < LEAST_SAMPLES:
            return 2.0
        rank = min(len(self._sorted) - 1, int(LEVEL * (len(self._sorted) + 1)))
        return max(1.0, self._sorted[rank])

    def add(self, ratio: float) -> None:
        """One more; the oldest goes."""
        self._recent.append(ratio)
        insort(self._sorted, ratio)
        if len(self._recent) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]


def _unknown(size: int) -> list[list[float]]:
    """The covariance of coefficients of which nothing is known."""
    return [[_PRIOR if i == j else 0.0 for j in range(size)] for i in range(size)]
