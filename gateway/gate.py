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
from typing import TYPE_CHECKING, Self

from gateway.core.model import Granted, Outcome, Refused, Release

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from gateway.core.admission import Admission
    from gateway.core.model import (
        Grant,
        PoolId,
        PoolLimits,
        Refusal,
        RequestId,
        Ticket,
        Transition,
        View,
    )


class Shed(Exception):
    """The request was refused: at the door, or after it waited `queued_s` seconds."""

    def __init__(self, refusal: Refusal, queued_s: float | None) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.queued_s = queued_s


class Lease:
    """One request's stay: waiting, then holding. Use as an async context manager, once."""

    def __init__(self, gate: Gate, ticket: Ticket, grace_s: float) -> None:
        self.ticket = ticket
        self.grace_s = grace_s
        self._gate = gate
        self._grant: Grant | None = None
        self._sent = False
        self._outcome: Outcome | None = None

    @property
    def grant(self) -> Grant:
        """The reservation. Raises RuntimeError before it was granted."""
        if self._grant is None:
            msg = "not granted"
            raise RuntimeError(msg)
        return self._grant

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._outcome is not None

    async def __aenter__(self) -> Self:
        self._grant = await self._gate.grant(self.ticket)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._grant is None or self._outcome is not None:
            return
        left = kind is not None and issubclass(kind, asyncio.CancelledError | ConnectionError)
        self._leave(Outcome.CANCELLED if left else Outcome.FAILED)

    def sent(self) -> None:
        """The request is about to be handed to the server: from now on it may be at work on it."""
        self._sent = True

    def first_token(self) -> None:
        """The first output reached us: the prompt is prefilled."""
        self._gate.first_token(self.ticket.id)

    def true_up(self, generated: int) -> None:
        """So many tokens have been generated, over all sequences."""
        self._gate.core.true_up(self.ticket.id, generated)

    def end(self, outcome: Outcome) -> None:
        """The engine is done with this request. Later calls change nothing: it ended once."""
        if self._outcome is None and self._grant is not None:
            self._outcome = outcome
            self._gate.settle(self.ticket.id, outcome, Release.ENDED)

    def abandon(self, outcome: Outcome) -> None:
        """It ended for the client, and the engine may not know: hold until that is confirmed."""
        if self._outcome is None and self._grant is not None:
            self._leave(outcome)

    async def requeue(self, pause_s: float) -> None:
        """The server pushed the request back before it started: wait again, with the old place.

        Raises Shed when its time in the queue is over.
        """
        self._grant, self._sent = None, False
        self._grant = await self._gate.regrant(self.ticket, pause_s)

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
        self._granted: dict[RequestId, Grant] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None  # uvloop's handles forget theirs once they are done
        self._idle = asyncio.Event()
        self._idle.set()
        self._holding = 0

    def admit(self, ticket: Ticket, *, grace_s: float) -> Lease:
        """A lease for `ticket`; entering it waits for the grant and raises `Shed` when refused."""
        return Lease(self, ticket, grace_s)

    # ---- for leases ----------------------------------------------------------------------------

    async def grant(self, ticket: Ticket) -> Grant:
        """Submit and wait."""
        return await self._wait(ticket.id, lambda now: self.core.submit(ticket, now))

    async def regrant(self, ticket: Ticket, pause_s: float) -> Grant:
        """Put back and wait again."""
        self._hold(-1)
        return await self._wait(ticket.id, lambda now: self.core.requeue(ticket.id, now, pause_s))

    def first_token(self, ident: RequestId) -> None:
        """See `Lease.first_token`."""
        self._apply(self.core.first_token(ident, self.now()))

    def settle(self, ident: RequestId, outcome: Outcome, why: Release) -> None:
        """Release, once."""
        self._hold(-1)
        self._apply(self.core.settle(ident, outcome, self.now(), why))

    def abandon(self, lease: Lease, outcome: Outcome) -> None:
        """Keep the reservation until confirmed, and say whom to abort."""
        self._hold(-1)
        self._apply(self.core.abandon(lease.ticket.id, outcome, self.now(), lease.grace_s))
        self._on_abandon(lease)

    # ---- for the watchers of servers -----------------------------------------------------------

    def confirmed(self, ident: RequestId) -> None:
        """The engine has shown an abandoned request gone."""
        self._apply(self.core.confirm(ident, self.now()))

    def prolong(self, ident: RequestId, grace_s: float) -> None:
        """The engine says it is still at an abandoned request."""
        self._apply(self.core.prolong(ident, self.now(), grace_s))

    def resize(self, pool: PoolId, limits: PoolLimits) -> None:
        """A server (re)started, or policy changed."""
        self._apply(self.core.resize(pool, limits, self.now()))

    def set_open(self, pool: PoolId, *, is_open: bool) -> None:
        """Whether work may start on a pool."""
        self._apply(self.core.set_open(pool, self.now(), is_open=is_open))

    def void(self, pool: PoolId) -> None:
        """A server died."""
        self._apply(self.core.void(pool, self.now()))

    def drain(self) -> None:
        """Refuse what waits and what comes; what runs may finish."""
        self._apply(self.core.drain(self.now()))

    async def idle(self) -> None:
        """Wait until no client holds a lease."""
        await self._idle.wait()

    @property
    def holding(self) -> int:
        """Leases held by clients now (abandoned ones not counted)."""
        return self._holding

    def view(self) -> View:
        """A snapshot of the books."""
        return self.core.view(self.now())

    def now(self) -> float:
        """The clock of every decision: the loop's."""
        return asyncio.get_running_loop().time()

    # ---- inside --------------------------------------------------------------------------------

    async def _wait(self, ident: RequestId, step: Callable[[float], list[Transition]]) -> Grant:
        """Take a step of the core that grants, queues or refuses `ident`, and await the verdict."""
        waiter: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._waiters[ident] = waiter
        try:
            self._apply(step(self.now()))
            grant = await waiter
        except asyncio.CancelledError:
            # The verdict may have come in the same turn of the loop as the cancellation.
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # seen: nobody else will fetch it
            if self._granted.pop(ident, None) is not None:
                self.settle(ident, Outcome.CANCELLED, Release.UNSENT)
            else:
                self._apply(self.core.cancel(ident, self.now()))
            raise
        finally:
            self._waiters.pop(ident, None)
        self._granted.pop(ident, None)
        return grant

    def _apply(self, transitions: list[Transition]) -> None:
        for transition in transitions:
            self._listener(transition)
            if isinstance(transition, Granted):
                ident = transition.grant.id
                self._hold(+1)
                self._granted[ident] = transition.grant
                if not self._waiters[ident].done():
                    self._waiters[ident].set_result(transition.grant)
            elif isinstance(transition, Refused):
                waiter = self._waiters[transition.id]
                if not waiter.done():
                    waiter.set_exception(Shed(transition.refusal, transition.queued_s))
        self._set_timer()

    def _hold(self, change: int) -> None:
        self._holding += change
        if self._holding:
            self._idle.clear()
        else:
            self._idle.set()

    def _set_timer(self) -> None:
        wake = self.core.next_wakeup()
        if wake == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake
        self._timer = None if wake is None else asyncio.get_running_loop().call_at(wake, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        self._apply(self.core.advance(self.now()))
