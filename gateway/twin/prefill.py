"""One prefill step: it takes the KV of its tokens, and needs activations beside the pool.

Either may be what kills the process, see `deaths`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.twin import deaths
from gateway.twin.jobs import Phase

if TYPE_CHECKING:
    from gateway.twin.jobs import Counters, Job
    from gateway.twin.memory import Memory
    from gateway.twin.steps import Activations


class Death(Exception):
    """The process ends; the message is what its log says then."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes: tokens, and pairs of a token and one of its context."""

    computed: int
    pairs: int


def take(
    batch: list[tuple[Job, int]],
    memory: Memory,
    activations: Activations,
    counters: Counters,
    now: float,
) -> Work:
    """Begin to prefill jobs, each so many tokens. Raises Death."""
    computed = pairs = context = 0
    for job, size in batch:
        if job.phase is Phase.WAITING:
            job.phase, job.admitted = Phase.PREFILL, now
            counters.started(job)
        if not memory.grow(job, size):
            raise Death(deaths.prefill(size, memory.pool.free))
        computed += size
        pairs += size * (job.filled - size // 2)
        context += job.filled
    peak = activations.peak(computed, context)
    counters.peak_activation_bytes = max(counters.peak_activation_bytes, peak)
    if peak > activations.headroom:
        raise Death(deaths.activations(computed, context, peak, activations.headroom))
    return Work(computed, pairs)
