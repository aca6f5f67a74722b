"""The books: every pool's ledger, every client's line, every timer, and the moves between them.

Nothing here decides. `Admission` does, and moves a request through the books: waiting → held →
(lingering) → gone. Each move changes all the sums it touches or raises `LedgerError`.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from gateway.core.flows import Entry, Flow
from gateway.core.hold import Hold
from gateway.core.least import Least
from gateway.core.lengths import LengthBook, prior_of
from gateway.core.model import ClientView, PoolView, QueueView, RequestId, View
from gateway.core.others import Others
from gateway.core.sums import LedgerError, tally

if TYPE_CHECKING:
    from gateway.core.lengths import Lengths
    from gateway.core.model import ClientRule, Demand, PoolId, Ticket
    from gateway.core.pools import Pool


class Timer(IntEnum):
    """What happens when a timer is due."""

    EXPIRE = 0
    PREFILLED = 1
    GRACE = 2
    UNPAUSE = 3
    LOOK = 4  # forecasts change without an event
    PACE = 5  # a window of decoding speed is over
    COMPILED = 6  # a grammar likely is


@dataclass(slots=True)
class Held:
    """A granted request: where its reservation is, and what to queue again if it is pushed back."""

    pool: PoolId
    entry: Entry
    void: bool = False
    lingering: bool = False


class Books:
    """State of the core. One writer: `Admission`."""

    def __init__(self, others: Others | None = None) -> None:
        self.others = Others() if others is None else others
        self.pools: dict[PoolId, Pool] = {}
        self.flows: dict[str, Flow] = {}
        self.waiting: dict[RequestId, Flow] = {}
        self._entries: dict[RequestId, Entry] = {}  # of the same
        self.held: dict[RequestId, Held] = {}
        self.least = Least()
        self.lengths = LengthBook()
        self.tokens = 0  # KV tokens that wait
        self.bytes = 0  # body bytes that wait
        self.aside = 0  # requests that wait for no pool, see bounds
        self._timers: list[tuple[float, int, Timer, RequestId]] = []
        self._seq = 0
        self._tags = 0.0  # where the latest tag of any line ended

    def knows(self, ident: RequestId) -> bool:
        """Whether this id waits or holds."""
        return ident in self.waiting or ident in self.held

    def next_seq(self) -> int:
        """A number larger than all before: order of arrival, and of timers due together."""
        self._seq += 1
        return self._seq

    def lengths_of(self, ticket: Ticket) -> Lengths:
        """What is known of answers to requests like this one."""
        ask = ticket.ask
        cap = ask.usual if ask.cap is None else ask.cap
        return self.lengths.of(ticket.client.name, prior_of(ticket.kind, cap))

    def flow_of(self, entry: Entry) -> Flow:
        """The line of this client, made if need be; the rule that came with its newest holds."""
        client = entry.ticket.client
        flow = self.flows.get(client.name)
        if flow is None:
            # Tags of its earlier requests, which may come back, are behind: they were here first.
            flow = self.flows[client.name] = Flow(client, served=self._tags, others=self.others)
        if entry.seq >= flow.newest:
            flow.rule, flow.newest = client, entry.seq
        return flow

    def under_way(self, client: ClientRule) -> int:
        """Tokens that requests of a client with a quota hold, or need and wait for."""
        flow = self.flows.get(client.name)
        if client.quota is None or flow is None:
            return 0
        return flow.held + flow.tokens

    def arrive(self, entry: Entry, tag: float | None) -> None:
        """Let a newcomer wait; `tag` is the place it had before, where it comes back to it."""
        flow = self.flow_of(entry)
        entry.tag = flow.tag(entry) if tag is None else tag
        self._tags = max(self._tags, entry.tag + entry.need)
        self.enqueue(entry)

    def enqueue(self, entry: Entry) -> None:
        """Let an entry wait in its client's line, at its place."""
        flow = self.flow_of(entry)
        flow.put_back(entry)
        flow.want(entry.demands, 1)
        self.waiting[entry.ticket.id] = flow
        self._entries[entry.ticket.id] = entry
        self.least.add(entry, self.waiting)
        self.tokens += entry.need
        flow.tokens += entry.need
        self.bytes += entry.ticket.body_bytes
        self.aside += not entry.ticket.pools

    def dequeue(self, ident: RequestId) -> Entry:
        """Take an entry out of the queue; a fence it had goes with it."""
        flow, entry = self.waiting.pop(ident), self._entries.pop(ident)
        flow.remove(entry)
        flow.want(entry.demands, -1)
        self.tokens -= entry.need
        flow.tokens -= entry.need
        self.bytes -= entry.ticket.body_bytes
        self.aside -= not entry.ticket.pools
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

    def wanting(self, pool: PoolId) -> int:
        """Requests that wait for a pool, it alone or among others."""
        return sum(flow.wants.get(pool, 0) for flow in self.flows.values())

    def entry(self, ident: RequestId) -> Entry:
        """A waiting entry. Raises KeyError if it does not wait."""
        return self._entries[ident]

    def in_line(self) -> list[Entry]:
        """All that wait, client by client, each line in its order: one pass, however long the lines are."""
        return [entry for flow in self.flows.values() for entry in flow.waiting]

    def price(self, entry: Entry, demands: dict[PoolId, Demand]) -> None:
        """A waiting entry's demands changed."""
        need = min((demand.kv for demand in demands.values()), default=entry.need)
        self.tokens += need - entry.need
        flow = self.waiting[entry.ticket.id]
        flow.tokens += need - entry.need
        flow.want(entry.demands, -1)
        flow.want(demands, 1)
        flow.change_lane(entry, demands)
        entry.need = need
        self.least.add(entry, self.waiting)

    def hold(self, entry: Entry, pool: PoolId, demand: Demand, now: float) -> Hold:
        """Waiting → held: the reservation is taken before the entry leaves the queue."""
        ticket, place = entry.ticket, self.pools[pool]
        ledger = place.ledger
        hoped, left = place.reading(demand, ticket.lead)
        grammar = ticket.grammar
        if grammar is not None and not place.compiling.is_new(grammar):
            grammar = None
        told = place.reads(demand, left, now, waits=grammar is not None)
        hold = Hold(
            client=ticket.client.name,
            demand=demand,
            prompt=ticket.ask.n * sum(ticket.ask.prompts),
            since=now,
            streamed=ticket.streamed,
            lengths=entry.lengths if demand.start else None,
            prediction=told,
            hoped=hoped,
            uncached=left,
            compile_s=None if grammar is None else grammar.seconds,
        )
        ledger.reserve(ticket.id, hold)
        if grammar is not None:
            self._look_at(place.compiling.begins(grammar, now, streamed=ticket.streamed))
        if ledger.limits.caches:
            place.prefixes.put(ticket.lead, ledger.limits.kv_tokens)
        place.started += 1
        place.kinds[ticket.adapter] += 1
        place.scores += ticket.scores
        self._watch(place)
        flow = self.waiting[ticket.id]
        flow.held += demand.kv
        flow.inflight += 1
        flow.started(entry)
        self.held[ticket.id] = Held(pool, entry)
        self.dequeue(ticket.id)
        if demand.prefill == 0:
            ledger.prefilled(ticket.id, now)
        elif not ticket.streamed:
            hold.prefilled_by = now + (hold.compile_s or 0.0) + place.read_in(told, left)
            self.at(hold.prefilled_by, Timer.PREFILLED, ticket.id)
        return hold

    def grew(self, ident: RequestId, generated: int) -> None:
        """So many tokens were seen of a request, over all sequences. Every chunk comes by here, so it
        is only noted; the sums follow before they are read (`PoolLedger.refresh`)."""
        hold = self.live(ident)
        if hold is not None and generated > hold.seen:
            hold.seen = generated

    def heard(self, pool: PoolId, at: float) -> None:
        """A pool's server sent something at `at`: one of its steps ended then (see `pools`)."""
        place = self.pools.get(pool)
        if place is not None and at > place.heard:
            place.heard = at

    def _watch(self, place: Pool) -> None:
        """Write a forecast down, now and then, to see whether it comes true (see confidence)."""
        ledger = place.ledger
        if not ledger.limits.forecast:
            return
        place.grants += 1
        if not ledger.confidence.wants or 4 * place.grants < len(ledger.holds):
            return
        if 2 * ledger.worst < ledger.limit:
            return  # no horizon can matter
        place.grants = 0
        members = {
            ident: (hold.occupied, hold.each, hold.demand.slots)
            for ident, hold in ledger.holds.items()
            if hold.lengths is not None
        }
        ledger.confidence.watch(members, *ledger.outlook.moments(), ledger.limit)

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

    def let_go(self, ident: RequestId, *, done: bool, begun: bool) -> Hold | None:
        """Held → gone. None where the reservation was voided before. `done`: it was answered to its end;
        `begun`: the engine may have been at work on it."""
        held = self.held.pop(ident)
        if held.void:
            return None
        if (grammar := held.entry.ticket.grammar) is not None:
            compiling = self.pools[held.pool].compiling
            if done and self.pools[held.pool].ledger.holds[ident].seen:
                compiling.done(grammar)
            else:  # with no token it was refused: its grammar at the end of compiling, or before
                self._look_at(compiling.gone(grammar, begun=begun and not done))
        return self._release(held)

    def void(self, ident: RequestId) -> Hold:
        """The server under a request died: the reservation goes, the request stays its caller's."""
        held = self.held[ident]
        hold = self._release(held)
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
        if (grammar := self.held[ident].entry.ticket.grammar) is not None:
            pool.compiling.done(grammar)
        pool.has_read(hold, now)
        pool.ledger.prefilled(ident, now)
        for other, earlier in pool.ledger.holds.items():
            # The engine prefills in order of arrival; only streams show their own first token.
            if earlier.streamed or earlier.compile_s is not None:
                continue
            if earlier.prefilling and earlier.since < hold.since:
                pool.ledger.prefilled(other, now)
        pool.reads_less(now)
        return True

    def at(self, when: float, what: Timer, ident: RequestId) -> None:
        """Set a timer. Timers are never unset: one that is due finds out whether it still matters."""
        heapq.heappush(self._timers, (when, self.next_seq(), what, ident))

    def _look_at(self, when: float) -> None:
        """Who waits for a grammar may start then."""
        if when < math.inf:
            self.at(when, Timer.COMPILED, RequestId(""))

    def due(self, now: float) -> tuple[Timer, RequestId] | None:
        """The next timer that is due, taken out."""
        if not self._timers or self._timers[0][0] > now:
            return None
        _, _, what, ident = heapq.heappop(self._timers)
        return what, ident

    def next_timer(self) -> float | None:
        """When the next timer is due."""
        return self._timers[0][0] if self._timers else None

    def unused(self, pool: PoolId) -> bool:
        """Whether no request names this pool: holding, waiting, or held and able to come back."""
        place = self.pools.get(pool)
        return (
            (place is None or not place.ledger.holds)
            and not self.wanting(pool)
            and not any(pool in held.entry.demands for held in self.held.values())
        )

    def forget(self, pool: PoolId) -> None:
        """Take an unused pool out."""
        self.pools.pop(pool, None)
        self.least.forget(pool)

    def view(self, now: float) -> View:
        """Everything held and waiting, frozen."""
        pools = []
        for ident, pool in self.pools.items():
            kv, prefill, slots = pool.ledger.views()
            lingering = sum(h.demand.kv for h in pool.ledger.holds.values() if h.lingering)
            limits = pool.ledger.limits
            ledger = pool.ledger
            z = ledger.confidence.z(now) if limits.forecast else 0.0
            peak = int(ledger.outlook.peak(z)) if limits.forecast else 0
            pools.append(
                PoolView(
                    pool=ident,
                    open=pool.open,
                    paused_until=pool.paused_until,
                    limits=limits,
                    kv=kv,
                    prefill=prefill,
                    slots=slots,
                    lingering=lingering,
                    peak=peak,
                    z=z,
                    share=ledger.envelope.share,
                    foreign=ledger.foreign,
                    compiling=pool.compiling.under_way(now),
                )
            )
        clients = tuple(
            ClientView(name, flow.held, flow.inflight, len(flow.waiting))
            for name, flow in self.flows.items()
        )
        waiting = (entry.since for flow in self.flows.values() for entry in flow.waiting)
        oldest = min(waiting, default=now)
        queue = QueueView(len(self.waiting), self.tokens, self.bytes, now - oldest, self.aside)
        return View(tuple(pools), clients, queue)

    def _release(self, held: Held) -> Hold:
        ticket, place = held.entry.ticket, self.pools[held.pool]
        hold = place.ledger.release(ticket.id)
        tally(place.kinds, ticket.adapter, -1, "requests of an adapter", held.pool)
        place.scores -= ticket.scores
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
