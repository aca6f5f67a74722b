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

    def run(
        self, steps: int, *, prefill: int, computed: int, pairs: float, decode: int, read: int
    ) -> list[float]:
        """Seconds of each of `steps` equal steps in a row.

        A step takes `prefill` sequences with `computed` prompt tokens over `pairs` (token x context)
        pairs, and `decode` sequences that read `read` tokens of KV, `decode` more each step.
        """
        fixed = self.overhead + (prefill + decode) * self.per_sequence
        tokens = computed + decode
        multiplying = (tokens * self.per_token + pairs * self.attention) / self.flops
        return [
            fixed
            + max((self.weights + (read + step * decode) * self.cell) / self.bandwidth, multiplying)
            for step in range(steps)
        ]


@dataclass(frozen=True, slots=True)
class Activations:
    """Memory a prefill step needs beside the pool. Bytes."""

    headroom: float  # free when the server has started; float("inf"): never the limit
    per_token: float = 0.0  # per token computed in the step
    per_context: float = 0.0  # per token of context of the sequences the step prefills

    def peak(self, computed: int, context: int) -> float:
        """Bytes that a step with `computed` prompt tokens over `context` needs."""
        return computed * self.per_token + context * self.per_context
