"""Why it is slow: a minute of looks at one server, put into one class, with its evidence.

The rules are those an operator of incident C ended with (four bottlenecks told apart by GPU, queue,
pool and speed per request), with numbers:

- **engine_down**: not ready for a while, or died.
- **kv_exhaustion**: the engine took memory back, or requests wait because the pool is spoken for.
- **prefill_backlog**: reading what has been sent takes long, or goes on all the time and stops those
  that write (SGLang prefills first).
- **decode_competition**: several write, and each at half its usual speed or below.
- **compute_queue**: requests wait, memory is free and nobody crawls: computing or scheduling.
- **client_limited**: nobody waits but for their own limits.
- **calm**: none of these. Memory of the cards that is full while they idle is no load: weights and
  pool are set aside at the start.

Pure: looks in, a verdict out. The classes are tried in that order, worst first; those that hold as
well are named beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

from gateway.observe.looks import waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gateway.observe.looks import CardLook, ServerLook

A_WHILE = 1 / 3
"""Part of the looks that must show a queue: 20 s of a minute. One look may have met a burst."""

DOWN = 1 / 6
"""The same for a server that takes no work: 10 s are noticed, and a restart takes longer."""

NOTICED_S = 1.0
"""Waiting that counts, seconds: below it a person's train of thought goes on (Nielsen, Usability
Engineering, 1993)."""

BACKLOG_S = 10.0
"""Reading ahead of a first token that counts as a backlog, seconds: the limit of keeping somebody's
attention (the same source)."""

FULL = 0.8
"""Part of the pool in use from which an engine's own queue waits for memory: SGLang starts nothing in
the room it plans for the growth of what runs, a tenth to a third of the pool (new_token_ratio 0.1 to
0.7 of up to 4,096 tokens a request, 0.5.6-0.5.23). Incident C queued for computing below 0.43."""

FELL = 0.5
"""Speed per request against usual: half is felt, a quarter less is what any second request costs."""

TOGETHER = 1.5
"""Requests that write at once, on the mean, from which they compete: two at half of the looks."""

CRAWL_TOK_S = 10.0
"""Tokens a second below which a stream crawls whatever is usual here: twice the speed of reading, and
the pace that a backend's `tpot_s` keeps by default."""

ALWAYS = 2 / 3
"""Part of the looks that found a prompt being read, from which it is reading that slows writing down:
a decode step between two chunks is then the exception."""

NEAR_LIMIT = 0.9
"""Part of the slots from which running is near its limit."""

IDLE_PERCENT = 30.0
"""GPU utilisation below which the cards are not what holds things up; decoding alone shows 80-100."""

TAKEN = 0.7
"""Part of the cards' memory from which people ask whether it is full."""


class Kind(StrEnum):
    """Classes, worst first. Stable: dashboards match on these words."""

    ENGINE_DOWN = "engine_down"
    KV_EXHAUSTION = "kv_exhaustion"
    PREFILL_BACKLOG = "prefill_backlog"
    DECODE_COMPETITION = "decode_competition"
    COMPUTE_QUEUE = "compute_queue"
    CLIENT_LIMITED = "client_limited"
    CALM = "calm"


@dataclass(frozen=True, slots=True)
class Facts:
    """The numbers of one server's minute. Means over its looks unless named otherwise."""

    server: str
    looks: int
    down: int  # looks at which it took no work
    state: str  # at the last of these, else at the last look
    deaths: int
    retracted: int
    waiting: float  # here and inside the engine, own clients' limits not counted
    waiting_most: int
    oldest_s: float  # the longest wait seen
    waiting_kv: float
    waiting_for: dict[str, float]  # part of the looks with a wait that counts, by what it is for
    engine_waiting: float  # part of the looks with a queue inside the engine
    kv_part: float  # of the pool in use
    kv_taken: float  # of the pool in use or reserved
    pool: int  # tokens
    pending: float  # prompt tokens to be read before the last of them has a first token
    pending_most: int
    rate: float | None  # prompt tokens read a second, the most seen; cached ones included
    unread_s: float  # how long the oldest of them has been waiting to be read, here or there
    reading: float  # part of the looks that found a prompt being read
    writing: float
    running: float
    slots: float  # that may run now
    context: float | None  # tokens of one running request
    speed: float | None  # output tokens a second of one request
    usual: float | None  # the same when it is well
    limited: float  # requests that wait for their own client's limits
    client: str | None  # whose
    busy: float | None  # per cent, of the cards
    memory: float | None  # part of the cards' memory taken

    @property
    def backlog_s(self) -> float:
        """How long reading what is pending takes; 0 where the speed is not known."""
        return self.pending / self.rate if self.rate else 0.0

    @property
    def fitting(self) -> int:
        """How many may decode at once for each to have half its usual speed, at least 1.

        Two decode steps of n and m streams take about as long as their KV is read, so the sum of
        speeds is taken to stay: n = writing · speed / (usual / 2).
        """
        target = FELL * self.usual if self.usual else CRAWL_TOK_S
        return max(1, int(self.writing * (self.speed or 0.0) / max(target, CRAWL_TOK_S)))


@dataclass(frozen=True, slots=True)
class Words:
    """One sentence in both languages."""

    en: str = ""
    zh: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a minute was. `also`: classes that held as well, worst first."""

    kind: Kind
    server: str | None
    sentence: Words
    change: Words
    also: tuple[Kind, ...] = ()


def judge(
    looks: Sequence[ServerLook],
    *,
    before: ServerLook | None = None,
    cards: Sequence[CardLook] = (),
    usual: float | None = None,
) -> tuple[Facts, tuple[Kind, ...]]:
    """The facts of one server's looks (one at least, in order), and the classes that hold.

    `before` is the look before them, if there was one: deaths and retractions are counted from it.
    `cards` are all looks at the cards it may run on, `usual` is the speed of one request here when
    all is well, tokens a second. Calm is the last class where no other holds.
    """
    facts = facts_of(looks, before, cards, usual)
    kinds = tuple(kind for kind, holds in _RULES if holds(facts))
    return facts, kinds or (Kind.CALM,)


def facts_of(
    looks: Sequence[ServerLook],
    before: ServerLook | None,
    cards: Sequence[CardLook],
    usual: float | None,
) -> Facts:
    """See `judge`."""
    first, last = before or looks[0], looks[-1]
    down = [look for look in looks if look.state != "ready"]
    pending = [_pending(look) for look in looks]
    rates = [look.prefill_tok_s for look in looks if look.prefill_tok_s]
    speeds = [speed for look in looks if (speed := _speed(look)) is not None]
    contexts = [_used(look) / running for look in looks if (running := _running(look))]
    limited = [look for look in looks if look.waits_client]
    retracted = [
        look.engine_retracted for look in (first, *looks) if look.engine_retracted is not None
    ]
    return Facts(
        server=last.server,
        looks=len(looks),
        down=len(down),
        state=(down or looks)[-1].state,
        deaths=last.deaths - first.deaths,
        retracted=sum(max(0, new - old) for old, new in pairwise(retracted)),
        waiting=fmean(waits(look) for look in looks),
        waiting_most=max(waits(look) for look in looks),
        oldest_s=max(look.waits_oldest_s for look in looks),
        waiting_kv=fmean(look.waits_kv for look in looks),
        waiting_for={
            what: _part(looks, partial(_noticed, what))
            for what in ("kv", "prefill", "slots", "turn", "client")
        },
        engine_waiting=_part(looks, lambda look: bool(look.engine_waiting)),
        kv_part=fmean(_used(look) / max(_pool(look), 1) for look in looks),
        kv_taken=fmean(max(look.kv_reserved, _used(look)) / max(_pool(look), 1) for look in looks),
        pool=_pool(last),
        pending=fmean(pending),
        pending_most=max(pending),
        rate=max(rates, default=None),
        reading=_part(looks, lambda look: look.reading > 0),
        unread_s=fmean(_unread_s(look) for look in looks),
        writing=fmean(_writing(look) for look in looks),
        running=fmean(_running(look) for look in looks),
        slots=fmean(look.slots_allowed for look in looks),
        context=fmean(contexts) if contexts else None,
        speed=median(speeds) if speeds else None,
        usual=usual,
        limited=fmean(look.waits_client for look in looks),
        client=limited[-1].waiting_client if limited else None,
        busy=_mean(card.utilisation for card in cards),
        memory=_mean(
            card.memory_used / card.memory_total
            for card in cards
            if card.memory_used is not None and card.memory_total
        ),
    )


# ---- the rules -----------------------------------------------------------------------------------


def _is_down(facts: Facts) -> bool:
    return facts.deaths > 0 or facts.down >= DOWN * facts.looks


def _is_full(facts: Facts) -> bool:
    inside = facts.engine_waiting >= A_WHILE and facts.kv_part >= FULL
    return facts.retracted > 0 or facts.waiting_for["kv"] >= A_WHILE or inside


def _reads(facts: Facts) -> bool:
    waits = max(facts.backlog_s, facts.unread_s)
    return waits >= BACKLOG_S or (facts.reading >= ALWAYS and _slow(facts))


def _crawls(facts: Facts) -> bool:
    return facts.reading < ALWAYS and _slow(facts)


def _slow(facts: Facts) -> bool:
    if facts.speed is None or facts.writing < TOGETHER:
        return False
    fell = facts.usual is not None and facts.speed <= FELL * facts.usual
    return fell or facts.speed < CRAWL_TOK_S


def _queues(facts: Facts) -> bool:
    here = max(facts.waiting_for[what] for what in ("prefill", "slots", "turn"))
    inside = facts.engine_waiting >= A_WHILE and facts.kv_part < FULL
    return here >= A_WHILE or inside


def _is_limited(facts: Facts) -> bool:
    return facts.waiting_for["client"] >= A_WHILE


_RULES: tuple[tuple[Kind, Callable[[Facts], bool]], ...] = (
    (Kind.ENGINE_DOWN, _is_down),
    (Kind.KV_EXHAUSTION, _is_full),
    (Kind.PREFILL_BACKLOG, _reads),
    (Kind.DECODE_COMPETITION, _crawls),
    (Kind.COMPUTE_QUEUE, _queues),
    (Kind.CLIENT_LIMITED, _is_limited),
)


# ---- one look ------------------------------------------------------------------------------------


def _pool(look: ServerLook) -> int:
    return look.engine_pool or look.kv_limit


def _used(look: ServerLook) -> int:
    return max(look.kv_used, look.engine_used or 0)


def _pending(look: ServerLook) -> int:
    return max(look.prefill_tokens, look.engine_pending or 0) + look.waits_prefill_tokens


def _unread_s(look: ServerLook) -> float:
    return max(look.reading_oldest_s, look.waits_oldest_s if look.waits_prefill else 0.0)


def _running(look: ServerLook) -> int:
    """What is handed over and does not wait inside the engine."""
    if not _booked(look) and look.engine_running is not None:
        return look.engine_running
    return max(0, look.running - (look.engine_waiting or 0))


def _writing(look: ServerLook) -> int:
    """Where the gate's books do not hold what runs (admission: off), the engine's count stands in."""
    return look.writing if _booked(look) else look.engine_running or 0


def _speed(look: ServerLook) -> float | None:
    """Of one request. SGLang's own figure is the whole batch's: divided by those that write."""
    if look.stream_tok_s is not None:
        return look.stream_tok_s
    writing = _writing(look)
    if _booked(look) or not writing or look.engine_tok_s is None:
        return None
    return look.engine_tok_s / writing


def _booked(look: ServerLook) -> bool:
    return look.reading > 0 or look.writing > 0


def _noticed(what: str, look: ServerLook) -> bool:
    oldest_s = look.waits_client_oldest_s if what == "client" else look.waits_oldest_s
    return bool(getattr(look, f"waits_{what}")) and oldest_s >= NOTICED_S


def _part(looks: Sequence[ServerLook], holds: Callable[[ServerLook], bool]) -> float:
    return sum(holds(look) for look in looks) / len(looks)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
