"""What happens when decode finds no page: SGLang throws whole requests out and starts them over.

The requests with the fewest outputs go first, among equals the one with the longest prompt, until
the rest can take a step; at least one always goes. Their KV is freed, not cached. From 0.5.12 on, a
last request that still cannot grow is aborted; before, the scheduler died of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.twin.batch import Batch
    from gateway.twin.jobs import Job
    from gateway.twin.memory import Memory


LAST_REQUEST = (
    "Out of memory even after retracting all other requests in the decode batch. "
    "Aborting the last request."
)


def order(running: list[Job]) -> list[Job]:
    """`running` from the one kept longest to the first to go."""
    return sorted(running, key=lambda job: (job.out, -job.prompt), reverse=True)


def retract(
    memory: Memory, batch: Batch, now: float, *, abort_last: bool
) -> tuple[list[Job], Job | None]:
    """Free KV until the rest of `batch` can decode.

    Returns those thrown out, in the order they went; and the last one, when even alone it could not
    grow and `abort_last` says that it is given up.
    """
    keep = order(list(batch.jobs.values()))
    thrown: list[Job] = []
    while len(keep) > 1:
        thrown.append(job := keep.pop())
        _free(job, memory, batch, now)
        if memory.make_room(batch.opens()):
            break
    given_up: Job | None = None
    if abort_last and len(keep) == 1 and not memory.make_room(batch.opens()):
        given_up = keep.pop()
        _free(given_up, memory, batch, now)
    return thrown, given_up


def _free(job: Job, memory: Memory, batch: Batch, now: float) -> None:
    batch.leave(job)
    memory.release(job, now)
