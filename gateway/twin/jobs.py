"""What goes into the engine and what comes out: one `Job` a sequence, a stream of events.

Tokens everywhere; times are seconds on the caller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where a job is. It moves down this list; retraction sends it back to WAITING."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    DONE = "done"


class Ending(StrEnum):
    """Why a job ended, in SGLang's own words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Beat:
    """The decode steps that jobs take together: counts since it was made."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0


@dataclass(eq=False, slots=True)
class Job:
    """One sequence for the scheduler. `blocks` identify the prompt's full cache blocks, in order:
    equal prefixes of blocks share KV. `want` is how long the model would talk if nobody stopped
    it; `cap` the client's limit, None when it sent none."""

    rid: str
    prompt: int
    want: int
    cap: int | None = None
    blocks: tuple[int, ...] = ()
    ignore_eos: bool = False
    # What the engine keeps about it:
    phase: Phase = Phase.WAITING
    limit: int = 0  # the cap in force after the engine's silent clip
    shared: int = 0  # tokens of its prefix that lie, locked, in the radix cache
    cached: int = 0  # prompt tokens found in the cache at the first prefill
    retractions: int = 0
    arrived: float = 0.0
    admitted: float = 0.0
    refusal: str | None = None  # a prompt over the pool is scheduled as a dummy, then refused
    aborted: bool = False  # its client is gone, its remaining chunks still run
    # While it runs, its tokens are counted by its batch, in steps; these are what comes on top.
    batch: Beat | None = None
    own_out: int = 0
    own_filled: int = 0

    @property
    def out(self) -> int:
        """Tokens generated so far."""
        batch = self.batch
        return self.own_out if batch is None else self.own_out + batch.ended

    @property
    def filled(self) -> int:
        """Tokens of prompt (and, after a retraction, output) whose KV exists."""
        batch = self.batch
        return self.own_filled if batch is None else self.own_filled + batch.begun

    def step_with(self, batch: Beat) -> None:
        """From now on each step of `batch` is one of its own."""
        self.own_out -= batch.ended
        self.own_filled -= batch.begun
        self.batch = batch

    def step_alone(self) -> None:
        """Undo `step_with`; what it has got stays."""
        self.own_out, self.own_filled, self.batch = self.out, self.filled, None

    @property
    def target(self) -> int:
        """Tokens whose KV must exist before the next token can be sampled."""
        return self.prompt + self.out

    @property
    def length(self) -> int:
        """Output tokens after which it ends: the model's own wish or the limit, at least one."""
        return max(1, min(self.want, self.limit))

    @property
    def speaks(self) -> bool:
        """It may produce tokens; a refused, aborted or zero-capped one ends after its prompt."""
        return self.refusal is None and not self.aborted and self.limit > 0

    @property
    def ending(self) -> Ending:
        """How it ends when it ends by itself."""
        if self.refusal is not None or self.aborted:
            return Ending.ABORT
        return Ending.STOP if self.want <= self.limit else Ending.LENGTH


@dataclass(frozen=True, slots=True)
class Progress:
    """`job` has produced `out` tokens in all by `at`."""

    job: Job
    at: float
    out: int

    @property
    def rid(self) -> str:
        """Whose progress this is."""
        return self.job.rid


@dataclass(frozen=True, slots=True)
class Finished:
    """The one end of `job`, with `out` tokens. An abort by the engine carries a status and a
    sentence; an abort on request carries neither."""

    job: Job
    at: float
    ending: Ending
    out: int
    status: int | None = None
    message: str = ""

    @property
    def rid(self) -> str:
        """Whose end this is."""
        return self.job.rid


@dataclass(frozen=True, slots=True)
class Died:
    """The scheduler is gone with `in_flight` jobs, which never end: their streams are cut."""

    at: float
    reason: str
    in_flight: int


Event = Progress | Finished | Died


@dataclass(slots=True)
class Counters:
    """What the engine did since it started. Truth for tests and the laboratory; tokens, seconds."""

    finished: int = 0
    aborted: int = 0
    refused_queue_full: int = 0
    retractions: int = 0
    prompt_tokens: int = 0  # of requests started
    cached_tokens: int = 0  # of them, found in the cache
    generated_tokens: int = 0
    prefill_tokens: int = 0  # computed in prefill, those of retracted requests again
    prefill_s: float = 0.0  # what that took
    stepped: float = 0.0  # when the last step ended
    prefill_steps: int = 0
    decode_steps: int = 0
    peak_used: int = 0  # pool tokens, without unused cache
    peak_waiting: int = 0
    peak_running: int = 0
    peak_activation_bytes: float = 0.0

    def peak(self, used: int, running: int) -> None:
        """So many pool tokens and requests, now."""
        self.peak_used = max(self.peak_used, used)
        self.peak_running = max(self.peak_running, running)

    def started(self, job: Job) -> None:
        """`job` begins its prefill; the first time its prompt counts, and what was cached of it."""
        if not job.retractions:
            job.cached = job.shared
            self.prompt_tokens += job.prompt
            self.cached_tokens += job.cached
