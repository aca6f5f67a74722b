"""The values the core decides about: immutable, without I/O, shared by gate, twin and laboratory.

Units everywhere: tokens for KV and prefill, seconds for time (monotonic, passed in by the
caller), requests for slots.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, NewType

if TYPE_CHECKING:
    from collections.abc import Iterable

RequestId = NewType("RequestId", str)
"""Ours, unique for the life of the process, a fixed length: it goes upstream as the `rid`."""


@dataclass(frozen=True, slots=True)
class Lead:
    """A prompt's beginning at several depths, shortest first: a mark of all of it up to there, and
    its tokens. In 64-bit words: a long chat that waits has a thousand of them."""

    marks: array[int]
    tokens: array[int]

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Lead:
        """Of (mark, tokens)."""
        fixed = tuple(pairs)  # a thread may still be adding to them
        if not fixed:
            return NO_LEAD
        marks, tokens = zip(*fixed, strict=True)
        return cls(array("q", marks), array("q", tokens))

    def apart(self, what: int) -> Lead:
        """The same beginning where it is kept apart from others' by `what` (64 bits): an adapter's keys and
        values are its own."""
        return Lead(array("q", (mark ^ what for mark in self.marks)), self.tokens)

    def __len__(self) -> int:
        return len(self.marks)


NO_LEAD = Lead(array("q"), array("q"))


class Grammar(NamedTuple):
    """What a server may have to compile before it can answer, see compiling."""

    mark: int  # of all it is made of
    seconds: float  # of one core that compiling it likely takes


class PoolId(NamedTuple):
    """One KV pool: a data-parallel rank of one server. A tuple, as each decision hashes it thirty times."""

    backend: str
    rank: int = 0

    def __str__(self) -> str:
        return self.backend if self.rank == 0 else f"{self.backend}#{self.rank}"


class Code(StrEnum):
    """Why a request was refused. Stable: clients and dashboards match on these words."""

    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CLIENT_LIMIT = "client_limit"
    QUOTA_EXCEEDED = "quota_exceeded"
    COOLING_DOWN = "cooling_down"
    QUEUE_FULL = "queue_full"
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    QUARANTINED = "quarantined"
    NO_BACKEND = "no_backend"
    QUEUE_TIMEOUT = "queue_timeout"
    DRAINING = "draining"
    BODY_TOO_LARGE = "body_too_large"


class Outcome(StrEnum):
    """How a request ended. Each request ends exactly once, in exactly one of these."""

    COMPLETED = "completed"  # the engine answered to the end, whatever its status
    REJECTED = "rejected"  # refused at the door, never queued
    EVICTED = "evicted"  # queued, then refused: waited too long, drained, can no longer fit
    CANCELLED = "cancelled"  # the client left
    FAILED = "failed"  # the engine or the way to it broke


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request wants, before anybody decided anything.

    `prompts` holds the tokens of each prompt (a chat has one). `cap` is the output limit per
    sequence that the client asked for; None when it left the choice to us. `usual` is what the
    endpoint itself takes an absent cap for, where that is a number (16 on /v1/completions, 128 on
    /generate): injected, it changes nothing for the client.
    """

    prompts: tuple[int, ...]
    n: int = 1
    cap: int | None = None
    usual: int | None = None
    images: bool = False  # or videos, or sounds

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(self.prompts, default=0)

    @property
    def sequences(self) -> int:
        """Sequences the engine will run: prompts × n."""
        return len(self.prompts) * self.n


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request takes from the ledgers of one pool, all of it or nothing."""

    cap: int  # output tokens per sequence: the number that is forwarded
    kv: int  # KV tokens charged, whole pages: the worst case, or the expected one under forecast
    prefill: int  # prompt tokens not yet prefilled
    slots: int  # running requests
    worst: int = 0  # KV tokens with the whole cap used (0 where it is `kv`)
    start: int = 0  # KV tokens the engine wants free to start it; 0 where nothing is forecast
    prompt_kv: int = 0  # KV tokens of the prompts in whole pages, and a page a sequence


UNBOUNDED = 1 << 30
"""A limit nobody set, tokens or requests: above what any server has."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What one pool can take. Read from the server at each of its starts, narrowed by policy."""

    kv_tokens: int  # what reservations may add up to: max_total_num_tokens less a page, less slack
    page: int = 1  # KV page size, tokens
    context: int = UNBOUNDED  # prompt + output of one sequence, tokens
    max_input: int = UNBOUNDED  # longest prompt the engine takes (its max_req_input_len), tokens
    max_prompt: int | None = None  # longest prompt policy allows here, tokens
    max_image_prompt: int | None = None  # the same for one with images, videos or sounds
    default_output: int | None = None  # cap where the client sent none; None: derived, see caps
    max_output: int | None = None  # largest cap policy allows; None: what fits
    useful_floor: int = 256  # an output shorter than this is a stub, see caps
    prefill_tokens: int = UNBOUNDED  # prompt tokens in prefill at once
    slots: int = UNBOUNDED  # running requests
    trial: int = (
        UNBOUNDED  # the same for now; a request of more sequences runs alone, see quarantine
    )
    speculative: int = 0  # tokens speculative decoding looks ahead, per sequence
    forecast: bool = False  # charge what is likely (see `outlook`), not the whole cap
    conservativeness: float = 1.0  # the server's --schedule-conservativeness
    tpot_s: float | None = None  # seconds per output token to keep (see `pace`); None: not watched
    caches: bool = True  # it keeps what it has read (see `prefix`)
    compile_s: float = math.inf  # of one core, in grammars that are compiled at once
    kinds: int = UNBOUNDED  # adapters that run at once, the model without one among them
    scores_apart: bool = False  # scores and words in one batch are its end


@dataclass(frozen=True, slots=True)
class Quota:
    """Tokens, prompts and answers together, that a client may use in each window of so long."""

    tokens: int
    window_s: float


@dataclass(frozen=True, slots=True)
class ClientRule:
    """What one client may have. `weight` is its share where clients compete."""

    name: str
    weight: float = 1.0
    max_inflight: int | None = None
    max_held_tokens: int | None = None
    max_waiting: int | None = None
    priority: int = 0  # higher goes first; who waits long enough rises, see flows
    default_output: int | None = None  # its own cap where it sends none; None: the pool's
    max_output: int | None = None  # largest cap for it, where that is less than the pool's
    quota: Quota | None = None


@dataclass(frozen=True, slots=True)
class QueueRule:
    """How much may wait, and how long."""

    max_requests: int = 256
    max_tokens: int = 4_000_000
    max_bytes: int = 512 << 20
    max_wait_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request at the gate."""

    id: RequestId
    client: ClientRule
    ask: Ask
    pools: tuple[PoolId, ...]  # where it may run, in order of preference
    body_bytes: int = 0
    streamed: bool = True  # whether the first token will be seen as it comes
    deadline: float | None = None  # monotonic: of no use if the first token comes later
    kind: str = "chat"  # of answer: whose lengths stand in while this client is new, see lengths
    lead: Lead = NO_LEAD  # how its prompt begins, see prefix
    session: str | None = None  # a mark of the conversation it says it belongs to, see flows
    stretch: float = 1.0  # where it is refused, it is told so many times the time, see retries
    grammar: Grammar | None = None  # None: none that takes long
    adapter: str = ""  # LoRA; empty: the model itself
    scores: bool = False  # it asks for scores, not for words


@dataclass(frozen=True, slots=True)
class Grant:
    """A reservation that is held: where, how much, and what cap goes with it."""

    id: RequestId
    pool: PoolId
    demand: Demand
    clamped_from: int | None  # the client's cap, where ours is lower
    injected: bool  # the client sent no cap; ours was put in
    queued_s: float
    ttft_s: float | None = None  # predicted, from now to the first token
    ttft_high_s: float | None = None  # ... and what 95 of 100 stay below
    compile_s: float | None = (
        None  # that its server likely takes for its grammar; None: has it, or there is none
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal with its arithmetic: what was needed, what there was, what to do."""

    code: Code
    message: str
    needed: int | None = None
    available: int | None = None
    position: int | None = None  # requests that were ahead
    eta_s: float | None = None  # when it could have started
    retry_after_s: float | None = None


class Release(StrEnum):
    """Why a reservation was given back."""

    ENDED = "ended"  # the engine finished it
    CONFIRMED = "confirmed"  # abandoned; the engine has shown it gone
    GRACE = "grace"  # abandoned; nobody confirmed it within the grace
    VOIDED = "voided"  # the server died: there is nothing left to hold
    REQUEUED = "requeued"  # the engine pushed back before it started
    UNSENT = "unsent"  # cancelled before anything went upstream


# ---- transitions: what the core tells the shell, which logs, counts and wakes in one place ----


@dataclass(frozen=True, slots=True)
class Queued:
    id: RequestId
    position: int  # 1 = next
    need: int  # KV tokens on the pool it waits for


@dataclass(frozen=True, slots=True)
class Granted:
    grant: Grant


@dataclass(frozen=True, slots=True)
class Refused:
    """Terminal. `queued_s` is None where the request never waited."""

    id: RequestId
    refusal: Refusal
    queued_s: float | None = None


@dataclass(frozen=True, slots=True)
class Lingering:
    """Abandoned upstream: the reservation stays until confirmed gone or until `until`."""

    id: RequestId
    pool: PoolId
    until: float


@dataclass(frozen=True, slots=True)
class Released:
    id: RequestId
    pool: PoolId
    demand: Demand
    why: Release


@dataclass(frozen=True, slots=True)
class Ended:
    """Terminal for a request that was granted or cancelled while it waited."""

    id: RequestId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Resized:
    pool: PoolId
    before: PoolLimits | None
    after: PoolLimits


Transition = Queued | Granted | Refused | Lingering | Released | Ended | Resized


@dataclass(frozen=True, slots=True)
class LedgerView:
    """A snapshot of one ledger for people and tests."""

    limit: int
    reserved: int
    used: int


@dataclass(frozen=True, slots=True)
class PoolView:
    """A snapshot of one pool."""

    pool: PoolId
    open: bool
    paused_until: float
    limits: PoolLimits
    kv: LedgerView
    prefill: LedgerView
    slots: LedgerView
    lingering: int  # KV tokens held by abandoned requests
    peak: int = 0  # KV tokens the pool is forecast to come to; 0 where nothing is forecast
    z: float = 0.0  # standard deviations kept free, see confidence
    share: float = 1.0  # of the pool that may be planned with, see envelope
    foreign: int = 0  # KV tokens in use that are not ours
    compiling: int = 0  # grammars that its server likely compiles


@dataclass(frozen=True, slots=True)
class ClientView:
    """A snapshot of one client's share."""

    name: str
    held_tokens: int
    inflight: int
    waiting: int


@dataclass(frozen=True, slots=True)
class QuotaView:
    """How a client stands with its quota. Tokens; seconds."""

    client: str
    used: int  # charged in the window that is open
    under_way: int  # held by its requests, or needed by those that wait
    tokens: int
    window_s: float
    left_s: float | None  # of that window; None: the next request opens one
    elsewhere: int = 0  # used and under way at other processes of the gate, as far as was heard


@dataclass(frozen=True, slots=True)
class QueueView:
    """A snapshot of the queue."""

    requests: int
    tokens: int
    bytes: int
    oldest_s: float
    aside: int = 0  # of these requests, those that wait for no pool yet, see bounds


@dataclass(frozen=True, slots=True)
class View:
    """Everything the core holds, frozen at one instant."""

    pools: tuple[PoolView, ...] = ()
    clients: tuple[ClientView, ...] = ()
    queue: QueueView = field(default_factory=lambda: QueueView(0, 0, 0, 0.0))
