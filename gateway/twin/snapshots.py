"""What the scheduler last published about itself, for /v1/loads and /metrics."""

from __future__ import annotations

from dataclasses import dataclass

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
    evictable: int = 0
    generated: int = 0  # tokens since the start
    throughput: float = 0.0  # generated tokens/s since the gauges last moved
    ratio: float = 0.0
    hit_rate: float = 0.0
    retracted: int = 0
