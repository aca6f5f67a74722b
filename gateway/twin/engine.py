"""SGLang's scheduler as a pure, clock-driven machine.

Theory of operation
-------------------
The scheduler is a loop: receive, choose a batch, run it, process the result. A step that began at
`t` ends at ``t + duration``; what arrives meanwhile is seen at its end. `advance(now)` plays every
step that ends by `now` and returns what happened; `next_wakeup()` says when the current step ends.

An engine made `coarse` takes runs of equal decode steps at once, for simulations of hours: the same
times and decisions, but it tells of first tokens and ends only, and publishes its load when asked.

Each pass prefers prefill: first the next chunk of a long prompt, then waiting requests as far as
`intake` lets them in. Only when there is nothing to prefill does the batch decode, one token a
sequence. A decode step that finds no page evicts cached prefixes, then retracts requests
(`retraction`): they go to the END of the queue and are prefilled again, prompt and output, when
their turn comes.

What kills it is in `deaths`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.twin import deaths, intake, prefill, snapshots
from gateway.twin.batch import Batch
from gateway.twin.budget import NewTokenRatio
from gateway.twin.jobs import Counters, Died, Ending, Event, Finished, Job, Phase, Progress
from gateway.twin.limits import Limits
from gateway.twin.line import Line
from gateway.twin.memory import Memory
from gateway.twin.pace import Pace, steps_alike
from gateway.twin.retraction import LAST_REQUEST, retract
from gateway.twin.snapshots import Snapshot

if TYPE_CHECKING:
    from gateway.twin.profiles import Profile
    from gateway.twin.versions import Traits

QUEUE_FULL = "The request queue is full."


class Engine:
    """One scheduler over one pool of `pool` tokens (default the profile's). `now` never goes
    back. Not thread-safe."""

    def __init__(
        self, profile: Profile, traits: Traits, *, pool: int | None = None, coarse: bool = False
    ) -> None:
        self.profile = profile
        self.traits = traits
        capacity = profile.pool if pool is None else pool
        self.memory = Memory(capacity, profile.page, profile.block, radix=profile.radix)
        self.pool = self.memory.pool
        self.limits = Limits(profile, traits, self.pool)
        self.ratio = NewTokenRatio(profile.conservativeness)
        self.counters = Counters()
        self.dead: str | None = None
        self.snapshot = self.gauges = Snapshot(at=0.0, capacity=self.pool.capacity)
        self._line = Line(self.limits, profile.max_queued, self.counters)
        self._aborts: list[str] = []
        self._batch = Batch(self.pool.page)
        self._chunked: Job | None = None
        self._jobs: dict[str, Job] = {}
        self._full = False
        self._prefilling: list[Job] = []  # in the step in progress
        self._decoding = 0  # jobs that decode in the step in progress: all of the batch, or none
        self._pace = Pace()
        self._coarse = coarse
        self._events: list[Event] = []

    # ---- what others may look at

    @property
    def running(self) -> int:
        """Sequences that decode or are in prefill."""
        return len(self._batch) + len(self._prefilling)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._line)

    @property
    def used(self) -> int:
        """Pool tokens in use; cached prefixes nobody uses do not count."""
        return self.memory.used

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or arrives."""
        return not self._jobs

    def knows(self, rid: str) -> bool:
        """Whether a job of this id has not ended."""
        return rid in self._jobs

    # ---- what others may do

    def submit(self, job: Job, now: float, *, start: bool = True) -> None:
        """Hand in a job. It is seen when the step in progress ends, at once when idle; with
        `start` false (a frozen scheduler) it is only left in the inbox. A dead engine loses it."""
        if start:
            self._play(now)
        if self.dead is not None:
            return
        job.arrived = now
        self._line.inbox.append(job)
        self._jobs[job.rid] = job
        if start:
            self._wake(now)

    def abort(self, prefix: str, now: float, *, start: bool = True) -> None:
        """End every job whose rid starts with `prefix`: SGLang matches by prefix."""
        if start:
            self._play(now)
        if self.dead is None:
            self._aborts.append(prefix)
            if start:
                self._wake(now)

    def postpone(self, seconds: float, now: float) -> None:
        """The scheduler stood still for `seconds` and goes on now."""
        if self._pace:
            self._pace.shift(seconds)
        elif self.dead is None and (self._line.inbox or self._aborts):
            self._begin(now)

    def kill(self, now: float, reason: str) -> None:
        """The scheduler dies now; what is in flight never ends."""
        if self.dead is None:
            self.dead = reason
            self._pace.stop()
            self._events.append(Died(now, reason, len(self._jobs)))

    def next_wakeup(self) -> float | None:
        """When something will have happened; None while idle or dead."""
        return self._pace.until

    def advance(self, now: float) -> list[Event]:
        """Play every step that ends by `now`; what happened since the last call, in order."""
        self._play(now)
        events, self._events = self._events, []
        return events

    def publish(self, now: float) -> Snapshot:
        """Bring what /v1/loads reads up to date."""
        self.snapshot = snapshots.take(
            now,
            self.memory,
            running=len(self._batch),
            waiting=self._line.queue,
            prefilling=self._prefilling,
            counters=self.counters,
            ratio=self.ratio.now,
            last=self.gauges,
        )
        return self.snapshot

    # ---- the loop

    def _play(self, now: float) -> None:
        while (until := self._pace.until) is not None and until <= now:
            at, steps = self._pace.finish()
            self._complete(at, steps)
            self._begin(at)
        steps, at = self._pace.passed(now)
        if steps:  # a coarse engine is in the middle of several
            self._decoded(steps, at)
            self.ratio.decay()
            self._decode_all(at)  # the step in progress

    def _wake(self, now: float) -> None:
        """Something arrived: a step in progress ends first, an idle scheduler begins at once."""
        if self._pace:
            self._pace.cut()
        else:
            self._begin(now)

    def _begin(self, now: float) -> None:
        """Start the next step, if there is anything to do."""
        self._receive(now)
        while self._line.queue or self._batch or self._chunked is not None:
            chosen = intake.plan(
                self.profile,
                self.traits,
                self.memory,
                waiting=self._line.queue,
                running=self._batch.jobs,
                chunked=self._chunked,
                ratio=self.ratio.now,
                full=self._full,
                now=now,
            )
            self._chunked, self._full = chosen.chunked, chosen.full
            if chosen.batch:
                self._run_prefill(chosen.batch, now)
            elif self._batch:
                self._run_decode(now)
            else:
                return  # the head of the queue fits never: 0.5.6 with a cap of the whole pool
            if self._pace or self.dead is not None:
                return
        self.ratio.reset()
        self.publish(now)

    def _receive(self, now: float) -> None:
        for prefix in self._aborts:
            for job in [job for rid, job in self._jobs.items() if rid.startswith(prefix)]:
                self._drop(job, now)
        self._aborts.clear()
        for job in self._line.arrivals():
            self._enqueue(job, now)

    def _enqueue(self, job: Job, now: float) -> None:
        if not self._line.join(job):
            self._end(job, now, Ending.ABORT, status=503, message=QUEUE_FULL)

    def _drop(self, job: Job, now: float) -> None:
        """End `job` on request. No step is in progress."""
        if job is self._chunked and not self.traits.mid_chunk_abort:
            job.aborted = True
            return
        if job is self._chunked:
            self._chunked = None
        elif job in self._batch:
            self._batch.leave(job)
        elif job in self._line.queue:
            self._line.queue.remove(job)
        if job.phase is not Phase.WAITING:
            self.memory.release(job, now)
            self._full = False
        self._end(job, now, Ending.ABORT)

    def _run_prefill(self, batch: list[tuple[Job, int]], now: float) -> None:
        try:
            work = prefill.take(batch, self.memory, self.profile.activations, self.counters, now)
        except prefill.Death as death:
            self.kill(now, str(death))
            return
        if self.profile.mixed_chunk and not self._mix_decode(now):
            return
        self._prefilling = [job for job, _ in batch]
        self.counters.prefill_steps += 1
        self.counters.prefill_tokens += work.computed
        self.counters.peak(self.used, self.running)
        seconds = self.profile.speed.step(
            prefill=len(batch),
            computed=work.computed,
            pairs=work.pairs,
            decode=self._decoding,
            read=self._batch.filled if self._decoding else 0,
        )
        self.counters.prefill_s += seconds
        self._pace.plan([now + seconds])
        if not self._coarse:
            self.gauges = self.publish(now)

    def _mix_decode(self, now: float) -> bool:
        """Decode along with a prefill. SGLang checks nothing here: no page means death."""
        if not self.memory.make_room(self._batch.opens()):
            self.kill(now, deaths.DECODE)
            return False
        return self._decode_all(now) or not self._batch

    def _run_decode(self, now: float) -> None:
        if not self._grow_running(now):
            return
        alike = 1
        if self._coarse and (self._full or not self._line.queue):
            alike = steps_alike(self._batch, self.memory)
        self.counters.peak(self.used, self.running)
        batch = self._batch
        self._pace.plan(self.profile.speed.ends(now, alike, decode=len(batch), read=batch.filled))

    def _grow_running(self, now: float) -> bool:
        """One more token of KV for each running job, retracting some if need be. False when that
        leaves none, or kills the scheduler."""
        if self.memory.make_room(self._batch.opens()):
            self.ratio.decay()
        elif self.profile.dry_pool_kills:
            self.kill(now, deaths.dry(self.pool.capacity, len(self._batch)))
            return False
        else:
            self._retract(now)
        return self._decode_all(now)

    def _decode_all(self, now: float) -> bool:
        """Take a token of KV for each running job, which decodes in the step that begins."""
        if not self.memory.take(self._batch.opens()):
            self.kill(now, deaths.LAST_ONE)
            return False
        self._batch.begin(1)
        self._decoding = len(self._batch)
        self.counters.peak(self.used, 0)
        return self._decoding > 0

    def _retract(self, now: float) -> None:
        thrown, given_up = retract(
            self.memory, self._batch, now, abort_last=self.traits.last_request_aborts
        )
        self._full = False
        self.ratio.after_retraction(self._batch.jobs.values())
        if given_up is not None:
            self._end(given_up, now, Ending.ABORT, status=500, message=LAST_REQUEST)
        for job in thrown:
            job.retractions += 1
            self.counters.retractions += 1
            self._enqueue(job, now)

    # ---- results

    def _complete(self, now: float, steps: int) -> None:
        self._decoded(steps, now)
        self._decoding = 0
        prefilled, self._prefilling = self._prefilling, []
        for job in prefilled:
            self.memory.share(job)
            if job.filled < job.target:
                self._full = False  # a chunk leaves the batch, which counts as one that ended
                continue
            if job.speaks:
                job.own_out += 1
                self.counters.generated_tokens += 1
                if job.out < job.length:
                    self._batch.join(job)
                    self._events.append(Progress(job, now, job.out))
                    continue
            self._finish(job, now)

    def _decoded(self, steps: int, now: float) -> None:
        """`steps` decode steps are done; the KV of the first was taken when it began."""
        self.counters.stepped = now
        if not self._decoding:
            return
        counters, batch = self.counters, self._batch
        before = counters.decode_steps
        counters.decode_steps += steps
        counters.generated_tokens += steps * len(batch)
        if steps > 1:
            self.ratio.decay(steps - 1)
            self.memory.take(batch.opens(steps - 1))
            batch.begin(steps - 1)
            counters.peak(self.used, 0)
        over = batch.end(steps)
        if self._coarse:
            for job in over:
                self._finish(job, now)
            return
        for job in list(batch.jobs.values()):
            if job in over:
                self._finish(job, now)
            else:
                self._events.append(Progress(job, now, job.out))
        if snapshots.crossed(before, counters.decode_steps, snapshots.GAUGES_EVERY):
            self.gauges = self.publish(now)
        elif snapshots.crossed(before, counters.decode_steps, snapshots.LOADS_EVERY):
            self.publish(now)

    def _finish(self, job: Job, now: float) -> None:
        if job in self._batch:
            self._batch.leave(job)
        self.memory.release(job, now)
        self._full = False
        status = None if job.refusal is None else 400
        self._end(job, now, job.ending, status=status, message=job.refusal or "")

    def _end(
        self, job: Job, now: float, ending: Ending, *, status: int | None = None, message: str = ""
    ) -> None:
        job.phase = Phase.DONE
        del self._jobs[job.rid]
        self.counters.finished += ending is not Ending.ABORT
        self.counters.aborted += ending is Ending.ABORT
        self._events.append(Finished(job, now, ending, job.out, status, message))
