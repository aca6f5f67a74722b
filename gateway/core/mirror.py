"""What the engine itself would start now: its own arithmetic, kept beside the ledger.

SGLang (0.5.6-0.5.23, PrefillAdder) starts a candidate while prompt + min(cap, 4,096) + page is
strictly less than what is free, less min(cap - out, 4,096) x ratio for each that runs. What it does
not start waits inside it, first come first served, out of the gate's reach. So the gate lets go
only what the engine would start at once; then all waiting is the gate's, where it is fair and can
be refused.

The ratio begins at 0.7 x conservativeness, falls to 14 % of that over 600 decode steps, and begins
anew when the server idles. A decode step gives each running sequence one token, so tokens streamed
divided by sequences running counts the steps. Where the server says its ratio, that is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

CLIP = 4_096
"""SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION, tokens (0.5.6-0.5.23)."""

INIT_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
MIN_FACTOR = 0.14  # SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR
DECAY_STEPS = 600  # SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS


@dataclass(slots=True)
class Mirror:
    """Sums over one pool, tokens."""

    conservativeness: float = 1.0
    occupied: int = 0  # prompts and output so far of what decodes, a page each
    growth: int = 0  # what those may still produce, each clipped
    sequences: int = 0  # that decode
    starting: int = 0  # what was asked for what is not prefilled yet
    steps: float = 0.0  # decode steps since the ratio began
    said: float | None = None  # the ratio as the server last said it

    @property
    def ratio(self) -> float:
        """The share of its growth that the engine keeps free for each that runs."""
        first = min(INIT_RATIO * self.conservativeness, 1.0)
        if self.said is not None:
            return self.said
        least = first * MIN_FACTOR
        return max(least, first - (first - least) * self.steps / DECAY_STEPS)

    def room(self, limit: int) -> float:
        """Tokens a candidate may ask for at most."""
        return limit - self.occupied - self.growth * self.ratio - self.starting

    def decodes(self, start: int, occupied: int, growth: int, sequences: int) -> None:
        """A request is prefilled."""
        self.starting -= start
        self.occupied += occupied
        self.growth += growth
        self.sequences += sequences

    def grew(self, tokens: int, growth: int) -> None:
        """A decoding request has `tokens` more and `growth` less before it."""
        self.occupied += tokens
        self.growth -= growth
        self.steps += tokens / max(self.sequences, 1)

    def left(self, occupied: int, growth: int, sequences: int) -> None:
        """A decoding request is gone."""
        self.occupied -= occupied
        self.growth -= growth
        self.sequences -= sequences

    def idle(self) -> None:
        """Nothing is held: the server begins with its first ratio again."""
        self.steps, self.said = 0.0, None
