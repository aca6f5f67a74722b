"""SGLang's admission arithmetic: what a prefill pass may start (its PrefillAdder).

Each running request is expected to grow by ``min(cap - out, CLIP) * ratio``; a candidate must fit
in full, ``uncached prompt + min(cap - out, CLIP) (+ page)``, strictly below what is left of
``free + evictable - expected growth - charged in this pass``. The ratio starts at
0.7 x conservativeness, decays linearly to 14 % of that over 600 decode steps, and is set from the
decoded share after a retraction. Both are why the engine over-commits: the clip and the ratio make
it count less than was promised.

A prompt longer than the chunk is charged one chunk at a time, with no output, until its last chunk;
and a chunk that must go on although nothing is left is admitted at full size all the same
(`chunk_size`). That is the hole through which a scheduler dies of "Prefill out of memory".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.twin.jobs import Job
    from gateway.twin.versions import Traits

CLIP = 4096
"""SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION, tokens: clips the estimate, never the generation."""

INIT_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
MIN_FACTOR = 0.14  # SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR
DECAY_STEPS = 600  # SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS, decode steps
RETRACT_STEPS = 20  # SGLANG_RETRACT_DECODE_STEPS, decode steps


class NewTokenRatio:
    """The share of its remaining cap that a running request is expected to use."""

    def __init__(self, conservativeness: float = 1.0) -> None:
        self.initial = min(INIT_RATIO * conservativeness, 1.0)
        self.least = self.initial * MIN_FACTOR
        self.now = self.initial
        self._decay = (self.initial - self.least) / DECAY_STEPS

    def decay(self, steps: int = 1) -> None:
        """Decode steps without a retraction."""
        for _ in range(steps):
            if self.now == self.least:
                return
            self.now = max(self.now - self._decay, self.least)

    def reset(self) -> None:
        """The server is idle."""
        self.now = self.initial

    def after_retraction(self, kept: Iterable[Job]) -> None:
        """Set from the jobs that stay: ``(decoded + 20 n) / (promised + 1)``, at most 1."""
        jobs = list(kept)
        decoded = sum(job.out for job in jobs) + RETRACT_STEPS * len(jobs)
        self.now = min(1.0, decoded / (sum(job.limit for job in jobs) + 1))


class Verdict(Enum):
    """What became of a candidate."""

    TAKEN = auto()
    NO_TOKEN = auto()  # the pool: the pass ends and no new one is tried until something ends
    OTHER = auto()  # this pass is full


@dataclass(slots=True)
class Budget:
    """One prefill pass. `room` is free + evictable tokens at its start."""

    traits: Traits
    page: int
    room: float
    chunk: int | None  # --chunked-prefill-size, None: whole prompts
    max_prefill: int  # --max-prefill-tokens

    def expect(self, running: Iterable[Job], ratio: float) -> None:
        """Set aside the growth of what runs. 0.5.23 expects ignore_eos jobs to use all of it."""
        for job in running:
            share = 1.0 if self.traits.newest_bodies and job.ignore_eos else ratio
            self.room -= min(job.limit - job.out, CLIP) * share

    def mix(self, decoding: int) -> None:
        """--enable-mixed-chunk: running requests decode inside this pass and use its tokens."""
        self.max_prefill -= decoding
        if self.chunk is not None:
            self.chunk -= decoding

    def chunk_size(self, left: int) -> int:
        """Tokens of a half-done prompt that go on now; `left` is what it still lacks.

        With nothing left, the full chunk is used although no memory stands behind it: SGLang must
        schedule it or leak it (all four versions; fixes proposed upstream were not merged).
        """
        if self.chunk is None:
            return left
        size = min(self.chunk, int(self.room))
        return min(left, self.chunk if size <= 0 else size)

    def charge(self, tokens: int, output: int) -> None:
        """Take `tokens` of prompt and `output` of expected generation out of this pass."""
        paged = -(-tokens // self.page) * self.page
        overhead = self.page if self.traits.charges_page else 0
        self.room -= paged + output + overhead
        self.max_prefill -= paged
        if self.chunk is not None:
            self.chunk -= paged

    def weigh(self, job: Job, uncached: int, room: float, *, first: bool) -> tuple[Verdict, int]:
        """May `job` start with `uncached` tokens to compute? Returns the tokens to compute now.

        `room` is this pass's room after the job's cached prefix was locked.
        """
        expected = min(max(job.limit - job.out, 0), CLIP)
        overhead = self.page if self.traits.charges_page else 0
        if uncached + expected + overhead >= min(room, self.room):
            return Verdict.NO_TOKEN, 0
        paged = -(-uncached // self.page) * self.page
        if self.chunk is None:
            if not first and paged >= self.max_prefill:
                return Verdict.OTHER, 0
            return Verdict.TAKEN, uncached
        if paged <= self.chunk:
            return Verdict.TAKEN, uncached
        cut = self.chunk // self.page * self.page
        return (Verdict.TAKEN, cut) if cut > 0 else (Verdict.OTHER, 0)

    @property
    def spent(self) -> bool:
        """No further candidate can join this pass."""
        return (
            self.room <= 0 or self.max_prefill <= 0 or (self.chunk is not None and self.chunk <= 0)
        )
