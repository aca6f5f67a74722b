"""Admission: the one place where requests are granted, queued, refused and let go.

Every method is one synchronous step: it takes `now`, changes the books, tries to start whatever
fits, and returns the transitions in the order they happened. A grant is in the ledger before it is
returned, so there is nothing to check later. Who starts next is decided in `choice`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core import door
from gateway.core.books import Books, Pool, Timer
from gateway.core.choice import next_to_start
from gateway.core.drainrate import DrainRate, retry_after_s
from gateway.core.flows import Entry, longest
from gateway.core.ledger import LedgerError, PoolLedger
from gateway.core.model import (
    Code,
    Ended,
    Grant,
    Granted,
    Lingering,
    Outcome,
    Queued,
    Refusal,
    Refused,
    Release,
    Released,
    Resized,
    View,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.core.model import (
        Demand,
        PoolId,
        PoolLimits,
        QueueRule,
        RequestId,
        Ticket,
        Transition,
    )


class Admission:
    """Every decision about every request. `jitter` returns a number in [0, 1)."""

    def __init__(
        self, queue: QueueRule, *, now: float = 0.0, jitter: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.queue = queue
        self.books = Books()
        self._jitter = jitter
        self._drain = DrainRate(started=now)
        self._draining = False

    # ---- requests ------------------------------------------------------------------------------

    def submit(self, ticket: Ticket, now: float) -> list[Transition]:
        """Grant, queue or refuse. Raises LedgerError for an id that is in use."""
        ident = ticket.id
        if self.books.knows(ident):
            msg = f"{ident} is at the gate already"
            raise LedgerError(msg)
        out = self._due(now)
        demands, refusal = self._door(ticket, now)
        if refusal is not None:
            out.append(Refused(ident, refusal))
            self._pump(now, out)  # what was due may have made room for others
            return out
        wait_until = now + self.queue.max_wait_s
        entry = Entry(
            ticket=ticket,
            seq=self.books.next_seq(),
            since=now,
            expires=wait_until if ticket.deadline is None else min(wait_until, ticket.deadline),
            need=min(demand.kv for demand in demands.values()),
            demands=demands,
        )
        self.books.enqueue(entry)
        self._pump(now, out)
        if ident in self.books.waiting:
            self._keep_client_bound(entry, now, out)
        if ident in self.books.waiting:
            self._keep_bounds(entry, now, out)
        if ident in self.books.waiting:
            self.books.at(entry.expires, Timer.EXPIRE, ident)
            out.append(Queued(ident, len(self.books.waiting), entry.need))
        return out

    def cancel(self, ident: RequestId, now: float) -> list[Transition]:
        """The client of a waiting request left."""
        out = self._due(now)
        if ident in self.books.waiting:
            self.books.dequeue(ident)
            out.append(Ended(ident, Outcome.CANCELLED))
        self._pump(now, out)
        return out

    def first_token(self, ident: RequestId, now: float) -> list[Transition]:
        """The engine produced its first token: the prompt is prefilled."""
        return self.advance(now) if self.books.first_token(ident, now) else []

    def true_up(self, ident: RequestId, generated: int) -> None:
        """What was generated so far, over all sequences: forecast becomes fact."""
        hold = self.books.live(ident)
        if hold is not None:
            hold.generated = max(hold.generated, generated)

    def settle(
        self, ident: RequestId, outcome: Outcome, now: float, why: Release = Release.ENDED
    ) -> list[Transition]:
        """A granted request ended and the engine is done with it: release, once."""
        self.books.mine(ident, "settle")
        out: list[Transition] = []
        self._let_go(ident, why, now, out)
        out.append(Ended(ident, outcome))
        return out + self.advance(now)

    def abandon(
        self, ident: RequestId, outcome: Outcome, now: float, grace_s: float
    ) -> list[Transition]:
        """A granted request ended for its client, but the engine may still be at it.

        The reservation stays until `confirm`, or until `grace_s` passed.
        """
        held = self.books.mine(ident, "abandon")
        out: list[Transition] = [Ended(ident, outcome)]
        hold = self.books.live(ident)
        if hold is None:
            self.books.let_go(ident)
        else:
            held.lingering = hold.lingering = True
            hold.linger_until = now + grace_s
            self.books.at(hold.linger_until, Timer.GRACE, ident)
            out.append(Lingering(ident, held.pool, now + grace_s))
        return out + self.advance(now)

    def confirm(self, ident: RequestId, now: float) -> list[Transition]:
        """The engine has shown an abandoned request gone. Late confirmations change nothing."""
        held = self.books.held.get(ident)
        out: list[Transition] = []
        if held is not None and held.lingering:
            self._let_go(ident, Release.CONFIRMED, now, out)
        return out + self.advance(now)

    def prolong(self, ident: RequestId, now: float, grace_s: float) -> list[Transition]:
        """The engine says it is still at an abandoned request: keep its reservation longer."""
        held, hold = self.books.held.get(ident), self.books.live(ident)
        if held is None or hold is None or not held.lingering:
            return []
        hold.linger_until = max(hold.linger_until, now + grace_s)
        self.books.at(hold.linger_until, Timer.GRACE, ident)
        return [Lingering(ident, held.pool, hold.linger_until)]

    def requeue(self, ident: RequestId, now: float, pause_s: float) -> list[Transition]:
        """The engine pushed a request back before it started: same place in the queue again.

        Nothing new starts on that pool for `pause_s`: being told "full" is back-pressure.
        """
        held = self.books.mine(ident, "put back")
        out: list[Transition] = []
        if not held.void:
            pool = self.books.pools[held.pool]
            pool.paused_until = max(pool.paused_until, now + pause_s)
            self.books.at(pool.paused_until, Timer.UNPAUSE, ident)
        self._let_go(ident, Release.REQUEUED, now, out)
        self.books.enqueue(held.entry)
        self.books.at(held.entry.expires, Timer.EXPIRE, ident)
        if self._draining:
            self._evict(ident, Code.DRAINING, "the gate is shutting down", now, out)
            return out
        out.append(Queued(ident, len(self.books.waiting), held.entry.need))
        self._judge_again(ident, now, out)
        return out + self.advance(now)

    # ---- pools ---------------------------------------------------------------------------------

    def resize(self, pool: PoolId, limits: PoolLimits, now: float) -> list[Transition]:
        """Add a pool (closed), or replace its limits. Holders finish; what can no longer fit goes."""
        known = self.books.pools.get(pool)
        before = None
        if known is None:
            self.books.pools[pool] = Pool(PoolLedger(pool, limits))
        else:
            before = known.ledger.limits
            known.ledger.limits = limits
        out: list[Transition] = [Resized(pool, before, limits)]
        for ident in list(self.books.waiting):
            self._judge_again(ident, now, out)
        return out + self.advance(now)

    def set_open(self, pool: PoolId, now: float, *, is_open: bool) -> list[Transition]:
        """Let work start on a pool, or not. Raises KeyError for an unknown pool."""
        self.books.pools[pool].open = is_open
        if not is_open:
            self.books.pools[pool].fence = None
        return self.advance(now)

    def void(self, pool: PoolId, now: float) -> list[Transition]:
        """The server died: everything it held is gone. Requests end when their callers say so."""
        out: list[Transition] = []
        for ident in list(self.books.pools[pool].ledger.holds):
            hold = self.books.void(ident)
            out.append(Released(ident, pool, hold.demand, Release.VOIDED))
        self._drain.busy(now, is_busy=bool(self.books.held))
        return out + self.advance(now)

    def drain(self, now: float) -> list[Transition]:
        """Admit nothing more: what waits is refused now, what runs may finish."""
        self._draining = True
        out: list[Transition] = []
        for ident in list(self.books.waiting):
            self._evict(ident, Code.DRAINING, "the gate is shutting down", now, out)
        return out

    # ---- time and views ------------------------------------------------------------------------

    def advance(self, now: float) -> list[Transition]:
        """Do what is due at `now`, then start everything that fits."""
        out = self._due(now)
        self._pump(now, out)
        return out

    def next_wakeup(self) -> float | None:
        """When `advance` should be called next if nothing else happens."""
        return self.books.next_timer()

    def view(self, now: float) -> View:
        """Everything held and waiting, frozen."""
        return self.books.view(now)

    # ---- the door ------------------------------------------------------------------------------

    def _door(self, ticket: Ticket, now: float) -> tuple[dict[PoolId, Demand], Refusal | None]:
        """What `ticket` would take where, or why it is refused without queueing."""
        if self._draining:
            return {}, self._refusal(Code.DRAINING, "the gate is shutting down", 0, now)
        demands, misfit = door.demands_of(ticket, self.books.pools)
        if misfit is not None:
            return {}, door.never(misfit)
        if not any(self.books.pools[pool].open for pool in demands):
            return {}, self._refusal(Code.NO_BACKEND, "no server is ready for this request", 0, now)
        return demands, None

    def _judge_again(self, ident: RequestId, now: float, out: list[Transition]) -> None:
        """Limits changed: what would a waiting request take now?"""
        entry = self.books.entry(ident)
        demands, misfit = door.demands_of(entry.ticket, self.books.pools)
        if misfit is not None:
            self.books.dequeue(ident)
            out.append(Refused(ident, door.never(misfit), now - entry.since))
            return
        self.books.price(entry, demands)

    def _keep_client_bound(self, entry: Entry, now: float, out: list[Transition]) -> None:
        """A client may have only so many waiting; asked once the newest has found no room."""
        client = entry.ticket.client
        limit = client.max_waiting
        if limit is not None and len(self.books.waiting[entry.ticket.id].waiting) > limit:
            message = f"client {client.name!r} has {limit} requests waiting, its limit"
            self._evict(entry.ticket.id, Code.CLIENT_LIMIT, message, now, out, new=True)

    def _keep_bounds(self, entry: Entry, now: float, out: list[Transition]) -> None:
        """The queue is over its bounds: whoever waits with most per weight gives way."""
        rule, books = self.queue, self.books
        alone = entry.need > rule.max_tokens or entry.ticket.body_bytes > rule.max_bytes
        while (
            len(books.waiting) > rule.max_requests
            or books.tokens > rule.max_tokens
            or books.bytes > rule.max_bytes
        ):
            own = books.waiting[entry.ticket.id]
            fullest = longest(books.flows.values())
            # One that is over the bounds by itself pushes nobody out for nothing.
            gives_way = not alone and fullest is not None and fullest.line > own.line
            victim = fullest.waiting[-1] if fullest is not None and gives_way else entry
            message = (
                f"{len(books.waiting) - 1} requests with {books.tokens - victim.need} tokens are "
                "waiting, which is all the queue takes"
            )
            self._evict(victim.ticket.id, Code.QUEUE_FULL, message, now, out, new=victim is entry)
            if victim is entry:
                return

    # ---- the pump ------------------------------------------------------------------------------

    def _pump(self, now: float, out: list[Transition]) -> None:
        """Grant until nothing more fits."""
        while self.books.waiting and (choice := next_to_start(self.books, now)) is not None:
            entry, ledger, demand = choice
            self.books.hold(entry, ledger.pool, demand, now)
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
                    )
                )
            )

    # ---- ends ----------------------------------------------------------------------------------

    def _let_go(self, ident: RequestId, why: Release, now: float, out: list[Transition]) -> None:
        """Take a held request out of the books; a voided one has nothing left in them."""
        pool = self.books.held[ident].pool
        hold = self.books.let_go(ident)
        if hold is not None:
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
        entry = self.books.dequeue(ident)
        refusal = self._refusal(code, message, entry.need, now)
        out.append(Refused(ident, refusal, None if new else now - entry.since))

    def _refusal(self, code: Code, message: str, need: int, now: float) -> Refusal:
        pools = self.books.pools.values()
        free = sum(max(0, pool.ledger.free) for pool in pools if pool.open)
        eta = self._drain.eta_s(self.books.tokens + need - free, now)
        return Refusal(
            code=code,
            message=message,
            needed=need or None,
            available=free,
            position=len(self.books.waiting) + 1,
            eta_s=eta,
            retry_after_s=retry_after_s(eta, self._jitter),
        )

    def _due(self, now: float) -> list[Transition]:
        out: list[Transition] = []
        while (timer := self.books.due(now)) is not None:
            self._fire(*timer, now, out)
        return out

    def _fire(self, what: Timer, ident: RequestId, now: float, out: list[Transition]) -> None:
        """One due timer; those whose request has moved on since do nothing."""
        match what:
            case Timer.EXPIRE:
                if ident in self.books.waiting:
                    entry = self.books.entry(ident)
                    message = f"waited {now - entry.since:.0f} s for room on a server"
                    self._evict(ident, Code.QUEUE_TIMEOUT, message, now, out)
            case Timer.PREFILLED:
                hold = self.books.live(ident)
                if hold is not None and hold.prefilled_by is not None and hold.prefilled_by <= now:
                    self.books.pools[self.books.held[ident].pool].ledger.prefilled(ident)
            case Timer.GRACE:
                held, hold = self.books.held.get(ident), self.books.live(ident)
                if held is not None and held.lingering and hold and hold.linger_until <= now:
                    self._let_go(ident, Release.GRACE, now, out)
            case Timer.UNPAUSE:
                pass  # the pump that follows compares paused_until itself
