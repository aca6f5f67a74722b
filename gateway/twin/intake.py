"""One prefill pass: which waiting jobs start now, and with how many tokens.

The order is first come first served, or longest cached prefix first (`lpm`, which falls back to
arrival order when more than 128 wait, because matching them all would take too long). The pass
stops at the first job that does not fit: SGLang never lets a small one pass a blocked head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.twin.budget import CLIP, Budget, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.twin.jobs import Job
    from gateway.twin.memory import Memory
    from gateway.twin.profiles import Profile
    from gateway.twin.versions import Traits

LPM_LIMIT = 128  # waiting requests beyond which SGLang's lpm orders by arrival


@dataclass(slots=True)
class Pass:
    """The outcome: jobs with the tokens they compute in this step, the job left half done, and
    whether the pool was the reason to stop (SGLang's batch_is_full)."""

    batch: list[tuple[Job, int]] = field(default_factory=list)
    chunked: Job | None = None
    full: bool = False


def plan(
    profile: Profile,
    traits: Traits,
    memory: Memory,
    *,
    waiting: list[Job],
    running: Mapping[str, Job],
    chunked: Job | None,
    ratio: float,
    full: bool,
    now: float,
) -> Pass:
    """Decide a pass and start its jobs: they leave `waiting` with their cached prefix locked."""
    if chunked is None and (full or not waiting):
        return Pass(full=full)
    budget = Budget(
        traits=traits,
        page=profile.page,
        room=memory.obtainable,
        chunk=profile.chunk,
        max_prefill=profile.max_prefill,
    )
    budget.expect(running.values(), ratio)
    if profile.mixed_chunk:
        budget.mix(len(running))
    outcome = Pass(full=full)
    if chunked is not None:
        _go_on(chunked, budget, outcome)
    if full:
        return outcome
    for job in order(profile.policy, memory, waiting):
        if len(running) + len(outcome.batch) >= profile.max_running:
            outcome.full = True
            break
        verdict = _start(job, budget, memory, outcome, now)
        if verdict is not Verdict.TAKEN:
            outcome.full = verdict is Verdict.NO_TOKEN
            break
        waiting.remove(job)
        if budget.spent:
            outcome.full = budget.room <= 0
            break
    # SGLang keeps the flag on the running batch. A pass that starts from an empty one replaces that
    # batch and loses the flag, so the next pass tries again: seen in the real server's log.
    outcome.full = outcome.full and bool(running)
    return outcome


def order(policy: str, memory: Memory, waiting: list[Job]) -> list[Job]:
    """`waiting` in the order in which `policy` tries it."""
    if policy != "lpm" or len(waiting) > LPM_LIMIT:
        return list(waiting)
    return sorted(waiting, key=lambda job: -len(memory.match(job)))


def _go_on(job: Job, budget: Budget, outcome: Pass) -> None:
    left = job.target - job.filled
    size = budget.chunk_size(left)
    budget.charge(size, min(job.limit, CLIP) if size == left else 0)
    outcome.batch.append((job, size))
    outcome.chunked = job if size < left else None


def _start(job: Job, budget: Budget, memory: Memory, outcome: Pass, now: float) -> Verdict:
    path = memory.match(job)
    # Locking the prefix takes it out of what is evictable, and so out of this pass's room.
    before = memory.obtainable
    memory.cache.lock(path)
    locked = before - memory.obtainable
    uncached = job.target - len(path) * memory.cache.block
    verdict, size = budget.weigh(job, uncached, budget.room - locked, first=not outcome.batch)
    if verdict is not Verdict.TAKEN:
        memory.cache.unlock(path, now)
        return verdict
    budget.room -= locked
    memory.attach(job, path)
    budget.charge(size, min(job.limit, CLIP) if size == uncached else 0)
    outcome.batch.append((job, size))
    if size < uncached:
        outcome.chunked = job
    return verdict
