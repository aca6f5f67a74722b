"""The running batch: jobs that all take the same decode steps, counted once for all of them.

A decode step gives every running job one token. Touching each of them would make a step cost as
much as the batch is large; so the batch counts steps, a job remembers the count at which it joined
(`jobs.Job.batch`), and its tokens follow from the two. What the scheduler needs of all of them
together is kept as sums: tokens whose KV exists, pages that the next step opens, the first end.
"""

from __future__ import annotations

import heapq
from operator import itemgetter
from typing import TYPE_CHECKING

from gateway.twin.jobs import Beat, Phase

if TYPE_CHECKING:
    from gateway.twin.jobs import Job


class Batch(Beat):
    """Running jobs in the order in which they joined. `page` in tokens."""

    def __init__(self, page: int) -> None:
        super().__init__()
        self.jobs: dict[str, Job] = {}
        self.filled = 0  # tokens whose KV exists or is made in the step in progress
        self._page = page
        # Jobs by the step, modulo the page, at which their next token opens a page.
        self._opening = [0] * page
        self._joined = 0
        self._order: dict[str, int] = {}
        self._ends: list[tuple[int, int, Job]] = []  # a heap of (step, order of joining, job)

    def __len__(self) -> int:
        return len(self.jobs)

    def __contains__(self, job: Job) -> bool:
        return self.jobs.get(job.rid) is job

    def join(self, job: Job) -> None:
        """`job` has its first token and decodes from the next step on. No step is in progress."""
        job.phase = Phase.RUNNING
        self.jobs[job.rid] = job
        self.filled += job.filled
        self._opening[self._opens_at(job)] += 1
        self._joined += 1
        self._order[job.rid] = self._joined
        heapq.heappush(self._ends, (self.ended + job.length - job.out, self._joined, job))
        job.step_with(self)

    def leave(self, job: Job) -> None:
        """`job` decodes no more. No step is in progress."""
        del self.jobs[job.rid], self._order[job.rid]
        job.step_alone()
        self.filled -= job.filled
        self._opening[self._opens_at(job)] -= 1

    def begin(self, steps: int) -> None:
        """Every job has got the KV of `steps` more tokens."""
        self.begun += steps
        self.filled += steps * len(self.jobs)

    def end(self, steps: int) -> list[Job]:
        """`steps` steps are done; those jobs that end with them, in the order of joining."""
        self.ended += steps
        over: list[tuple[int, Job]] = []
        while self._ends and self._ends[0][0] <= self.ended:
            _, order, job = heapq.heappop(self._ends)
            if self._order.get(job.rid) == order:  # it is still in, and has not left and come back
                over.append((order, job))
        return [job for _, job in sorted(over, key=itemgetter(0))]

    def opens(self, steps: int = 1) -> int:
        """Pool tokens that the next `steps` steps take: whole pages."""
        rounds, rest = divmod(steps, self._page)
        pages = rounds * len(self.jobs)
        for step in range(rest):
            pages += self._opening[(self.begun + step) % self._page]
        return pages * self._page

    def until_end(self) -> int:
        """Steps until the first job ends, the one in progress included. There must be one."""
        while True:
            step, order, job = self._ends[0]
            if self._order.get(job.rid) == order:
                return step - self.ended
            heapq.heappop(self._ends)

    def _opens_at(self, job: Job) -> int:
        return (self.begun - (job.filled - job.shared)) % self._page
