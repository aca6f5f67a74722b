"""The asyncio shell around the core: owns every await, decides nothing.

`async with gate.admit(ticket) as lease:` waits until the core grants the ticket and gives the
reservation back however the block ends. One future per waiter, one timer in all. Leaving the block
never awaits, so a cancellation can not slip between the end of a request and its release:

- `lease.end(outcome)` was called: the engine is done with the request, the reservation is released;
- nothing went upstream yet (`lease.sent()` was not called): released at once;
- otherwise the engine may still be at it: the reservation lingers and `on_abandon` is told, whose
  duty is to abort upstream and to call `confirmed` when the engine has shown the request gone.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from gateway.core.appetite import appetite, steady, uses
from gateway.core.envelope import LEAST_SHARE
from gateway.core.model import Granted, Outcome, Refused, Release, Released
from gateway.tasks import Alarm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from types import TracebackType

    from gateway.core.admission import Admission
    from gateway.core.amount import Amount
    from gateway.core.appetite import Appetite
    from gateway.core.hold import Hold
    from gateway.core.model import (
        Grant,
        PoolId,
        PoolLimits,
        QueueRule,
        Refusal,
        RequestId,
        Ticket,
        Transition,
        View,
    )
    from gateway.core.unseen import Look


class Shed(Exception):
    """The request was refused: at the door, or after it waited `queued_s` seconds."""

    def __init__(self, refusal: Refusal, queued_s: float | None) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.queued_s = queued_s


class Lease:
    """One request's stay: waiting, then holding. Use as an async context manager, once."""

    __slots__ = (
        *("ticket", "grace_s", "held", "rest", "generated"),
        *("_gate", "_hold", "_sent", "_outcome"),
    )

    def __init__(self, gate: Gate, ticket: Ticket, grace_s: float) -> None:
        self.ticket = ticket
        self.grace_s = grace_s
        self._gate = gate
        self.held: Grant | None = None  # set by the gate
        self.rest: Callable[[], None] | None = None  # what to do where it has to wait; never raises
        self.generated = 0  # tokens so far, over all sequences
        self._hold: Hold | None = None  # once its first output is here: it can not be put back then
        self._sent = False
        self._outcome: Outcome | None = None

    @property
    def void(self) -> bool:
        """Whether the reservation was written off: the server it was on has died."""
        return self.ticket.id in self._gate.voided

    @property
    def grant(self) -> Grant:
        """The reservation. Raises RuntimeError before it was granted."""
        if self.held is None:
            msg = "not granted"
            raise RuntimeError(msg)
        return self.held

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._outcome is not None

    def __aenter__(self) -> Awaitable[Lease]:
        return self._gate.verdict(self, partial(self._gate.core.submit, self.ticket))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.held is None or self._outcome is not None:
            return
        left = kind is not None and issubclass(kind, asyncio.CancelledError | ConnectionError)
        self._leave(Outcome.CANCELLED if left else Outcome.FAILED)

    def sent(self) -> None:
        """The request is about to be handed to the server: from now on it may be at work on it."""
        self._sent = True

    def first_token(self) -> None:
        """The first output reached us: the prompt is prefilled."""
        self._gate.first_token(self.ticket.id)
        self._hold = self._gate.core.books.live(self.ticket.id)

    def true_up(self, generated: int) -> None:
        """So many tokens have been generated, over all sequences."""
        self.generated = generated
        if (hold := self._hold) is None:
            self._gate.core.true_up(self.ticket.id, generated)
        elif generated > hold.seen:  # as the core would, without asking for it with each piece
            hold.seen = generated

    def cached(self, tokens: int) -> None:
        """So many prompt tokens lay in the server's cache."""
        self._gate.core.cached(self.ticket.id, tokens)

    def end(self, outcome: Outcome) -> None:
        """The engine is done with this request. Later calls change nothing: it ended once."""
        if self._outcome is None and self.held is not None:
            self._outcome = outcome
            self._gate.settle(self.ticket.id, outcome, Release.ENDED)

    def abandon(self, outcome: Outcome) -> None:
        """It ended for the client, and the engine may not know: hold until that is confirmed."""
        if self._outcome is None and self.held is not None:
            self._leave(outcome)

    async def requeue(self, pause_s: float) -> None:
        """The server pushed the request back before it started, or died under it: wait again, with
        the old place. Nothing starts on that server for `pause_s`, unless it has died.

        Raises Shed when its time in the queue is over.
        """
        self.held, self._sent, self.generated, self._hold = None, False, 0, None
        step = partial(self._gate.core.requeue, self.ticket.id, pause_s=pause_s)
        await self._gate.verdict(self, step)

    def _leave(self, outcome: Outcome) -> None:
        self._outcome = outcome
        if self._sent:
            self._gate.abandon(self, outcome)
        else:
            self._gate.settle(self.ticket.id, outcome, Release.UNSENT)


class Gate:
    """Waiters and the timer in front of one `Admission`.

    `listener` sees every transition once, in order; it must not raise. `on_abandon` gets leases
    whose requests may still run upstream; it must not block.
    """

    def __init__(
        self,
        core: Admission,
        *,
        listener: Callable[[Transition], None],
        on_abandon: Callable[[Lease], None],
    ) -> None:
        self.core = core
        self._listener = listener
        self._on_abandon = on_abandon
        self._waiters: dict[RequestId, asyncio.Future[Grant]] = {}
        self._holders: set[RequestId] = set()  # granted, and not let go by their client
        self.voided: set[RequestId] = set()  # of these, whose server died
        self._clock: Callable[[], float] | None = None
        self._alarm = Alarm(self._tick)
        self._idle = asyncio.Event()
        self._idle.set()

    def admit(self, ticket: Ticket, *, grace_s: float) -> Lease:
        """A lease for `ticket`; entering it waits for the grant and raises `Shed` when refused."""
        return Lease(self, ticket, grace_s)

    def attend(self, ticket: Ticket) -> asyncio.Future[Grant]:
        """Let a request that names no pool wait in the queue, until `leave`. What is returned never has a
        result: it raises `Shed` where the queue has no place for it, or none any more."""
        waiter: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._waiters[ticket.id] = waiter
        self._apply(self.core.attend(ticket, self._step()))
        return waiter

    def leave(self, ident: RequestId) -> None:
        """It waits for no pool any more."""
        waiter = self._waiters.pop(ident)
        if waiter.done():
            waiter.exception()  # seen, also where whoever asked has been cancelled
        self._apply(self.core.leave(ident, self._step()))

    # ---- for leases ----------------------------------------------------------------------------

    async def verdict(self, lease: Lease, step: Callable[[float], list[Transition]]) -> Lease:
        """Take a step of the core that grants, queues or refuses, and await the verdict. All that
        stays of a way to the queue: thousands may be in here."""
        ident = lease.ticket.id
        self._let_go(ident)  # of what it held, where it is put back
        waiter: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._waiters[ident] = waiter
        try:
            self._apply(step(self._step()))
            del step
            if lease.rest is not None and not waiter.done():
                lease.rest()
            lease.rest = None
            lease.held = await waiter
        except asyncio.CancelledError:
            # The verdict may have come in the same turn of the loop as the cancellation.
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # seen: nobody else will fetch it
            if ident in self._holders:
                self.settle(ident, Outcome.CANCELLED, Release.UNSENT)
            else:
                self._apply(self.core.cancel(ident, self._step()))
            raise
        finally:
            self._waiters.pop(ident, None)
            del waiter  # a refusal that it holds has passed this frame, and so holds it
        return lease

    def first_token(self, ident: RequestId) -> None:
        """See `Lease.first_token`."""
        self._apply(self.core.first_token(ident, self._step()))

    def settle(self, ident: RequestId, outcome: Outcome, why: Release) -> None:
        """Release, once."""
        self._let_go(ident)
        self._apply(self.core.settle(ident, outcome, self._step(), why))

    def abandon(self, lease: Lease, outcome: Outcome) -> None:
        """Keep the reservation until confirmed, and say whom to abort."""
        self._let_go(lease.ticket.id)
        self._apply(self.core.abandon(lease.ticket.id, outcome, self._step(), lease.grace_s))
        self._on_abandon(lease)

    # ---- for the watchers of servers -----------------------------------------------------------

    def confirmed(self, ident: RequestId) -> None:
        """The engine has shown an abandoned request gone."""
        self._apply(self.core.confirm(ident, self._step()))

    def prolong(self, ident: RequestId, grace_s: float) -> None:
        """The engine says it is still at an abandoned request."""
        self._apply(self.core.prolong(ident, self._step(), grace_s))

    def resize(self, pool: PoolId, limits: PoolLimits) -> None:
        """A server (re)started, or policy changed."""
        self._apply(self.core.resize(pool, limits, self._step()))

    def set_open(self, pool: PoolId, *, is_open: bool) -> None:
        """Whether work may start on a pool."""
        self._apply(self.core.set_open(pool, self._step(), is_open=is_open))

    def pause(self, pool: PoolId, pause_s: float) -> None:
        """Nothing new starts on a pool for so many seconds."""
        self._apply(self.core.pause(pool, self._step(), pause_s))

    def remove(self, pools: Collection[PoolId]) -> bool:
        """Forget pools that no request names any more; whether that could be done."""
        return self.core.remove(pools)

    def rule(self, queue: QueueRule) -> None:
        """Other bounds of the queue. Who waits goes on waiting as long as it was told."""
        self.core.queue = queue

    def occupy(self, pool: PoolId, kv: int, slots: int) -> None:
        """Charge a pool with tokens and sequences that run there without a ticket of ours, in place of the
        last such charge."""
        self._apply(self.core.foreign(pool, kv, slots, self._step()))

    def occupied(self, pool: PoolId) -> tuple[int, int]:
        """What `occupy` last said: tokens, sequences."""
        ledger = self.core.books.pools[pool].ledger
        return ledger.foreign, ledger.foreign_slots

    def uses(self, pool: PoolId) -> tuple[int, int]:
        """KV tokens that our requests use on a pool now, at least and at most."""
        return uses(self.core.books.pools[pool].ledger)

    def ceiling(self, pool: PoolId, ceiling: Amount, until: float) -> None:
        """Grant no more than that of a pool in all, until then (the loop's clock), and after it nothing."""
        self._apply(self.core.ceiling(pool, ceiling, self._step(), until))

    def appetite(self, pool: PoolId) -> Appetite:
        """What is held of a pool, and what those who wait for it would take."""
        return appetite(self.core.books, pool, self.now())

    def steady(self, pool: PoolId, before: float) -> int:
        """Sequences there that were granted before that (the loop's clock) and that nobody has left."""
        return steady(self.core.books.pools[pool].ledger, before)

    def used(self, pool: PoolId) -> int:
        """KV tokens our requests are known to have there, and will have once their prompts are in."""
        ledger = self.core.books.pools[pool].ledger
        return sum(hold.used for hold in ledger.holds.values()) + ledger.prefill

    def limits(self, pool: PoolId) -> PoolLimits | None:
        """Of a pool as a whole; None where it is unknown."""
        return known.ledger.limits if (known := self.core.books.pools.get(pool)) else None

    def retracted(self, pool: PoolId) -> None:
        """The engine took memory back from requests under way."""
        self._apply(self.core.retracted(pool, self._step()))

    def share(self, pool: PoolId) -> float:
        """How much of a pool is planned with, by what was learned of it (see `core.envelope`)."""
        return self.core.books.pools[pool].ledger.envelope.share

    def recall(self, pool: PoolId, share: float) -> None:
        """What an earlier gate had learned of a pool that nothing has started on yet."""
        self.core.books.pools[pool].ledger.envelope.share = min(max(share, LEAST_SHARE), 1.0)

    def looked(self, pool: PoolId, look: Look) -> None:
        """A server said what it holds of a pool (see `core.unseen`)."""
        self._apply(self.core.looked(pool, look, self._step()))

    def says_ratio(self, pool: PoolId, ratio: float | None) -> None:
        """The engine's new_token_ratio. Taken only while something runs there: an idle engine has
        gone back to its first ratio and does not report that before it works again."""
        self.core.ratio(pool, ratio if self.core.books.pools[pool].ledger.holds else None)

    def void(self, pool: PoolId) -> None:
        """A server died."""
        self._apply(self.core.void(pool, self._step()))

    def drain(self) -> None:
        """Refuse what waits and what comes; what runs may finish."""
        self._apply(self.core.drain(self._step()))

    async def idle(self) -> None:
        """Wait until no client holds a lease."""
        await self._idle.wait()

    @property
    def holding(self) -> int:
        """Leases held by clients now (abandoned ones not counted)."""
        return len(self._holders)

    def view(self) -> View:
        """A snapshot of the books."""
        return self.core.view(self.now())

    def heard(self) -> None:
        """Other processes of the gate have said something, or should have."""
        self._apply(self.core.heard(self._step()))

    def now(self) -> float:
        """The clock of every decision: the loop's, which is a system call to find."""
        if self._clock is None:
            self._clock = asyncio.get_running_loop().time
        return self._clock()

    # ---- inside --------------------------------------------------------------------------------

    def _apply(self, transitions: list[Transition]) -> None:
        for transition in transitions:
            self._listener(transition)
            if isinstance(transition, Granted):
                ident = transition.grant.id
                self._idle.clear()
                self._holders.add(ident)
                if not self._waiters[ident].done():
                    self._waiters[ident].set_result(transition.grant)
            elif isinstance(transition, Released):
                if transition.why is Release.VOIDED and transition.id in self._holders:
                    self.voided.add(transition.id)
            elif isinstance(transition, Refused) and not self._waiters[transition.id].done():
                shed = Shed(transition.refusal, transition.queued_s)
                self._waiters[transition.id].set_exception(shed)
        self._alarm.set(self.core.next_wakeup())

    def _let_go(self, ident: RequestId) -> None:
        self._holders.discard(ident)
        self.voided.discard(ident)
        if not self._holders:
            self._idle.set()

    def _step(self) -> float:
        """When a step of the core is taken. The first after nobody was there for a while tells it so."""
        now = self.now()
        if away_s := self._alarm.overdue(now):
            self.core.stood_still(away_s)
        return now

    def _tick(self) -> None:
        """Too early, it is left to find that out."""
        wake, now = self.core.next_wakeup(), self._step()
        if wake is not None and wake <= now:
            self._apply(self.core.advance(now))
        else:
            self._alarm.set(wake)
