"""SGLang's scheduler as a pure, clock-driven machine.

Theory of operation
-------------------
The scheduler is a loop: receive, choose a batch, run it, process the result. A step that began at
`t` ends at ``t + duration``; what arrives meanwhile is seen at its end. `advance(now)` plays every
step that ends by `now` and returns what happened; `next_wakeup()` says when the current step ends.

Each pass prefers prefill: first the next chunk of a long prompt, then waiting requests as long as
`budget` lets them in, first come first served (or longest cached prefix first). Only when there is
nothing to prefill does the batch decode, one token a sequence. A decode step that finds no page
evicts cached prefixes, then retracts the requests with the fewest outputs: their KV is thrown away,
they go to the END of the queue and are prefilled again, prompt and output, when their turn comes.

What kills it
-------------
- A chunk of a long prompt that must go on while nothing is free: "Prefill out of memory". The
  chunk is scheduled at full size although the pool cannot hold it (`Budget.chunk_size`). Plain
  scheduling cannot get there, because decode waits while a prompt is in chunks; with mixed chunks
  the others keep growing into the room the rest of that prompt needs.
- A prefill step whose activations exceed the headroom: torch.OutOfMemoryError.
- 0.5.6 only: the last request in the batch finds no page (an assertion).
- `dry_pool_kills`: decode running out of pages ends the process instead of retracting. This is a
  property given to a box, not derived: incident A records that the third request which over-commits
  the pool ended in CUDA out of memory and a dead scheduler, without saying which allocation failed,
  and the genuine CPU server only ever retracts. The profile reproduces the recorded outcome at the
  moment at which the over-commit becomes real, when the pool is dry.
Admissions whose prompts and caps fit the pool together reach none of the memory deaths but the
activation one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gateway.twin.budget import CLIP, Budget, NewTokenRatio, Verdict
from gateway.twin.jobs import Counters, Died, Ending, Event, Finished, Job, Phase, Progress
from gateway.twin.pool import KvPool
from gateway.twin.radix import Block, RadixCache
from gateway.twin.snapshots import GAUGES_EVERY, LOADS_EVERY, Snapshot

if TYPE_CHECKING:
    from gateway.twin.profiles import Profile
    from gateway.twin.versions import Traits

QUEUE_FULL = "The request queue is full."
LAST_REQUEST = (
    "Out of memory even after retracting all other requests in the decode batch. "
    "Aborting the last request."
)


class Engine:
    """One scheduler over one pool. Not thread-safe; `now` never goes back."""

    def __init__(self, profile: Profile, traits: Traits, *, pool: int | None = None) -> None:
        self.profile = profile
        self.traits = traits
        self.pool = KvPool(pool if pool is not None else profile.pool, profile.page)
        self.cache = RadixCache(self.pool, profile.block, enabled=profile.radix)
        self.ratio = NewTokenRatio(profile.conservativeness)
        self.counters = Counters()
        self.dead: str | None = None
        self._inbox: deque[Job] = deque()
        self._aborts: list[str] = []
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._chunked: Job | None = None
        self._paths: dict[str, list[Block]] = {}
        self._jobs: dict[str, Job] = {}
        self._full = False  # SGLang's batch_is_full: no admission until something ends
        self._batch: list[tuple[Job, int]] = []
        self._decoding: list[Job] = []
        self._busy_until: float | None = None
        self._events: list[Event] = []
        self.snapshot = Snapshot(at=0.0, capacity=self.pool.capacity)
        self.gauges = self.snapshot
        self._published_tokens = 0

    # ---- what others may look at

    @property
    def max_input(self) -> int:
        """Longest prompt taken: `max_req_input_len` of /server_info."""
        return self.max_length - 5

    @property
    def max_length(self) -> int:
        """Longest prompt plus output of one sequence."""
        return min(self.profile.context, self.pool.capacity) - 1

    @property
    def running(self) -> int:
        """Sequences that decode, or whose prompt is in the current step."""
        return len(self._running) + len(self._batch) + (self._chunked_idle is not None)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting) + len(self._inbox)

    @property
    def waiting_tokens(self) -> int:
        """Tokens the queue still has to prefill."""
        return sum(job.target for job in self._waiting) + sum(job.target for job in self._inbox)

    @property
    def used(self) -> int:
        """Pool tokens in use; cached prefixes nobody uses do not count."""
        return self.pool.used - self.cache.evictable

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or arrives."""
        return not (self._jobs or self._inbox)

    @property
    def in_flight(self) -> int:
        """Jobs that have not ended."""
        return len(self._jobs)

    @property
    def _chunked_idle(self) -> Job | None:
        job = self._chunked
        return None if job is None or any(job is other for other, _ in self._batch) else job

    def job(self, rid: str) -> Job | None:
        """The live job `rid`."""
        return self._jobs.get(rid)

    def effective_cap(self, prompt: int, cap: int | None) -> int:
        """The cap in force: what the engine silently clips the client's to."""
        limit = cap if cap is not None else 1 << 30
        setting = self.profile.new_tokens_limit
        if setting is not None and self.traits.has_new_tokens_limit:
            limit = min(limit, setting)
        limit = min(limit, self.max_length - prompt - 1)
        if self.traits.clips_to_pool:
            page = self.pool.page
            limit = min(limit, self.pool.capacity - self.pool.pages(prompt) - page - 1)
        return max(limit, 0)

    # ---- what others may do

    def submit(self, job: Job, now: float, *, start: bool = True) -> None:
        """Hand in a job. It is seen when the step in progress ends, at once when idle; with
        `start` false (a frozen scheduler) it is only left in the inbox."""
        if self.dead is not None:
            return
        job.arrived = now
        self._inbox.append(job)
        self._jobs[job.rid] = job
        if start:
            self._wake(now)

    def abort(self, prefix: str, now: float, *, start: bool = True) -> None:
        """End every job whose rid starts with `prefix`: SGLang matches by prefix."""
        if self.dead is None:
            self._aborts.append(prefix)
            if start:
                self._wake(now)

    def postpone(self, seconds: float, now: float) -> None:
        """The scheduler stood still for `seconds` and goes on now."""
        if self._busy_until is not None:
            self._busy_until += seconds
        elif self.dead is None and (self._inbox or self._aborts):
            self._begin(now)

    def kill(self, now: float, reason: str) -> None:
        """The scheduler dies now."""
        if self.dead is None:
            self.dead = reason
            self._busy_until = None
            self._events.append(Died(now, reason))

    def next_wakeup(self) -> float | None:
        """When something will have happened; None while idle or dead."""
        return self._busy_until

    def advance(self, now: float) -> list[Event]:
        """Play every step that ends by `now`; what happened, in order."""
        while self._busy_until is not None and self._busy_until <= now:
            at = self._busy_until
            self._busy_until = None
            self._complete(at)
            if self.dead is None:
                self._begin(at)
        events, self._events = self._events, []
        return events

    def publish(self, now: float) -> Snapshot:
        """Bring what others read of the scheduler up to date."""
        last = self.gauges
        made = self.counters.generated_tokens
        span = now - last.at
        prompts = self.counters.prompt_tokens
        self.snapshot = Snapshot(
            at=now,
            capacity=self.pool.capacity,
            running=len(self._running),
            waiting=len(self._waiting),
            used=self.used,
            total=self.used + sum(job.target for job in self._waiting),
            evictable=self.cache.evictable,
            throughput=(made - self._published_tokens) / span if span > 0 else last.throughput,
            ratio=self.ratio.now,
            hit_rate=self.counters.cached_tokens / prompts if prompts else 0.0,
            retracted=self.counters.retractions,
        )
        return self.snapshot

    def _publish_gauges(self, now: float) -> None:
        self.gauges = self.publish(now)
        self._published_tokens = self.counters.generated_tokens

    # ---- the loop

    def _wake(self, now: float) -> None:
        if self._busy_until is None:
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._receive(now)
        budget = self._prefill_pass(now)
        if self.dead is not None:
            return
        if self._batch:
            self._run_prefill(now, budget)
        elif self._running:
            self._run_decode(now)
        elif not self._waiting:
            self.ratio.reset()
            self.publish(now)

    def _receive(self, now: float) -> None:
        for prefix in self._aborts:
            self._apply_abort(prefix, now)
        self._aborts.clear()
        while self._inbox:
            job = self._inbox.popleft()
            self._admit_to_queue(job, now)
        self.counters.peak_waiting = max(self.counters.peak_waiting, len(self._waiting))

    def _admit_to_queue(self, job: Job, now: float) -> None:
        if job.rid not in self._jobs:  # aborted while in the inbox
            return
        if not job.out and job.limit == 0:
            job.limit = self.effective_cap(job.prompt, job.cap)
            if job.prompt > self.max_input:
                job.refusal = (
                    f"Input length ({job.prompt} tokens) exceeds the maximum allowed length "
                    f"({self.max_input} tokens). Use a shorter input or enable "
                    "--allow-auto-truncate."
                )
                job.prompt, job.blocks, job.limit = 1, (), 1
        most = self.profile.max_queued
        if most is not None and len(self._waiting) >= most:
            self.counters.refused_queue_full += 1
            self._end(job, now, Ending.ABORT, status=503, message=QUEUE_FULL)
            return
        job.phase, job.queued = Phase.WAITING, now
        self._waiting.append(job)

    def _apply_abort(self, prefix: str, now: float) -> None:
        for job in [job for rid, job in self._jobs.items() if rid.startswith(prefix)]:
            if job.phase is Phase.WAITING:
                if job in self._waiting:
                    self._waiting.remove(job)
                self._end(job, now, Ending.ABORT)
            elif job is self._chunked and not self.traits.mid_chunk_abort:
                job.limit = 1  # the remaining chunks still run
            else:
                if job is self._chunked:
                    self._chunked = None
                elif job in self._running:
                    self._running.remove(job)
                self._release(job, now)
                self._end(job, now, Ending.ABORT)
                self._full = False

    # ---- prefill

    def _prefill_pass(self, now: float) -> Budget:
        budget = Budget(
            traits=self.traits,
            page=self.pool.page,
            room=self.pool.free + self.cache.evictable,
            chunk=self.profile.chunk,
            max_prefill=self.profile.max_prefill,
        )
        budget.expect(self._running, self.ratio.now)
        if self.profile.mixed_chunk:
            budget.mix(len(self._running))
        if self._chunked is not None:
            self._continue_chunk(self._chunked, budget)
        if not self._full:
            self._take_waiting(budget, now)
        return budget

    def _continue_chunk(self, job: Job, budget: Budget) -> None:
        left = job.target - job.filled
        size = budget.chunk_size(left)
        last = size == left
        budget.charge(size, min(job.limit, CLIP) if last else 0)
        self._batch.append((job, size))
        if last:
            self._chunked = None

    def _take_waiting(self, budget: Budget, now: float) -> None:
        for job in self._order_waiting():
            if budget.spent:
                return
            if len(self._running) + len(self._batch) >= self.profile.max_running:
                self._full = bool(self._running)
                return
            path = self.cache.match(job.blocks, job.target - 1) if job.refusal is None else []
            cached = len(path) * self.cache.block
            before = self.cache.evictable
            self.cache.lock(path, now)
            locked = before - self.cache.evictable
            uncached = job.target - cached
            verdict, size = budget.weigh(
                job, uncached, budget.room - locked, first=not self._batch
            )
            if verdict is not Verdict.TAKEN:
                self.cache.unlock(path, now)
                # SGLang keeps this flag on the running batch; a pass that starts from an empty one
                # replaces it, so the next pass tries again. Seen in the real server's log.
                self._full = verdict is Verdict.NO_TOKEN and bool(self._running)
                return
            budget.room -= locked
            self._start(job, path, cached, now)
            self._batch.append((job, size))
            if size < uncached:
                self._chunked = job
            budget.charge(size, 0 if size < uncached else min(job.limit, CLIP))

    def _order_waiting(self) -> list[Job]:
        if self.profile.policy != "lpm":
            return list(self._waiting)
        return sorted(self._waiting, key=lambda job: -len(self.cache.match(job.blocks, job.prompt)))

    def _start(self, job: Job, path: list[Block], cached: int, now: float) -> None:
        self._waiting.remove(job)
        self._paths[job.rid] = path
        job.phase, job.shared, job.filled, job.admitted = Phase.PREFILL, cached, cached, now
        if not job.retractions:
            job.cached = cached
            self.counters.prompt_tokens += job.prompt
            self.counters.cached_tokens += cached

    def _run_prefill(self, now: float, budget: Budget) -> None:
        del budget
        computed = pairs = context = 0
        for job, size in self._batch:
            if not self._grow(job, size):
                need = self.pool.pages(size)
                self.kill(
                    now,
                    "RuntimeError: Prefill out of memory. Try to lower your batch size. "
                    f"Try to allocate {need} tokens. Available tokens: {self.pool.free}",
                )
                return
            computed += size
            pairs += size * (job.filled - size // 2)
            context += job.filled
        if self.profile.mixed_chunk:
            self._decoding = self._make_room_for_decode(now)
            if self.dead is not None:
                return
        peak = self.profile.activations.peak(computed, context)
        self.counters.peak_activation_bytes = max(self.counters.peak_activation_bytes, peak)
        if peak > self.profile.activations.headroom:
            self.kill(
                now,
                f"torch.OutOfMemoryError: CUDA out of memory: a prefill step of {computed} tokens "
                f"over {context} needs {peak / 2**30:.2f} GiB, "
                f"{self.profile.activations.headroom / 2**30:.2f} GiB are free",
            )
            return
        read = sum(job.filled for job in self._decoding)
        sequences = len(self._batch) + len(self._decoding)
        self.counters.prefill_steps += 1
        self.counters.prefill_tokens += computed
        self._publish_gauges(now)
        self._occupy(now, computed + len(self._decoding), read, pairs, sequences)

    def _grow(self, job: Job, tokens: int) -> bool:
        """Give `job` KV for `tokens` more, evicting cached prefixes when needed."""
        need = self.pool.pages(job.filled + tokens - job.shared) - job.private
        if need > self.pool.free:
            self.cache.evict(need - self.pool.free)
            if need > self.pool.free:
                return False
        self.pool.take(need)
        job.private += need
        job.filled += tokens
        return True

    # ---- decode

    def _run_decode(self, now: float) -> None:
        self._decoding = self._make_room_for_decode(now)
        if self.dead is not None or not self._decoding:
            if self.dead is None:
                self._begin(now)
            return
        self.counters.decode_steps += 1
        if self.counters.decode_steps % LOADS_EVERY == 0:
            self.publish(now)
        if self.counters.decode_steps % GAUGES_EVERY == 0:
            self._publish_gauges(now)
        read = sum(job.filled for job in self._decoding)
        self._occupy(now, len(self._decoding), read, 0, len(self._decoding))

    def _make_room_for_decode(self, now: float) -> list[Job]:
        if self._fits_decode(self._running):
            self.ratio.decay()
        elif self.profile.dry_pool_kills:
            self.kill(
                now,
                "torch.OutOfMemoryError: CUDA out of memory: the KV pool of "
                f"{self.pool.capacity} tokens is dry with {len(self._running)} requests running",
            )
            return []
        else:
            self._retract(now)
        for job in self._running:
            if not self._grow(job, 1):
                self.kill(now, "AssertionError: No space left for only one request")
                return []
        return list(self._running)

    def _fits_decode(self, jobs: list[Job]) -> bool:
        need = sum(
            self.pool.pages(job.filled + 1 - job.shared) - job.private for job in jobs
        )
        if need > self.pool.free:
            self.cache.evict(need - self.pool.free)
        return need <= self.pool.free

    def _retract(self, now: float) -> None:
        keep = sorted(self._running, key=lambda job: (job.out, -job.prompt), reverse=True)
        out: list[Job] = []
        while len(keep) > 1:
            job = keep.pop()
            out.append(job)
            self.counters.wasted_tokens += job.filled - job.shared
            self._release(job, now)
            if self._fits_decode(keep):
                break
        doomed: list[Job] = []
        if self.traits.last_request_aborts and len(keep) == 1 and not self._fits_decode(keep):
            doomed = [keep.pop()]
            self._release(doomed[0], now)
        self._running = [job for job in self._running if job in keep]
        self._full = False
        self.ratio.after_retraction(self._running)
        for job in doomed:
            self._end(job, now, Ending.ABORT, status=500, message=LAST_REQUEST)
        for job in out:
            job.retractions += 1
            self.counters.retractions += 1
            self.counters.retracted_prompt_tokens += job.prompt
            self._admit_to_queue(job, now)

    # ---- the end of a step

    def _occupy(self, now: float, computed: int, read: int, pairs: float, sequences: int) -> None:
        seconds = self.profile.speed.seconds(computed, read, pairs, sequences)
        self.counters.busy_s += seconds
        self._busy_until = now + seconds

    def _complete(self, now: float) -> None:
        batch, self._batch = self._batch, []
        for job, _ in batch:
            if job.phase is not Phase.PREFILL:
                continue
            self._share(job, now)
            if job.filled < job.target:
                self._full = False  # a chunk leaves the batch, which counts as one that ended
                continue
            if not job.first:
                job.first = now
            job.phase = Phase.RUNNING
            self._running.append(job)
            self._produce(job, now)
        decoding, self._decoding = self._decoding, []
        for job in decoding:
            if job.phase is Phase.RUNNING:
                self.counters.decode_tokens += 1
                self._produce(job, now)

    def _produce(self, job: Job, now: float) -> None:
        job.out += 1
        self.counters.generated_tokens += 1
        if job.refusal is not None:
            self._finish(job, now, Ending.ABORT, status=400, message=job.refusal)
        elif job.limit == 0:
            job.out = 0
            self._finish(job, now, Ending.LENGTH)
        elif job.out >= job.length:
            self._finish(job, now, Ending.STOP if job.want <= job.limit else Ending.LENGTH)
        else:
            self._events.append(Progress(job.rid, now, job.out))

    def _share(self, job: Job, now: float) -> None:
        """Move the full blocks of what is prefilled into the cache, where equal ones meet."""
        if not self.cache.enabled:
            return
        path = self._paths[job.rid]
        size = self.cache.block
        whole = min(job.filled, job.prompt) // size
        for key in job.blocks[len(path) : whole]:
            node, new = self.cache.adopt(path[-1] if path else None, key, now)
            path.append(node)
            job.shared += size
            job.private -= size
            if not new:
                self.pool.give(size)

    def _finish(
        self, job: Job, now: float, ending: Ending, *, status: int | None = None, message: str = ""
    ) -> None:
        self._running.remove(job)
        self._release(job, now)
        self._full = False
        self._end(job, now, ending, status=status, message=message)

    def _release(self, job: Job, now: float) -> None:
        self.pool.give(job.private)
        self.cache.unlock(self._paths.pop(job.rid, []), now)
        job.private = job.shared = job.filled = 0
        job.phase = Phase.WAITING

    def _end(
        self, job: Job, now: float, ending: Ending, *, status: int | None = None, message: str = ""
    ) -> None:
        job.phase = Phase.DONE
        del self._jobs[job.rid]
        self.counters.finished += ending is not Ending.ABORT
        self.counters.aborted += ending is Ending.ABORT
        self._events.append(Finished(job.rid, now, ending, job.out, status, message))
