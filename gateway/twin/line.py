"""Jobs that have not begun, or must begin anew: those handed in, then the scheduler's queue.

What is handed in lies in the inbox until the step in progress ends. Then it is clipped to the engine's
limits, and a prompt that is too long is refused late: it is scheduled all the same, as one of a single token.
A queue that is bounded turns away who comes when it is full, also who was thrown out of the batch.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gateway.twin.jobs import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.twin.jobs import Counters, Job
    from gateway.twin.limits import Limits


class Line:
    """`most` may wait in the queue; None: any number."""

    def __init__(self, limits: Limits, most: int | None, counters: Counters) -> None:
        self.inbox: deque[Job] = deque()
        self.queue: list[Job] = []
        self._limits = limits
        self._most = most
        self._counters = counters

    def __len__(self) -> int:
        return len(self.queue) + len(self.inbox)

    def arrivals(self) -> Iterator[Job]:
        """Empty the inbox: its jobs as they are to be scheduled, less those that were dropped there."""
        while self.inbox:
            job = self.inbox.popleft()
            if job.phase is Phase.DONE:
                continue
            job.limit = self._limits.cap(job.prompt, job.cap)
            job.refusal = self._limits.refusal(job.prompt)
            if job.refusal is not None:
                job.prompt, job.blocks, job.limit = 1, (), 1
            yield job

    def join(self, job: Job) -> bool:
        """Put it at the end of the queue; False where that is full."""
        counters = self._counters
        if self._most is not None and len(self.queue) >= self._most:
            counters.refused_queue_full += 1
            return False
        job.phase = Phase.WAITING
        self.queue.append(job)
        counters.peak_waiting = max(counters.peak_waiting, len(self.queue))
        return True
