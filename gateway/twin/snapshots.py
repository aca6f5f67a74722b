"""What the scheduler last published about itself, for /v1/loads and /metrics.

SGLang publishes its load at each prefill, every 15 decode steps and when idle; the gauges of
/metrics move at each prefill and every 40 decode steps. Between those, readers see old numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.twin.jobs import Counters, Job
    from gateway.twin.memory import Memory

LOADS_EVERY = 15  # decode steps: --load-snapshot-publish-interval
GAUGES_EVERY = 40  # decode steps: --decode-log-interval


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Requests, tokens and rates at engine time `at`."""

    at: float
    capacity: int
    running: int = 0
    waiting: int = 0
    used: int = 0
    total: int = 0  # used plus what the queue still has to prefill
    unread: int = 0  # prompt tokens of the queue, and of a prompt of which chunks are left
    read: int = 0  # prompt tokens computed since the start
    read_s: float = 0.0  # what that took
    evictable: int = 0
    generated: int = 0  # tokens since the start
    throughput: float = 0.0  # generated tokens/s since the gauges last moved
    ratio: float = 0.0
    hit_rate: float = 0.0
    retracted: int = 0


def take(
    now: float,
    memory: Memory,
    *,
    running: int,
    waiting: list[Job],
    prefilling: list[Job],
    counters: Counters,
    ratio: float,
    last: Snapshot,
) -> Snapshot:
    """The state of a scheduler; rates since `last`."""
    span = now - last.at
    made = counters.generated_tokens
    queued = sum(job.target for job in waiting)
    return Snapshot(
        at=now,
        capacity=memory.pool.capacity,
        running=running,
        waiting=len(waiting),
        used=memory.used,
        total=memory.used + queued,
        unread=queued + sum(job.target - job.filled for job in prefilling),
        read=counters.prefill_tokens,
        read_s=counters.prefill_s,
        evictable=memory.cache.evictable,
        generated=made,
        throughput=(made - last.generated) / span if span > 0 else last.throughput,
        ratio=ratio,
        hit_rate=counters.cached_tokens / max(1, counters.prompt_tokens),
        retracted=counters.retractions,
    )


def crossed(before: int, after: int, every: int) -> bool:
    """Did a counter that went from `before` to `after` pass a multiple of `every`?"""
    return after // every > before // every
