"""Admission: the one place where requests are granted, queued, refused and let go.

Every method is one synchronous step: it takes `now`, changes the books, tries to start whatever
fits, and returns the transitions in the order they happened. A grant is in the ledger before it is
returned, so there is nothing to check later. Who starts next is decided in `choice`; the moves that
decisions are made of are in `turns`, what may wait at all in `bounds`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.core import door, rounds, unseen
from gateway.core.books import Timer
from gateway.core.bounds import Bounds
from gateway.core.flows import Entry
from gateway.core.ledger import PoolLedger
from gateway.core.model import (
    Code,
    Ended,
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
from gateway.core.others import Use
from gateway.core.pools import Pool
from gateway.core.sums import LedgerError
from gateway.core.turns import GOING_DOWN, NOBODY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gateway.core.amount import Amount
    from gateway.core.lengths import Lengths
    from gateway.core.model import (
        ClientRule,
        Demand,
        PoolId,
        PoolLimits,
        QuotaView,
        RequestId,
        Ticket,
        Transition,
    )
    from gateway.core.unseen import Look


NO_USE = Use()
"""Of whom there is nothing to say."""


class Admission(Bounds):
    """Every decision about every request. `jitter` returns a number in [0, 1)."""

    first_ceiling: Amount | None = None
    """The ceiling of a pool that is new: nothing, where others may use it as well."""

    # ---- requests ------------------------------------------------------------------------------

    def submit(self, ticket: Ticket, now: float) -> list[Transition]:
        """Grant, queue or refuse. Raises LedgerError for an id that is in use."""
        ident = ticket.id
        if self.books.knows(ident):
            msg = f"{ident} is at the gate already"
            raise LedgerError(msg)
        out = self._due(now)
        lengths = self.books.lengths_of(ticket)
        demands, refusal = self._door(ticket, lengths, now)
        if refusal is not None:
            out.append(Refused(ident, refusal))
            self._pump(now, out)  # what was due may have made room for others
            return out
        place = self._recall.place(ticket, now)
        entry = Entry(
            ticket=ticket,
            seq=self.books.next_seq() if place is None else place[0],
            came_back=place is not None,
            since=now,
            expires=self._expires(ticket, demands, now),
            need=min(demand.kv for demand in demands.values()),
            demands=demands,
            lengths=lengths,
        )
        self.books.arrive(entry, None if place is None else place[1])
        self._pump(now, out)
        if self._keep_all_bounds(entry, now, out):
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
        self.books.grew(ident, generated)

    def cached(self, ident: RequestId, tokens: int) -> None:
        """The server said how much of a prompt it had in its cache."""
        hold = self.books.live(ident)
        if hold is not None:
            self.books.pools[self.books.held[ident].pool].prefixes.found(hold.hoped, tokens)

    def settle(
        self, ident: RequestId, outcome: Outcome, now: float, why: Release = Release.ENDED
    ) -> list[Transition]:
        """A granted request ended and the engine is done with it: release, once."""
        self.books.mine(ident, "settle")
        out: list[Transition] = []
        self._let_go(ident, why, now, out, learn=outcome is Outcome.COMPLETED)
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
            self.books.let_go(ident, done=False, begun=True)
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
            self._evict(ident, Code.DRAINING, GOING_DOWN, now, out)
            return out
        out.append(Queued(ident, len(self.books.waiting), held.entry.need))
        self._judge_again(held.entry, now, out)
        return out + self.advance(now)

    # ---- pools ---------------------------------------------------------------------------------

    def resize(self, pool: PoolId, limits: PoolLimits, now: float) -> list[Transition]:
        """Add a pool (closed), or replace its limits. Holders finish; what can no longer fit goes."""
        known = self.books.pools.get(pool)
        before = None
        if known is None:
            known = self.books.pools[pool] = Pool(
                PoolLedger(pool, limits, ceiling=self.first_ceiling)
            )
        else:
            before = known.ledger.limits
        known.ledger.resized(limits)
        out: list[Transition] = [Resized(pool, before, limits)]
        for entry in self.books.in_line():
            self._judge_again(entry, now, out)
        return out + self.advance(now)

    def set_open(self, pool: PoolId, now: float, *, is_open: bool) -> list[Transition]:
        """Let work start on a pool, or not. Raises KeyError for an unknown pool."""
        self.books.pools[pool].open = is_open
        if not is_open:
            self.books.pools[pool].fence = None
        return self.advance(now)

    def pause(self, pool: PoolId, now: float, pause_s: float) -> list[Transition]:
        """Nothing new starts on a pool for so long; who waits goes on waiting. Raises KeyError for an
        unknown pool."""
        place = self.books.pools[pool]
        place.paused_until = max(place.paused_until, now + pause_s)
        self.books.at(place.paused_until, Timer.UNPAUSE, NOBODY)
        return self.advance(now)

    def remove(self, pools: Collection[PoolId]) -> bool:
        """Forget pools of which nobody holds anything, for which nobody waits and to which nobody
        could be put back. Whether that was so of all; otherwise nothing changes."""
        if not all(self.books.unused(pool) for pool in pools):
            return False
        for pool in pools:
            self.books.forget(pool)
        return True

    def void(self, pool: PoolId, now: float) -> list[Transition]:
        """The server died: everything it held is gone. Requests end when their callers say so."""
        out: list[Transition] = []
        ledger = self.books.pools[pool].ledger
        if ledger.holds:
            ledger.envelope.died(ledger.used / max(ledger.grants.kv_tokens, 1))
        ledger.confidence.forget()
        ledger.shared_with(0, 0)
        self.books.pools[pool].prefixes.forget()
        self.books.pools[pool].compiling.forget()
        self.books.pools[pool].counted = None
        for ident in list(ledger.holds):
            hold = self.books.void(ident)
            out.append(Released(ident, pool, hold.demand, Release.VOIDED))
        self.books.pools[pool].reads_less(now)
        self._drain.busy(now, is_busy=bool(self.books.held))
        return out + self.advance(now)

    def retracted(self, pool: PoolId, now: float) -> list[Transition]:
        """The engine took memory back from requests under way: less is safe than was planned."""
        ledger = self.books.pools[pool].ledger
        ledger.envelope.retracted()
        ledger.confidence.alarm(now)
        return self.advance(now)

    def looked(self, pool: PoolId, look: Look, now: float) -> list[Transition]:
        """Its engine said what it holds: prompts may be read whose first token nobody sees. Raises KeyError for
        an unknown pool."""
        return self.advance(now) if unseen.looked(self.books.pools[pool], look, now) else []

    def foreign(self, pool: PoolId, tokens: int, slots: int, now: float) -> list[Transition]:
        """So many tokens and sequences run there without a ticket of ours: room is left for them.

        Replaces what was said before. Who waits is not judged by it: it passes. Raises KeyError for
        an unknown pool.
        """
        self.books.pools[pool].ledger.shared_with(tokens, slots)
        return self.advance(now)

    def ceiling(
        self, pool: PoolId, ceiling: Amount | None, now: float, until: float = math.inf
    ) -> list[Transition]:
        """Grant no more than that of a pool in all, until `until`; then nothing, until told again.

        What is held above it finishes. Who waits is not judged by it, as it may be more tomorrow.
        None: all of it. Raises KeyError for an unknown pool.
        """
        self.books.pools[pool].until = until
        self.books.pools[pool].ledger.bound_by(ceiling)
        return self.advance(now)

    def ratio(self, pool: PoolId, ratio: float | None) -> None:
        """The engine's own new_token_ratio, as it says it (see mirror). None: it does not say."""
        self.books.pools[pool].ledger.mirror.said = ratio

    def drain(self, now: float) -> list[Transition]:
        """Admit nothing more: what waits is refused now, what runs may finish."""
        self._draining = True
        out: list[Transition] = []
        self._pump(now, out)
        return out

    # ---- time and views ------------------------------------------------------------------------

    def stood_still(self, seconds: float) -> None:
        """For so long nobody could take a step here: that is no time that anybody has waited.

        Said before the first step after it. Who waits, or may have to again, is given it back, and so
        is who lingers: its engine could not be asked. What clients wait by their own clocks stays. Nor
        does it tell of how fast servers are, or of who does not come back.
        """
        self._recall.stood_still(seconds)
        self._drain.stood_still(seconds)
        for place in self.books.pools.values():
            rounds.stood_still(place, seconds)
            if place.pacing:
                self.books.at(rounds.window_due(place.looked), Timer.PACE, NOBODY)
        for flow in self.books.flows.values():
            for entry in flow.waiting:
                self._give(entry, seconds)
                self.books.at(entry.expires, Timer.EXPIRE, entry.ticket.id)
        for ident, held in self.books.held.items():
            self._give(held.entry, seconds)
            if held.lingering and (hold := self.books.live(ident)) is not None:
                hold.linger_until += seconds
                self.books.at(hold.linger_until, Timer.GRACE, ident)

    def advance(self, now: float) -> list[Transition]:
        """Do what is due at `now`, then start everything that fits."""
        out = self._due(now)
        self._pump(now, out)
        return out

    def next_wakeup(self) -> float | None:
        """When `advance` should be called next if nothing else happens."""
        wake = self.books.next_timer()
        return wake if wake is None else max(wake, self._put_off_until)

    def view(self, now: float) -> View:
        """Everything held and waiting, frozen."""
        return self.books.view(now)

    def quotas(self, rules: Iterable[ClientRule], now: float) -> list[QuotaView]:
        """How those of these clients stand that have a quota."""
        looks = (self.meters.look(rule, self.books.under_way(rule), now) for rule in rules)
        return [look for look in looks if look is not None]

    def uses(self, rules: Iterable[ClientRule], now: float) -> dict[str, Use]:
        """What other processes are to know of those of these clients that have a limit of tokens."""
        found = {}
        for rule in rules:
            flow = self.books.flows.get(rule.name)
            held = flow.held if flow is not None and rule.max_held_tokens is not None else 0
            use = self.meters.use(rule, self.books.under_way(rule), held, now)
            if use != NO_USE:
                found[rule.name] = use
        return found

    def heard(self, now: float) -> list[Transition]:
        """Others may have said something, or too long nothing: who waits for them may start."""
        self.others.look(now)
        for flow in self.books.flows.values():
            flow.look(now)
        return self.advance(now)

    # ---- the door ------------------------------------------------------------------------------

    def _door(
        self, ticket: Ticket, lengths: Lengths, now: float
    ) -> tuple[dict[PoolId, Demand], Refusal | None]:
        """What `ticket` would take where, or why it is refused without queueing."""
        if self._draining:
            return {}, self._refusal(Code.DRAINING, GOING_DOWN)
        demands, misfit = door.demands_of(ticket, self.books.pools, lengths)
        if misfit is not None:
            return {}, door.never(misfit)
        under_way = self.books.under_way(ticket.client)
        if (spent := self.meters.spent(ticket.client, under_way, now)) is not None:
            return {}, door.over_quota(spent)
        if not any(self.books.pools[pool].open for pool in demands):
            return {}, self._refusal(Code.NO_BACKEND, "no server is ready for this request")
        return demands, None

    def _judge_again(self, entry: Entry, now: float, out: list[Transition]) -> None:
        """Limits changed: what would a waiting request take now?"""
        ticket = entry.ticket
        lengths = self.books.lengths_of(ticket)
        demands, misfit = door.demands_of(ticket, self.books.pools, lengths)
        if misfit is not None:
            self.books.dequeue(ticket.id)
            out.append(Refused(ticket.id, door.never(misfit), now - entry.since))
            return
        self.books.price(entry, demands)
