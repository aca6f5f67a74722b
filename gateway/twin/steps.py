"""How long a step takes and how much memory it needs for a moment.

Time is a roofline: a step reads every weight and the KV of the sequences in it, and multiplies;
the slower of the two sets the pace, on top of a fixed cost of launching it. Decode is bound by
reading, prefill by multiplying.

Memory outside the pool is what kills processes: a prefill step needs activations for each of its
tokens, and scratch that grows with the contexts it attends to. When the sum passes the headroom that
the memory fraction left free, the process dies of torch.OutOfMemoryError however empty the pool is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

FEW = 24  # steps below which a loop is quicker than numpy


@dataclass(frozen=True, slots=True)
class Speed:
    """A roofline. Bytes, FLOP, seconds; rates are the whole box's."""

    weights: float  # bytes read by each step
    bandwidth: float  # bytes/s really reached
    cell: float  # KV bytes per token read by attention
    flops: float  # FLOP/s really reached in prefill
    per_token: float  # FLOP per computed token: 2 x active parameters
    attention: float = 0.0  # FLOP per (computed token x context token)
    overhead: float = 0.002  # seconds per step: scheduling and launches
    per_sequence: float = 0.0  # seconds per sequence in a step: sampling

    def step(self, *, prefill: int, computed: int, pairs: float, decode: int, read: int) -> float:
        """Seconds of a step with `prefill` sequences that compute `computed` prompt tokens over
        `pairs` (token x context) pairs, and `decode` sequences that read `read` tokens of KV."""
        fixed = self.overhead + (prefill + decode) * self.per_sequence
        multiplying = self._multiplying(computed + decode, pairs)
        return fixed + max((self.weights + read * self.cell) / self.bandwidth, multiplying)

    def ends(self, now: float, steps: int, *, decode: int, read: int) -> list[float]:
        """When each of `steps` decode steps in a row ends, the first of them beginning now. Each
        reads `decode` tokens more than the one before: the very sums `step` would give."""
        if steps < FEW:
            out = []
            for step in range(steps):
                now += self.step(
                    prefill=0, computed=0, pairs=0.0, decode=decode, read=read + step * decode
                )
                out.append(now)
            return out
        reads = np.arange(read, read + steps * decode, decode, dtype=np.float64)
        fixed = self.overhead + decode * self.per_sequence
        seconds = np.empty(steps + 1)
        seconds[0] = now
        seconds[1:] = fixed + np.maximum(
            (self.weights + reads * self.cell) / self.bandwidth, self._multiplying(decode, 0.0)
        )
        return cast("list[float]", np.cumsum(seconds)[1:].tolist())

    def _multiplying(self, tokens: int, pairs: float) -> float:
        return (tokens * self.per_token + pairs * self.attention) / self.flops


@dataclass(frozen=True, slots=True)
class Activations:
    """Memory a prefill step needs beside the pool. Bytes."""

    headroom: float  # free when the server has started; float("inf"): never the limit
    per_token: float = 0.0  # per token computed in the step
    per_context: float = 0.0  # per token of context of the sequences the step prefills

    def peak(self, computed: int, context: int) -> float:
        """Bytes that a step with `computed` prompt tokens over `context` needs."""
        return computed * self.per_token + context * self.per_context
