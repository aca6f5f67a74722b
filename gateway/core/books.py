"""The books: every pool's ledger, every client's line, every timer, and the moves between them.

Nothing here decides. `Admission` does, and moves a request through the books: waiting → held →
(lingering) → gone. Each move changes all the sums it touches or raises `LedgerError`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from gateway.core.flows import Entry, Flow
from gateway.core.least import Least
from gateway.core.ledger import Hold, LedgerError, PoolLedger
from gateway.core.model import ClientView, PoolView, QueueView, View

if TYPE_CHECKING:
    from gateway.core.model import Demand, PoolId, RequestId

PREFILL_RATE = 1_000.0
"""Prompt tokens per second assumed until one was measured: the low end of a 24 GB card with a
27B model. Used only where the first token cannot be seen (answers that are not streamed)."""

LEARN = 0.2
"""Weight of the newest prefill-rate sample: five samples forget a cold start."""


class Timer(IntEnum):
    """What happens when a timer is due."""

    EXPIRE = 0
    PREFILLED = 1
    GRACE = 2
    UNPAUSE = 3


@dataclass(slots=True)
class Pool:
    """A pool's ledger and whether work may start there."""

    ledger: PoolLedger
    open: bool = False
    paused_until: float = 0.0
    fence: RequestId | None = None
    prefill_rate: float = PREFILL_RATE


@dataclass(slots=True)
class Held:
    """A granted request: where its reservation is, and what to queue again if it is pushed back."""

    pool: PoolId
    entry: Entry
    void: bool = False
    lingering: bool = False


class Books:
    """State of the core. One writer: `Admission`."""

    def __init__(self) -> None:
        self.pools: dict[PoolId, Pool] = {}
        self.flows: dict[str, Flow] = {}
        self.waiting: dict[RequestId, Flow] = {}
        self.held: dict[RequestId, Held] = {}
        self.least = Least()
        self.tokens = 0  # KV tokens that wait
        self.bytes = 0  # body bytes that wait
        self._timers: list[tuple[float, int, Timer, RequestId]] = []
        self._seq = 0

    def knows(self, ident: RequestId) -> bool:
        """Whether this id waits or holds."""
        return ident in self.waiting or ident in self.held

    def next_seq(self) -> int:
        """A number larger than all before: order of arrival, and of timers due together."""
        self._seq += 1
        return self._seq

    def flow_of(self, entry: Entry) -> Flow:
        """The line of this client, made if need be; the rule that came with its newest holds."""
        client = entry.ticket.client
        flow = self.flows.setdefault(client.name, Flow(client))
        if entry.seq >= flow.newest:
            flow.rule, flow.newest = client, entry.seq
        return flow

    def enqueue(self, entry: Entry) -> None:
        """Let an entry wait in its client's line, by arrival order."""
        flow = self.flow_of(entry)
        flow.put_back(entry)
        flow.want(entry.demands, 1)
        self.waiting[entry.ticket.id] = flow
        self.least.add(entry)
        self.tokens += entry.need
        self.bytes += entry.ticket.body_bytes

    def dequeue(self, ident: RequestId) -> Entry:
        """Take an entry out of the queue; a fence it had goes with it."""
        flow = self.waiting.pop(ident)
        entry = flow.remove(ident)
        flow.want(entry.demands, -1)
        self.tokens -= entry.need
        self.bytes -= entry.ticket.body_bytes
        for pool in self.pools.values():
            if pool.fence == ident:
                pool.fence = None
        self._forget(flow)
        return entry

    def weight_on(self, pool: PoolId) -> float:
        """Weights of all clients that hold something on a pool, or wait for it."""
        holders = self.pools[pool].ledger.by_client
        return sum(
            flow.rule.weight
            for name, flow in self.flows.items()
            if name in holders or flow.wants.get(pool)
        )

    def entry(self, ident: RequestId) -> Entry:
        """A waiting entry. Raises KeyError if it does not wait."""
        return next(e for e in self.waiting[ident].waiting if e.ticket.id == ident)

    def price(self, entry: Entry, demands: dict[PoolId, Demand]) -> None:
        """A waiting entry's demands changed."""
        need = min((demand.kv for demand in demands.values()), default=entry.need)
        self.tokens += need - entry.need
        flow = self.waiting[entry.ticket.id]
        flow.want(entry.demands, -1)
        flow.want(demands, 1)
        entry.need, entry.demands = need, demands
        self.least.add(entry)

    def hold(self, entry: Entry, pool: PoolId, demand: Demand, now: float) -> Hold:
        """Waiting → held: the reservation is taken before the entry leaves the queue."""
        ticket = entry.ticket
        hold = Hold(
            client=ticket.client.name,
            demand=demand,
            prompt=ticket.ask.n * sum(ticket.ask.prompts),
            since=now,
            streamed=ticket.streamed,
        )
        self.pools[pool].ledger.reserve(ticket.id, hold)
        flow = self.waiting[ticket.id]
        flow.held += demand.kv
        flow.inflight += 1
        self.held[ticket.id] = Held(pool, entry)
        self.dequeue(ticket.id)
        if demand.prefill == 0:
            self.pools[pool].ledger.prefilled(ticket.id)
        elif not ticket.streamed:
            rate = max(self.pools[pool].prefill_rate, 1.0)
            hold.prefilled_by = now + demand.prefill / rate
            self.at(hold.prefilled_by, Timer.PREFILLED, ticket.id)
        return hold

    def live(self, ident: RequestId) -> Hold | None:
        """The reservation of a request, if it has one."""
        held = self.held.get(ident)
        if held is None or held.void:
            return None
        return self.pools[held.pool].ledger.holds[ident]

    def mine(self, ident: RequestId, doing: str) -> Held:
        """A request that is its caller's to end. Raises LedgerError if it ended before."""
        held = self.held.get(ident)
        if held is None or held.lingering:
            msg = f"{ident} holds nothing to {doing}"
            raise LedgerError(msg)
        return held

    def let_go(self, ident: RequestId) -> Hold | None:
        """Held → gone. None where the reservation was voided before."""
        held = self.held.pop(ident)
        if held.void:
            return None
        return self._release(ident, held.pool)

    def void(self, ident: RequestId) -> Hold:
        """The server under a request died: the reservation goes, the request stays its caller's."""
        held = self.held[ident]
        hold = self._release(ident, held.pool)
        if held.lingering:
            del self.held[ident]
        else:
            held.void = True
        return hold

    def first_token(self, ident: RequestId, now: float) -> bool:
        """The prompt of a request is prefilled, and so is what went to its pool before it."""
        hold = self.live(ident)
        if hold is None or not hold.prefilling:
            return False
        pool = self.pools[self.held[ident].pool]
        took = max(now - hold.since, 1e-3)
        pool.prefill_rate += LEARN * (hold.demand.prefill / took - pool.prefill_rate)
        pool.ledger.prefilled(ident)
        for other, earlier in pool.ledger.holds.items():
            # The engine prefills in order of arrival; only streams show their own first token.
            if earlier.prefilling and not earlier.streamed and earlier.since < hold.since:
                pool.ledger.prefilled(other)
        return True

    def at(self, when: float, what: Timer, ident: RequestId) -> None:
        """Set a timer. Timers are never unset: one that is due finds out whether it still matters."""
        heapq.heappush(self._timers, (when, self.next_seq(), what, ident))

    def due(self, now: float) -> tuple[Timer, RequestId] | None:
        """The next timer that is due, taken out."""
        if not self._timers or self._timers[0][0] > now:
            return None
        _, _, what, ident = heapq.heappop(self._timers)
        return what, ident

    def next_timer(self) -> float | None:
        """When the next timer is due."""
        return self._timers[0][0] if self._timers else None

    def view(self, now: float) -> View:
        """Everything held and waiting, frozen."""
        pools = []
        for ident, pool in self.pools.items():
            kv, prefill, slots = pool.ledger.views()
            lingering = sum(h.demand.kv for h in pool.ledger.holds.values() if h.lingering)
            limits = pool.ledger.limits
            pools.append(
                PoolView(ident, pool.open, pool.paused_until, limits, kv, prefill, slots, lingering)
            )
        clients = tuple(
            ClientView(name, flow.held, flow.inflight, len(flow.waiting))
            for name, flow in self.flows.items()
        )
        oldest = min((f.waiting[0].since for f in self.flows.values() if f.waiting), default=now)
        queue = QueueView(len(self.waiting), self.tokens, self.bytes, now - oldest)
        return View(tuple(pools), clients, queue)

    def _release(self, ident: RequestId, pool: PoolId) -> Hold:
        hold = self.pools[pool].ledger.release(ident)
        flow = self.flows[hold.client]
        flow.held -= hold.demand.kv
        flow.inflight -= 1
        if flow.held < 0 or flow.inflight < 0:
            msg = f"client {hold.client} would hold {flow.held} tokens in {flow.inflight} requests"
            raise LedgerError(msg)
        self._forget(flow)
        return hold

    def _forget(self, flow: Flow) -> None:
        """A client that neither holds nor waits costs no memory."""
        if not flow.active and flow.inflight == 0:
            self.flows.pop(flow.rule.name, None)
