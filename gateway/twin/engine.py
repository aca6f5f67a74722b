"""SGLang's scheduler as a pure, clock-driven machine.

Theory of operation
-------------------
The scheduler is a loop: receive, choose a batch, run it, process the result. A step that began at
`t` ends at ``t + duration``; what arrives meanwhile is seen at its end. `advance(now)` plays every
step that ends by `now` and returns what happened; `next_wakeup()` says when the current step ends.

Each pass prefers prefill: first the next chunk of a long prompt, then waiting requests as far as
`intake` lets them in. Only when there is nothing to prefill does the batch decode, one token a
sequence. A decode step that finds no page evicts cached prefixes, then retracts requests
(`retraction`): they go to the END of the queue and are prefilled again, prompt and output, when
their turn comes.

What kills it
-------------
- A chunk of a long prompt that must go on while nothing is free: "Prefill out of memory". The
  chunk is scheduled at full size although the pool cannot hold it (`Budget.chunk_size`). Plain
  scheduling does not get there, because decode waits while a prompt is in chunks; with mixed
  chunks the others keep growing, unchecked, into the room that the rest of the prompt needs.
- A prefill step whose activations exceed the headroom: torch.OutOfMemoryError (`steps`).
- Until 0.5.6: the last request in the batch finds no page (an assertion).
- `Profile.dry_pool_kills`: a pool that runs dry ends the process instead of retracting. This is
  given to a box, not derived. Incident A records that over-committing the pool with a third request
  ended in CUDA out of memory and a dead scheduler, not which allocation failed; the genuine CPU
  server only ever retracts. The profile reproduces the recorded outcome at the moment at which the
  over-commit becomes real.
Admissions whose prompts and caps fit the pool together reach none of these but the second.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gateway.twin import intake
from gateway.twin.budget import NewTokenRatio
from gateway.twin.jobs import Counters, Died, Ending, Event, Finished, Job, Phase, Progress
from gateway.twin.memory import Memory
from gateway.twin.retraction import retract
from gateway.twin.snapshots import GAUGES_EVERY, LOADS_EVERY, Snapshot

if TYPE_CHECKING:
    from gateway.twin.profiles import Profile
    from gateway.twin.versions import Traits

QUEUE_FULL = "The request queue is full."
LAST_REQUEST = (
    "Out of memory even after retracting all other requests in the decode batch. "
    "Aborting the last request."
)
INPUT_MARGIN = 5  # tokens between the longest sequence and the longest prompt taken
_UNLIMITED = 1 << 30  # SGLang's own stand-in for "no cap"
_GIB = 1 << 30


class Engine:
    """One scheduler over one pool of `pool` tokens (default the profile's). `now` never goes
    back. Not thread-safe."""

    def __init__(self, profile: Profile, traits: Traits, *, pool: int | None = None) -> None:
        self.profile = profile
        self.traits = traits
        capacity = profile.pool if pool is None else pool
        self.memory = Memory(capacity, profile.page, profile.block, radix=profile.radix)
        self.pool = self.memory.pool
        self.ratio = NewTokenRatio(profile.conservativeness)
        self.counters = Counters()
        self.dead: str | None = None
        self.snapshot = Snapshot(at=0.0, capacity=self.pool.capacity)
        self.gauges = self.snapshot
        self._inbox: deque[Job] = deque()
        self._aborts: list[str] = []
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._chunked: Job | None = None
        self._jobs: dict[str, Job] = {}
        self._full = False
        self._prefilling: list[Job] = []  # in the step in progress
        self._decoding: list[Job] = []  # in the step in progress
        self._busy_until: float | None = None
        self._events: list[Event] = []

    # ---- what others may look at

    @property
    def max_length(self) -> int:
        """Longest prompt plus output of one sequence: SGLang's max_req_len."""
        return min(self.profile.context, self.pool.capacity) - 1

    @property
    def max_input(self) -> int:
        """Longest prompt taken: `max_req_input_len` of /server_info."""
        return self.max_length - INPUT_MARGIN

    @property
    def running(self) -> int:
        """Sequences that decode or are in prefill."""
        return len({id(job) for job in (*self._running, *self._prefilling)})

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting) + len(self._inbox)

    @property
    def used(self) -> int:
        """Pool tokens in use; cached prefixes nobody uses do not count."""
        return self.memory.used

    @property
    def in_flight(self) -> int:
        """Jobs that have not ended."""
        return len(self._jobs)

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or arrives."""
        return not self._jobs

    def effective_cap(self, prompt: int, cap: int | None) -> int:
        """The cap in force: what the engine silently clips the client's to."""
        limit = _UNLIMITED if cap is None else cap
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
        `start` false (a frozen scheduler) it is only left in the inbox. A dead engine loses it."""
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
        """The scheduler dies now; what is in flight never ends."""
        if self.dead is None:
            self.dead = reason
            self._busy_until = None
            self._events.append(Died(now, reason, len(self._jobs)))

    def next_wakeup(self) -> float | None:
        """When something will have happened; None while idle or dead."""
        return self._busy_until

    def advance(self, now: float) -> list[Event]:
        """Play every step that ends by `now`; what happened, in order."""
        while self._busy_until is not None and self._busy_until <= now:
            at, self._busy_until = self._busy_until, None
            self._complete(at)
            self._begin(at)
        events, self._events = self._events, []
        return events

    def publish(self, now: float) -> Snapshot:
        """Bring what /v1/loads reads up to date."""
        made, prompts = self.counters.generated_tokens, self.counters.prompt_tokens
        last = self.gauges
        span = now - last.at
        self.snapshot = Snapshot(
            at=now,
            capacity=self.pool.capacity,
            running=len(self._running),
            waiting=len(self._waiting),
            used=self.used,
            total=self.used + sum(job.target for job in self._waiting),
            evictable=self.memory.cache.evictable,
            generated=made,
            throughput=(made - last.generated) / span if span > 0 else last.throughput,
            ratio=self.ratio.now,
            hit_rate=self.counters.cached_tokens / prompts if prompts else 0.0,
            retracted=self.counters.retractions,
        )
        return self.snapshot

    # ---- the loop

    def _wake(self, now: float) -> None:
        if self._busy_until is None:
            self._begin(now)

    def _begin(self, now: float) -> None:
        """Start the next step, if there is anything to do."""
        self._receive(now)
        while self._waiting or self._running or self._chunked is not None:
            chosen = intake.plan(
                self.profile,
                self.traits,
                self.memory,
                waiting=self._waiting,
                running=self._running,
                chunked=self._chunked,
                ratio=self.ratio.now,
                full=self._full,
                now=now,
            )
            self._chunked, self._full = chosen.chunked, chosen.full
            if chosen.batch:
                self._run_prefill(chosen.batch, now)
            elif self._running:
                self._run_decode(now)
            else:
                return  # the head of the queue fits never: 0.5.6 with a cap of the whole pool
            if self._busy_until is not None or self.dead is not None:
                return
        self.ratio.reset()
        self.publish(now)

    def _receive(self, now: float) -> None:
        for prefix in self._aborts:
            for job in [job for rid, job in self._jobs.items() if rid.startswith(prefix)]:
                self._drop(job, now)
        self._aborts.clear()
        while self._inbox:
            job = self._inbox.popleft()
            if job.phase is Phase.DONE:
                continue
            job.limit = self.effective_cap(job.prompt, job.cap)
            if job.prompt > self.max_input:
                job.refusal = (
                    f"Input length ({job.prompt} tokens) exceeds the maximum allowed length "
                    f"({self.max_input} tokens). Use a shorter input or enable "
                    "--allow-auto-truncate."
                )
                job.prompt, job.blocks, job.limit = 1, (), 1
            self._enqueue(job, now)

    def _enqueue(self, job: Job, now: float) -> None:
        most = self.profile.max_queued
        if most is not None and len(self._waiting) >= most:
            self.counters.refused_queue_full += 1
            self._end(job, now, Ending.ABORT, status=503, message=QUEUE_FULL)
            return
        job.phase = Phase.WAITING
        self._waiting.append(job)
        self.counters.peak_waiting = max(self.counters.peak_waiting, len(self._waiting))

    def _drop(self, job: Job, now: float) -> None:
        """End `job` on request. No step is in progress."""
        if job is self._chunked and not self.traits.mid_chunk_abort:
            job.aborted = True
            return
        if job is self._chunked:
            self._chunked = None
        elif job in self._running:
            self._running.remove(job)
        elif job in self._waiting:
            self._waiting.remove(job)
        if job.phase is not Phase.WAITING:
            self.memory.release(job, now)
            self._full = False
        self._end(job, now, Ending.ABORT)

    # ---- steps

    def _run_prefill(self, batch: list[tuple[Job, int]], now: float) -> None:
        computed = pairs = context = 0
        for job, size in batch:
            if job.phase is Phase.WAITING:
                self._first_chunk(job, now)
            if not self.memory.grow(job, size):
                self.kill(
                    now,
                    "RuntimeError: Prefill out of memory. Try to lower your batch size. "
                    f"Try to allocate {size} tokens. Available tokens: {self.pool.free}",
                )
                return
            computed += size
            pairs += size * (job.filled - size // 2)
            context += job.filled
        peak = self.profile.activations.peak(computed, context)
        free = self.profile.activations.headroom
        self.counters.peak_activation_bytes = max(self.counters.peak_activation_bytes, peak)
        if peak > free:
            self.kill(
                now,
                f"torch.OutOfMemoryError: CUDA out of memory: a prefill step of {computed} tokens "
                f"over {context} needs {peak / _GIB:.2f} GiB, {free / _GIB:.2f} GiB are free",
            )
            return
        if self.profile.mixed_chunk and not self._mix_decode(now):
            return
        self._prefilling = [job for job, _ in batch]
        self.counters.prefill_steps += 1
        self.counters.prefill_tokens += computed
        self._occupy(now, computed, pairs)
        self.gauges = self.publish(now)

    def _mix_decode(self, now: float) -> bool:
        """Decode along with a prefill. SGLang checks nothing here: no page means death."""
        if not self.memory.fits_decode(self._running):
            self.kill(now, "RuntimeError: Decode out of memory. Try to lower your batch size.")
            return False
        for job in self._running:
            self.memory.grow(job, 1)
        self._decoding = list(self._running)
        return True

    def _first_chunk(self, job: Job, now: float) -> None:
        job.phase, job.admitted = Phase.PREFILL, now
        if not job.retractions:
            job.cached = job.shared
            self.counters.prompt_tokens += job.prompt
            self.counters.cached_tokens += job.cached

    def _run_decode(self, now: float) -> None:
        if not self._grow_running(now):
            return
        self.counters.decode_steps += 1
        if self.counters.decode_steps % GAUGES_EVERY == 0:
            self.gauges = self.publish(now)
        elif self.counters.decode_steps % LOADS_EVERY == 0:
            self.publish(now)
        self._occupy(now, 0, 0)

    def _grow_running(self, now: float) -> bool:
        """One more token of KV for each running job, retracting some if need be. False when that
        leaves none, or kills the scheduler."""
        if self.memory.fits_decode(self._running):
            self.ratio.decay()
        elif self.profile.dry_pool_kills:
            self.kill(
                now,
                f"torch.OutOfMemoryError: CUDA out of memory: the KV pool of {self.pool.capacity} "
                f"tokens is dry with {len(self._running)} requests running",
            )
            return False
        else:
            self._retract(now)
        for job in self._running:
            if not self.memory.grow(job, 1):
                self.kill(now, "AssertionError: No space left for only one request")
                return False
        self._decoding = list(self._running)
        return bool(self._decoding)

    def _retract(self, now: float) -> None:
        held = {job.rid: job.private for job in self._running}
        self._running, thrown, given_up = retract(
            self.memory, self._running, now, abort_last=self.traits.last_request_aborts
        )
        self._full = False
        self.ratio.after_retraction(self._running)
        if given_up is not None:
            self._end(given_up, now, Ending.ABORT, status=500, message=LAST_REQUEST)
        for job in thrown:
            job.retractions += 1
            self.counters.retractions += 1
            self.counters.wasted_tokens += held[job.rid]
            self._enqueue(job, now)

    def _occupy(self, now: float, computed: int, pairs: float) -> None:
        """The step in progress ends when the roofline says so."""
        counters = self.counters
        sequences = len(self._prefilling) + len(self._decoding)
        seconds = self.profile.speed.seconds(
            computed + len(self._decoding),
            sum(job.filled for job in self._decoding),
            pairs,
            sequences,
        )
        counters.busy_s += seconds
        counters.peak_used = max(counters.peak_used, self.used)
        counters.peak_running = max(counters.peak_running, self.running)
        self._busy_until = now + seconds

    # ---- results

    def _complete(self, now: float) -> None:
        prefilled, self._prefilling = self._prefilling, []
        decoded, self._decoding = self._decoding, []
        for job in prefilled:
            self.memory.share(job)
            if job.filled < job.target:
                self._full = False  # a chunk leaves the batch, which counts as one that ended
                continue
            job.phase = Phase.RUNNING
            self._running.append(job)
            self._produce(job, now)
        for job in decoded:
            self._produce(job, now)

    def _produce(self, job: Job, now: float) -> None:
        if job.refusal is not None:
            self._finish(job, now, Ending.ABORT, status=400, message=job.refusal)
        elif job.aborted:
            self._finish(job, now, Ending.ABORT)
        elif job.limit == 0:
            self._finish(job, now, Ending.LENGTH)
        else:
            job.out += 1
            self.counters.generated_tokens += 1
            if job.out < job.length:
                self._events.append(Progress(job, now, job.out))
            else:
                self._finish(job, now, Ending.STOP if job.want <= job.limit else Ending.LENGTH)

    def _finish(
        self, job: Job, now: float, ending: Ending, *, status: int | None = None, message: str = ""
    ) -> None:
        self._running.remove(job)
        self.memory.release(job, now)
        self._full = False
        self._end(job, now, ending, status=status, message=message)

    def _end(
        self, job: Job, now: float, ending: Ending, *, status: int | None = None, message: str = ""
    ) -> None:
        job.phase = Phase.DONE
        del self._jobs[job.rid]
        self.counters.finished += ending is not Ending.ABORT
        self.counters.aborted += ending is Ending.ABORT
        self._events.append(Finished(job, now, ending, job.out, status, message))
