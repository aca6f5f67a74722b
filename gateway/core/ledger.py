"""The ledger of one KV pool: who holds how much, and whether more fits.

Every sum is kept incrementally and checked: a counter that would go below zero is a bug in the
caller and raises `LedgerError`; nothing is ever clamped back to zero, since a clamped counter
hides the leak that will stop the gate next week.

Two ways to charge. *Declared*: the sum of worst cases stays inside the pool. *Forecast*: where not
all worst cases fit together, a candidate must pass the engine's own rule (`mirror`) and the bound
on what the pool will come to (`outlook`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from gateway.core.amount import bounded
from gateway.core.confidence import FULL, START, Confidence
from gateway.core.envelope import Envelope
from gateway.core.lengths import bucket
from gateway.core.mirror import Mirror
from gateway.core.model import LedgerView
from gateway.core.outlook import FRESH, REFRESHED, Outlook, Term
from gateway.core.pace import Pace
from gateway.core.sums import LedgerError, less, tally

if TYPE_CHECKING:
    from gateway.core.amount import Amount
    from gateway.core.hold import Hold
    from gateway.core.lengths import Lengths
    from gateway.core.model import Demand, PoolId, PoolLimits, RequestId


REFRESH_S = 0.05
FOLLOWED = 64
"""Sums are brought up to date at most every 0.05 s, for so many requests: with 256 in flight each is
looked at every 0.2 s, in which a fast stream gives six tokens."""


@dataclass(slots=True)
class PoolLedger:
    """Reservations of one pool against its limits."""

    pool: PoolId
    limits: PoolLimits
    holds: dict[RequestId, Hold] = field(default_factory=dict)
    kv: int = 0
    worst: int = 0  # KV tokens if every cap were used
    prefill: int = 0
    uncached: int = 0  # ... of which likely have to be read: the rest is in the server's cache
    slots: int = 0
    by_client: dict[str, int] = field(default_factory=dict)  # KV tokens held per client
    in_use: dict[str, int] = field(default_factory=dict)  # ... of which in use, or soon: prompts
    used: int = 0  # the sum of that
    slots_of: Counter[str] = field(default_factory=Counter)  # running sequences per client
    mirror: Mirror = field(default_factory=Mirror)
    outlook: Outlook = field(default_factory=Outlook)
    confidence: Confidence = field(default_factory=Confidence)
    envelope: Envelope = field(default_factory=Envelope)
    pace: Pace = field(default_factory=Pace)
    z: float = START  # for this decision, see `confidence`
    fresh_until: float = 0.0
    turn: int = 0  # whom `refresh` looks at next
    too_large: dict[Lengths, list[tuple[int, int, int]]] = field(default_factory=dict)
    """(prompt, cap, sequences) that did not fit as things are, by whose lengths: no larger one does."""
    planned: int | None = None
    """What the pool is forecast to come to, as things are; None: nobody has looked."""
    last: tuple[Demand, Lengths, int, Term] | None = None  # see `term`
    plain: int = 0  # reservations made before forecasts were switched on: of them all is charged
    foreign: int = 0  # KV tokens in use that are not ours
    foreign_slots: int = 0
    ceiling: Amount | None = None  # what of the pool may be granted here; None: all of it
    grants: PoolLimits = field(init=False)  # the limits, as far as the ceiling lets them be granted

    def __post_init__(self) -> None:
        self.bound_by(self.ceiling)

    @property
    def limit(self) -> int:
        """KV tokens that may be planned with now: less than the pool while something was learned."""
        return int(self.grants.kv_tokens * self.envelope.share) - self.foreign

    @property
    def free(self) -> int:
        """KV tokens not reserved; negative after a resize below what is held."""
        return self.limit - self.kv

    @property
    def all_slots(self) -> float:
        """Requests that may run at once now."""
        return min(self.grants.slots, self.limits.trial, self.pace.slots) - self.foreign_slots

    @property
    def room(self) -> float:
        """An upper bound on what a candidate may need (its `least`) to start."""
        if not self.holds:
            return self.grants.kv_tokens - self.foreign  # what was learned never stops the only one
        if not self.limits.forecast:
            return self.limit - self.worst
        return max(self.mirror.room(self.limit), self.limit - self.worst)

    def fits(self, demand: Demand, lengths: Lengths | None = None) -> bool:
        """Whether all of `demand` fits now."""
        return (
            self._has_slots(demand.slots)
            and self._has_prefill(demand.prefill)
            and self._has_kv(demand, lengths)
        )

    def only_prefill_lacks(self, demand: Demand, lengths: Lengths | None = None) -> bool:
        """Whether it would start as soon as the prompts in prefill are in: a wait of a moment."""
        return (
            not self._has_prefill(demand.prefill)
            and self._has_slots(demand.slots)
            and self._has_kv(demand, lengths)
        )

    def shared_with(self, tokens: int, slots: int) -> None:
        """So many tokens and sequences in this pool are not ours."""
        self.foreign, self.foreign_slots = max(tokens, 0), max(slots, 0)
        self._changed()

    def resized(self, limits: PoolLimits) -> None:
        """The server (re)started, or policy changed."""
        self.limits = limits
        self.bound_by(self.ceiling)
        self.mirror.conservativeness = limits.conservativeness
        self.pace.target_s = limits.tpot_s

    def bound_by(self, ceiling: Amount | None) -> None:
        """Grant no more than that in all. What is held finishes; who may wait is the limits' affair."""
        self.ceiling, self.grants = ceiling, bounded(self.limits, ceiling)
        self._changed()

    def term(self, demand: Demand, lengths: Lengths) -> Term:
        """The forecast of a request that has not begun. A grant asks for it three times in one step
        (does it fit, may it be entered, enter it): the last one made is kept."""
        last, drawn = self.last, lengths.drawn
        if last is not None and last[0] is demand and last[1] is lengths and last[2] == drawn:
            return last[3]
        term = Term(demand.prompt_kv, 0, demand.slots, demand.cap, lengths)
        self.last = demand, lengths, lengths.drawn, term
        return term

    def reserve(self, ident: RequestId, hold: Hold) -> None:
        """Enter a reservation. Raises LedgerError if it is there already or does not fit."""
        if ident in self.holds:
            msg = f"{ident} holds a reservation on {self.pool} already"
            raise LedgerError(msg)
        if not self.fits(hold.demand, hold.lengths):
            msg = f"{hold.demand} does not fit {self.pool}: {self.kv} of {self.limit} held"
            raise LedgerError(msg)
        demand = hold.demand
        self._changed()
        self.holds[ident] = hold
        self.kv += demand.kv
        self.worst += demand.worst or demand.kv
        self.prefill += hold.prefill
        self.uncached += hold.to_read
        self.slots += demand.slots
        self.by_client[hold.client] = self.by_client.get(hold.client, 0) + demand.kv
        self.slots_of[hold.client] += demand.slots
        self._use(hold.client, hold.occupied)
        if hold.lengths is None:
            self.plain += 1
        else:
            self.mirror.starting += demand.start
            if self.worst <= self.limit:  # nobody looks at a forecast while all caps fit
                self.outlook.enter(ident, hold)
            else:
                self.outlook.put(ident, self.term(demand, hold.lengths))

    def prefilled(self, ident: RequestId, now: float) -> bool:
        """The prompt is in: give its prefill share back. False if that had happened before."""
        hold = self.holds[ident]
        if not hold.prefilling:
            return False
        self._changed()
        hold.prefilling = False
        hold.decoding_since = now
        self.prefill = less(self.prefill, hold.prefill, "prefill", self.pool)
        self.uncached = less(self.uncached, hold.to_read, "uncached", self.pool)
        if hold.lengths is not None:
            demand = hold.demand
            self.mirror.decodes(demand.start, hold.occupied, hold.growth, demand.slots)
        return True

    def grew(self, hold: Hold, generated: int) -> None:
        """A request has produced `generated` tokens over all sequences; never fewer than before."""
        before = hold.generated
        if generated <= before:
            return
        growth = hold.growth
        hold.generated = generated
        if hold.lengths is None:
            return
        self._use(hold.client, generated - before)
        self.planned = None
        if not hold.prefilling:
            self.mirror.grew(generated - before, growth - hold.growth)

    def follow(self, ident: RequestId, hold: Hold) -> None:
        """Bring the sums up to what was seen of a request."""
        self.grew(hold, hold.seen)
        if hold.lengths is None:
            return
        if hold.told > 0 and (reached := bucket(hold.told)) > hold.bucket:
            hold.lengths.entered(hold.bucket, reached)
            hold.bucket = reached
            self.confidence.saw(ident, hold.told, self.limit)

    def release(self, ident: RequestId) -> Hold:
        """Remove a reservation, once. Raises LedgerError if there is none."""
        hold = self.holds.pop(ident, None)
        if hold is None:
            msg = f"{ident} holds nothing on {self.pool}"
            raise LedgerError(msg)
        self.follow(ident, hold)
        self._changed()
        demand = hold.demand
        if hold.prefilling:
            self.prefill = less(self.prefill, hold.prefill, "prefill", self.pool)
            self.uncached = less(self.uncached, hold.to_read, "uncached", self.pool)
        self.kv = less(self.kv, demand.kv, "kv", self.pool)
        self.worst = less(self.worst, demand.worst or demand.kv, "worst case", self.pool)
        self.slots = less(self.slots, demand.slots, "slots", self.pool)
        tally(self.by_client, hold.client, -demand.kv, "client kv", self.pool)
        tally(self.slots_of, hold.client, -demand.slots, "client slots", self.pool)
        self._use(hold.client, -hold.occupied)
        if hold.lengths is None:
            self.plain = less(self.plain, 1, "plain holds", self.pool)
        else:
            self._forecast_no_more(ident, hold)
        return hold

    def refresh(self, now: float) -> None:
        """Before a decision: bring sums up to what was seen, and forecast anew what has grown.

        FOLLOWED requests at a time, in turn; decisions within REFRESH_S take what is there.
        """
        if not self.limits.forecast or now < self.fresh_until:
            return
        self.fresh_until = now + REFRESH_S
        start = self.turn if self.turn < len(self.holds) else 0
        self.turn = start + FOLLOWED
        left = REFRESHED
        for ident, hold in islice(self.holds.items(), start, self.turn):
            if hold.seen > hold.generated:
                self.follow(ident, hold)
            if not left or hold.prefilling or hold.lengths is None:
                continue
            each, at = hold.each, self.outlook.made_at(ident)
            if at is not None and each - at >= max(FRESH, each // 8):
                demand = hold.demand
                term = Term(hold.occupied, each, demand.slots, demand.cap, hold.lengths)
                self.outlook.put(ident, term)
                left -= 1
        if self.mirror.occupied > FULL * self.grants.kv_tokens:
            self.confidence.alarm(now)
        self.z = self.confidence.z(now)
        self._changed()

    def views(self) -> tuple[LedgerView, LedgerView, LedgerView]:
        """KV, prefill and slots for people. What is not ours counts as reserved."""
        used = sum(hold.used for hold in self.holds.values())
        limits = self.grants
        return (
            LedgerView(limits.kv_tokens, self.reserved + self.foreign, used),
            LedgerView(limits.prefill_tokens, self.prefill, self.prefill),
            LedgerView(limits.slots, self.slots + self.foreign_slots, self.slots),
        )

    @property
    def reserved(self) -> int:
        """KV tokens spoken for: all that was charged, or what the pool is forecast to come to."""
        if self.plain or not self.outlook:
            return self.kv
        if self.planned is None:
            self.planned = min(self.worst, max(self.used, math.ceil(self.outlook.peak(self.z))))
        return self.planned

    def _use(self, client: str, tokens: int) -> None:
        """A client uses so many KV tokens more, or fewer."""
        self.used += tokens
        tally(self.in_use, client, tokens, "in use", self.pool)

    def _changed(self) -> None:
        """What was worked out for things as they were holds no more."""
        self.too_large.clear()
        self.planned = None

    def _has_slots(self, slots: int) -> bool:
        if self.slots + slots <= self.all_slots:
            return True
        # The pace may be below what one request with many sequences needs: it runs alone.
        return not self.holds and slots <= self.grants.slots - self.foreign_slots

    def _has_prefill(self, prefill: int) -> bool:
        """A prompt larger than the whole prefill budget still runs: one giant at a time, for which all
        of the budget must be there."""
        most = self.grants.prefill_tokens
        giant = self.prefill == 0 and min(prefill, self.limits.prefill_tokens) <= most
        return giant or self.prefill + prefill <= most

    def _has_kv(self, demand: Demand, lengths: Lengths | None) -> bool:
        worst, limit = demand.worst or demand.kv, self.limit
        if self.worst + worst <= limit:
            return True
        if not self.holds and worst <= self.grants.kv_tokens - self.foreign:
            return True  # as for `room`
        if lengths is None or not demand.start or self.plain:
            return False
        return demand.start <= self.mirror.room(limit) and self._forecast_holds(demand, lengths)

    def _forecast_holds(self, demand: Demand, lengths: Lengths) -> bool:
        """Whether the pool is forecast to hold it as well. What did not fit is remembered until
        something changes: a long line is mostly requests no smaller than one just weighed."""
        size = (demand.prompt_kv, demand.cap, demand.slots)
        known = self.too_large.setdefault(lengths, [])
        if any(all(mine >= its for mine, its in zip(size, one, strict=True)) for one in known):
            return False
        if self.outlook.admits(self.term(demand, lengths), self.limit, self.z):
            return True
        known.append(size)
        return False

    def _forecast_no_more(self, ident: RequestId, hold: Hold) -> None:
        if hold.prefilling:
            self.mirror.starting = less(
                self.mirror.starting, hold.demand.start, "starting", self.pool
            )
        else:
            self.mirror.left(hold.occupied, hold.growth, hold.demand.slots)
        self.outlook.drop(ident)
        self.confidence.gone(ident)
        if not self.holds:
            self.mirror.idle()
