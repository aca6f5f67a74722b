"""The VRAM budget chain of an SGLang server: from free memory to pool, context and headroom.

    pool     = floor_page((available · fraction − weights − state) / cell)      tokens
    headroom = available · (1 − fraction) − overhead                            GiB
    context  = pool − slack − page − 256, down to a multiple of 1,024           tokens

`available` is what is free on the card once the distributed group is up, not its nominal size; the
engine reads it there (profile of the KV pool, 0.5.6-0.5.23). Weights and state are charged to the
fraction; CUDA graphs, workspaces, activations and the sampler live in what the fraction leaves.

Checked against incident B (24 GB card, 27B model in 4 bits, cell 32 KiB, 23.2 GiB available):
pools 120,079 and 105,256 were measured at 0.95 and 0.93, the chain gives 120,258 and 105,054;
headroom 0.65, 1.09 and 1.35 GiB at 0.95, 0.93, 0.92, the chain gives 0.64, 1.10, 1.34.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 1 << 30

OVERHEAD_GIB = 0.52
"""CUDA graphs, attention workspace (FlashInfer's alone is 384 MiB) and allocator remains that come
out of the headroom. Fitted to the three points of incident B; another model or graph batch size has
another: --measured corrects it."""

SLACK = 0.01
"""Part of the pool no single request should count on: the gate's own default `kv_slack`."""

CHAIN_ERROR = 256
"""Tokens by which the chain itself may be off: on incident B it was by up to 202."""

STEP = 1024
"""Context lengths are given in multiples of this, as people do and as pages divide it."""

FIT_AT_LEAST = 2
"""A line takes two points."""


class ChainError(ValueError):
    """The numbers given make no chain. The message says which and what is needed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A start of this very server: what its log said for one fraction."""

    fraction: float
    pool_tokens: int  # max_total_num_tokens
    headroom_gib: float | None = None  # available_gpu_mem at the end of the start


@dataclass(frozen=True, slots=True)
class Row:
    """What one fraction gives."""

    fraction: float
    pool_tokens: int
    headroom_gib: float
    context_tokens: int  # 0: no useful context fits


@dataclass(frozen=True, slots=True)
class Chain:
    """The links. GiB, bytes and tokens of one rank."""

    available_gib: float
    weights_gib: float
    state_gib: float
    cell_bytes: float
    page: int = 1
    overhead_gib: float = OVERHEAD_GIB
    error_tokens: int = CHAIN_ERROR  # 0 once calibrated
    longest: int | None = None  # the model's own longest context

    def __post_init__(self) -> None:
        """Raises ChainError where a link cannot be so."""
        if not 0 < self.available_gib < math.inf:
            raise ChainError(_needed("available memory", self.available_gib, "above 0 GiB"))
        if not 0 < self.cell_bytes < math.inf:
            raise ChainError(_needed("cell size", self.cell_bytes, "above 0 bytes a token"))
        links = {"weights": self.weights_gib, "state": self.state_gib}
        links |= {"overhead": self.overhead_gib}
        for name, gib in links.items():
            if not 0 <= gib < math.inf:
                raise ChainError(_needed(name, gib, "0 GiB or more"))
        if self.page < 1:
            raise ChainError(_needed("page size", self.page, "at least 1 token"))

    def pool(self, fraction: float) -> int:
        """KV tokens at this fraction; 0 where weights and state leave none."""
        left = self.available_gib * fraction - self.weights_gib - self.state_gib
        tokens = int(left * GIB / self.cell_bytes)
        return max(0, tokens // self.page * self.page)

    def headroom(self, fraction: float) -> float:
        """GiB left for prefills and samplers; negative where even the graphs do not fit."""
        return self.available_gib * (1 - fraction) - self.overhead_gib

    def context(self, fraction: float) -> int:
        """The longest context worth promising: one such request fits beside the slack."""
        context = context_for(self.pool(fraction), self.page, self.error_tokens)
        return context if self.longest is None else min(context, self.longest)

    def row(self, fraction: float) -> Row:
        """All of it. Raises ChainError on a fraction that is none."""
        if not 0 < fraction < 1:
            raise ChainError(_needed("fraction", fraction, "between 0 and 1"))
        return Row(fraction, self.pool(fraction), self.headroom(fraction), self.context(fraction))

    def fraction_for(self, context: int) -> float:
        """The fraction whose pool holds one request of `context` tokens; 1 or more: none does."""
        pool = (context + self.page + self.error_tokens + 1) / (1 - SLACK) + self.page
        bytes_needed = pool * self.cell_bytes / GIB + self.weights_gib + self.state_gib
        return bytes_needed / self.available_gib


def context_for(pool: int, page: int, error_tokens: int = 0) -> int:
    """The largest multiple of 1,024 that one request may fill in a pool of that size."""
    return max(0, pool - math.ceil(pool * SLACK) - page - error_tokens) // STEP * STEP


def calibrate(chain: Chain, points: Sequence[Measured]) -> Chain:
    """The chain through two or more measured starts, by least squares.

    The cell is arithmetic and stays; the slope of the pools then tells what was really available,
    and their height what really was taken by weights and state together (the difference is put on
    the weights). Headrooms, where given, tell the overhead. Raises ChainError where the points do
    not make a line that rises.
    """
    if len(points) < FIT_AT_LEAST:
        raise ChainError("Calibration takes two measured points or more; give --measured twice.")
    mean_f = sum(p.fraction for p in points) / len(points)
    mean_n = sum(p.pool_tokens for p in points) / len(points)
    spread = sum((p.fraction - mean_f) ** 2 for p in points)
    if spread == 0:
        raise ChainError("The measured points share one fraction; measure at two.")
    slope = sum((p.fraction - mean_f) * (p.pool_tokens - mean_n) for p in points) / spread
    if slope <= 0:
        raise ChainError("The measured pools do not grow with the fraction; check the points.")
    available = slope * chain.cell_bytes / GIB
    taken = available * mean_f - mean_n * chain.cell_bytes / GIB
    if taken < 0:
        raise ChainError(
            "The measured points leave less than nothing for weights and state; "
            "check the points and the cell size."
        )
    seen = [(p.fraction, p.headroom_gib) for p in points if p.headroom_gib is not None]
    overhead = chain.overhead_gib
    if seen:
        overhead = sum(available * (1 - f) - gib for f, gib in seen) / len(seen)
    return replace(
        chain,
        available_gib=available,
        weights_gib=max(0.0, taken - chain.state_gib),
        state_gib=min(chain.state_gib, taken),
        overhead_gib=max(0.0, overhead),
        error_tokens=0,
    )


def _needed(what: str, was: float, needed: str) -> str:
    return f"The {what} must be {needed}; {was:g} was given."
