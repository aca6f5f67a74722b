"""The moves every decision is made of: start what fits, let go, evict, refuse, and what is due.

`Admission` is the face; these are its hands. Nothing outside the core calls them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.core import rounds, unseen
from gateway.core.amount import NOTHING
from gateway.core.books import Books, Timer
from gateway.core.choice import next_to_start
from gateway.core.drainrate import DrainRate, retry_after_s
from gateway.core.eta import wait_s
from gateway.core.model import (
    Code,
    Grant,
    Granted,
    Refusal,
    Refused,
    Release,
    Released,
    RequestId,
)
from gateway.core.others import Others
from gateway.core.quota import Meters
from gateway.core.reasons import waits_for
from gateway.core.recall import Recall

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.core.flows import Entry
    from gateway.core.hold import Hold
    from gateway.core.model import Demand, PoolId, QueueRule, Ticket, Transition

COMES_BACK = frozenset({Code.QUEUE_FULL, Code.QUEUE_TIMEOUT, Code.DEADLINE_UNREACHABLE})
"""Refusals for want of room: whoever honours the time they name finds its place kept."""

USED = frozenset({Release.ENDED, Release.CONFIRMED, Release.GRACE})
"""Ends of requests the engine was at work on; what died with its server is not charged."""

NEVER_BEGUN = frozenset({Release.UNSENT, Release.REQUEUED})
"""Ends of requests that the engine never was at work on."""

NO_ROOM_TO_TELL = frozenset({Code.DRAINING, Code.NO_BACKEND})
"""Refusals that room, places in line and the drain rate say nothing of: another gate, or another
start of a server, will answer."""

GOING_DOWN = "the gate is shutting down"

STEP_S = 0.001
"""Within so much the caller has made one turn of its loop, or few; its clock counts no less."""

ALL = 1 << 30
"""No bound: where nobody else waits for the caller's thread."""

NOBODY = RequestId("")
"""The request of a timer that is about none."""


class Turns:
    """State and moves. `jitter` returns a number in [0, 1)."""

    def __init__(
        self, queue: QueueRule, *, now: float = 0.0, jitter: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.queue = queue
        self.others = Others()
        self.books = Books(self.others)
        self.meters = Meters(self.others)
        self._jitter = jitter
        self._drain = DrainRate(started=now)
        self._recall = Recall()
        self._look_at = 0.0
        self._draining = False
        self.at_once = ALL
        """How many are started and sent away within `STEP_S`, all steps together; the rest is due after it.
        Each is told, which is a request's work for the caller."""
        self._moved = 0
        self._turn_ends = -math.inf
        self._put_off_until = -math.inf  # more may move then; what is due as well

    @property
    def draining(self) -> bool:
        """Whether nothing is admitted any more."""
        return self._draining

    # ---- the pump ------------------------------------------------------------------------------

    def _pump(self, now: float, out: list[Transition]) -> None:
        """Grant until nothing more fits, or as many as may be at once."""
        if not self.books.waiting:
            return
        if self._draining:
            self._send_away(now, out)
            return
        for pool in self.books.pools.values():
            if pool.until <= now:
                pool.ledger.bound_by(NOTHING)
                pool.until = math.inf
            pool.ledger.refresh(now)
        while self.books.waiting and self._may_move(now) and self._start_next(now, out):
            pass
        if self.books.waiting and self._look_at <= now and self._forecasts():
            self._look_at = now + rounds.LOOK_S
            self.books.at(self._look_at, Timer.LOOK, NOBODY)

    def _start_next(self, now: float, out: list[Transition]) -> bool:
        """Grant whoever's turn it is, if anything fits; whether it does."""
        choice = next_to_start(self.books, now)
        if choice is None:
            return False
        self._moved += 1
        entry, ledger, demand = choice
        hold = self.books.hold(entry, ledger.pool, demand, now)
        self._watch_pace(ledger.pool, now)
        self._drain.busy(now, is_busy=True)
        asked = entry.ticket.ask.cap
        out.append(
            Granted(
                Grant(
                    id=entry.ticket.id,
                    pool=ledger.pool,
                    demand=demand,
                    clamped_from=asked if asked is not None and demand.cap < asked else None,
                    injected=asked is None,
                    queued_s=now - entry.since,
                    ttft_s=hold.prediction.likely if hold.prediction else None,
                    ttft_high_s=hold.prediction.high if hold.prediction else None,
                    compile_s=hold.compile_s,
                )
            )
        )
        return True

    def _may_move(self, now: float) -> bool:
        """Whether one more may be started or sent away now. If not, there is a timer for it."""
        if now >= self._turn_ends:
            self._turn_ends, self._moved = now + STEP_S, 0
        if self._moved < self.at_once:
            return True
        if self._put_off_until < self._turn_ends:
            self._put_off_until = self._turn_ends
            self.books.at(self._turn_ends, Timer.LOOK, NOBODY)
        return False

    def _put_off(self, now: float) -> bool:
        """Whether some of what waits may only have been put off."""
        return now < self._put_off_until

    def _send_away(self, now: float, out: list[Transition]) -> None:
        """The gate goes down: refuse what waits, in its order."""
        while self.books.waiting and self._may_move(now):
            self._evict(next(iter(self.books.waiting)), Code.DRAINING, GOING_DOWN, now, out)

    def _forecasts(self) -> bool:
        """Whether room may come without an event."""
        pools = self.books.pools.values()
        return any(p.open and p.ledger.holds and p.ledger.limits.forecast for p in pools)

    def _watch_pace(self, ident: PoolId, now: float) -> None:
        """Something runs: look at it by windows until nothing does. For its speed, where that is asked
        for; and while part of the pool is held back, as clean work gives it back (see `envelope`)."""
        place = self.books.pools[ident]
        limits, lowered = place.ledger.limits, place.ledger.envelope.share < 1.0
        if not place.pacing and (limits.forecast or limits.tpot_s is not None or lowered):
            place.pacing, place.looked = True, now
            self.books.at(rounds.window_due(now), Timer.PACE, NOBODY)

    def _paced(self, now: float) -> None:
        for ident, place in self.books.pools.items():
            if place.pacing and rounds.window_due(place.looked) <= now:
                rounds.window(place, now)
                place.pacing = False
                if place.ledger.holds:
                    self._watch_pace(ident, now)

    def _expires(self, ticket: Ticket, demands: dict[PoolId, Demand], now: float) -> float:
        """When waiting is of no use any more."""
        return min(now + self.queue.max_wait_s, max(self._useful(ticket, demands), now))

    def _useful(self, ticket: Ticket, demands: dict[PoolId, Demand]) -> float:
        """Until when its client waits: sooner than its deadline by what its prompt takes."""
        if ticket.deadline is None:
            return math.inf
        takes = (
            self.books.pools[pool].alone_s(demand, ticket.lead) for pool, demand in demands.items()
        )
        return ticket.deadline - min(takes, default=0.0)

    def _give(self, entry: Entry, seconds: float) -> None:
        """Let it wait so much longer, but not longer than its client does."""
        entry.given += seconds
        until = min(entry.expires + seconds, self._useful(entry.ticket, entry.demands))
        entry.expires = max(entry.expires, until)

    # ---- ends ----------------------------------------------------------------------------------

    def _let_go(
        self,
        ident: RequestId,
        why: Release,
        now: float,
        out: list[Transition],
        *,
        learn: bool = False,
    ) -> None:
        """Take a held request out of the books; a voided one has nothing left in them."""
        pool, ticket = self.books.held[ident].pool, self.books.held[ident].entry.ticket
        hold = self.books.let_go(ident, done=learn, begun=why not in NEVER_BEGUN)
        if hold is not None:
            if learn:
                unseen.answered(self.books.pools[pool], hold, now, scores=ticket.scores)
            if hold.prefilling:
                self.books.pools[pool].reads_less(now)
            if learn:
                hold.finished()
                self.books.pools[pool].heard = now
            if why in USED and (learn or hold.seen or why is not Release.ENDED):
                # What failed before its first token took nothing from anybody.
                self.meters.charge(ticket.client, hold.prompt + hold.seen, now)
            self._drain.released(hold.demand.kv, now)
            self._drain.busy(now, is_busy=bool(self.books.held))
            out.append(Released(ident, pool, hold.demand, why))

    def _evict(
        self,
        ident: RequestId,
        code: Code,
        message: str,
        now: float,
        out: list[Transition],
        *,
        new: bool = False,
    ) -> None:
        self._moved += 1
        entry = self.books.entry(ident)
        known = bool(entry.demands)  # else it waited for no pool: of what it lacks nothing is known
        eta = self._eta(entry, now) if known and code not in NO_ROOM_TO_TELL else None
        self.books.dequeue(ident)
        refusal = self._refusal(code, message, entry.need, eta, entry.ticket.stretch)
        if known and code in COMES_BACK and refusal.retry_after_s is not None:
            self._recall.keep(entry, now, refusal.retry_after_s)
        out.append(Refused(ident, refusal, None if new else now - entry.since))

    def _eta(self, entry: Entry, now: float) -> float | None:
        return wait_s(self.books, entry, self._drain, self._recall.away(now), now)

    def _refusal(
        self,
        code: Code,
        message: str,
        need: int = 0,
        eta: float | None = None,
        stretch: float = 1.0,
    ) -> Refusal:
        if code in NO_ROOM_TO_TELL:
            return Refusal(code, message, retry_after_s=retry_after_s(eta, self._jitter))
        pools = self.books.pools.values()
        return Refusal(
            code=code,
            message=message,
            needed=need or None,
            available=sum(max(0, pool.ledger.free) for pool in pools if pool.open),
            position=len(self.books.waiting) + 1,
            eta_s=eta,
            retry_after_s=retry_after_s(eta, self._jitter, stretch),
        )

    def _due(self, now: float) -> list[Transition]:
        out: list[Transition] = []
        while self._may_move(now) and (timer := self.books.due(now)) is not None:
            self._fire(*timer, now, out)
        return out

    def _fire(self, what: Timer, ident: RequestId, now: float, out: list[Transition]) -> None:
        """One due timer; those whose request has moved on since do nothing."""
        match what:
            case Timer.EXPIRE:
                if ident in self.books.waiting:
                    entry = self.books.entry(ident)
                    if entry.expires <= now:  # else it was given more time, and another timer
                        self._expire(entry, now, out)
            case Timer.PREFILLED | Timer.GRACE if (hold := self.books.live(ident)) is not None:
                self._overdue(what, ident, hold, now, out)
            case Timer.PACE:
                self._paced(now)
            case _:
                pass  # it has moved on; or the pump that follows looks for itself

    def _overdue(
        self, what: Timer, ident: RequestId, hold: Hold, now: float, out: list[Transition]
    ) -> None:
        """Something should have been heard of a request by now."""
        by = hold.prefilled_by
        if what is Timer.PREFILLED and by is not None and by <= now:
            pool = self.books.pools[self.books.held[ident].pool]
            pool.ledger.prefilled(ident, now)
            pool.reads_less(now)
        elif what is Timer.GRACE and hold.lingering and hold.linger_until <= now:
            self._let_go(ident, Release.GRACE, now, out)

    def _expire(self, entry: Entry, now: float, out: list[Transition]) -> None:
        """It waited as long as is of use."""
        ticket, why = entry.ticket, waits_for(self.books, entry, now)
        waited = f"waited {now - entry.since:.0f} s {why}"
        until = entry.since + self.queue.max_wait_s + entry.given
        if ticket.deadline is not None and ticket.deadline < until:
            message = f"{waited}; its first token could no longer come in time"
            self._evict(ticket.id, Code.DEADLINE_UNREACHABLE, message, now, out)
        else:
            self._evict(ticket.id, Code.QUEUE_TIMEOUT, waited, now, out)
