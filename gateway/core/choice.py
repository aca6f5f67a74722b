"""Who starts next.

Order of service: flows by occupancy (see `flows`), within a flow by arrival; the first request
that fits everything now starts. What cannot start may be passed, but only so often:

- A request *blocked* by a pool (it may start there, it does not fit) counts each token that
  starts on that pool past it. After one pool-full the pool is *fenced*: nothing else starts
  there, and the request goes as soon as enough has ended. One request fences one pool.
  One that came back when it was told to is passed once: it has waited before.
- A request *held back* because its own client is over its share or limits counts what its own
  later siblings start. After one pool-full (or one quota-full, where that is less) they wait behind
  it, until what the client holds has ended; other clients are not concerned.
- A request that lacks nothing but the end of a prefill is not passed at all: that takes a moment,
  and small prompts that go by would make a moment of it again and again.

A request whose first token would come too late, were it sent now (see `ttft`), is not sent: it would
take the time of those who can still be served. It passes and is passed until that changes, or its
deadline ends it.

Nor is one whose grammar would be compiled beside too many others (see `compiling`): what it waits for is
no room, so that who passes it takes nothing from it. Other new grammars do: those that fit beside what is
being compiled go past it until they come to as much as is compiled at once, and then wait behind it.

Passes are counted for each pool by itself, so that a request stuck on one server hides nobody
who waits for another.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from gateway.core import placement
from gateway.core.flows import within_share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.core.books import Books
    from gateway.core.flows import Entry, Flow
    from gateway.core.ledger import PoolLedger
    from gateway.core.model import Demand, PoolId, Ticket
    from gateway.core.pools import Pool

LOOK_AHEAD = 64
"""Requests of one flow considered in one step: its head, and those behind a head that must wait."""

LOOK_AROUND = 256
"""Requests behind heads considered in one step, over all flows. Heads are always looked at. Bounds
the time of a decision to about a millisecond; the default queue holds 256 in all."""

UNSURE = 1.3
"""So much is added to a predicted time before a request is thought too late. When predictions were off by
9 to 31 % (1 to 33 now, docs/evaluation.md), in the laboratory (requests served in time, not asking / 1 / 1.3 /
1.8): two cards and eight agents 0.67 / 0.71 / 0.78 / 0.81 (0.73 at 1.3 since an idle server tries it), Azure
at 1.5 times 0.651 / 0.654 / 0.658 / 0.654, with large caps 0.557 / 0.566 / 0.572 / 0.566; the 95th percentile
instead costs a quarter of Azure's."""

PATIENCE_S = 10.0
"""Seconds of grammars that go past another one's turn where more than that is compiled at once: the default bound."""

Choice = tuple["Entry", "PoolLedger", "Demand"]


def next_to_start(books: Books, now: float) -> Choice | None:
    """The next request to start and where; counts whom that passes. None if nothing fits."""
    if (fenced := _fenced(books, now)) is not None:
        return fenced
    taking = {ident for ident, pool in books.pools.items() if _takes_work(books, pool, now)}
    if not taking:
        return None  # nothing would be passed either
    if len(books.waiting) == 1:
        return _alone(books, taking, now)
    return _among(books, taking, now)


def _among(books: Books, taking: set[PoolId], now: float) -> Choice | None:
    """The same where several wait."""
    weights = {ident: books.weight_on(ident) for ident in books.pools}
    blocked: dict[PoolId, Entry] = {}
    next_in: set[PoolId] = set()  # pools whose next prefill is spoken for
    uncompiled: dict[PoolId, Entry] = {}  # who waits in front for its grammar's turn
    spare = LOOK_AROUND
    for flow in sorted((f for f in books.flows.values() if f.waiting), key=lambda f: f.turn(now)):
        held_back: dict[PoolId, Entry] = {}
        for place_in_line, entry in enumerate(islice(flow.ahead(taking, LOOK_AHEAD), spare + 1)):
            spare -= place_in_line > 0
            ready = list(_ready(books, entry, now))
            allowed = [(p, d) for p, d in ready if _allowed(flow, d, p, weights)]
            useful = [
                (pool, demand)
                for pool, demand in allowed
                if not _is_next(uncompiled.get(pool.ledger.pool), pool, entry)
                and _of_use(books, pool, demand, entry.ticket, now)
            ]
            place = placement.pick(
                entry.ticket.lead,
                [
                    (pool, demand)
                    for pool, demand in useful
                    if pool.fence is None
                    and pool.ledger.pool not in next_in
                    and not _insists(held_back.get(pool.ledger.pool), flow, pool)
                    and pool.fits(demand, entry)
                ],
                now,
            )
            if place is not None:
                ledger, demand = place[0].ledger, place[1]
                _count_pass(books, blocked, held_back, ledger, demand)
                _count_grammar(uncompiled.get(ledger.pool), place[0], entry)
                return entry, ledger, demand
            for waits in _lacks_its_turn(entry, allowed, now):
                uncompiled.setdefault(waits, entry)
            for pool, demand in useful:
                blocked.setdefault(pool.ledger.pool, entry)
                if pool.only_prefill_lacks(demand, entry):
                    next_in.add(pool.ledger.pool)
            if ready and not allowed:
                for ident in _held_back_on(books, flow, entry):
                    held_back.setdefault(ident, entry)
    return None


def _alone(books: Books, taking: set[PoolId], now: float) -> Choice | None:
    """The same for the only request that waits: it passes nobody, and nobody passes it."""
    flow = next(iter(books.waiting.values()))
    entry = flow.waiting[0]
    if taking.isdisjoint(entry.demands):
        return None
    feasible = [
        (pool, demand)
        for pool, demand in _ready(books, entry, now)
        if pool.fence is None
        and _allowed(flow, demand, pool, {pool.ledger.pool: books.weight_on(pool.ledger.pool)})
        and _of_use(books, pool, demand, entry.ticket, now)
        and pool.fits(demand, entry)
    ]
    place = placement.pick(entry.ticket.lead, feasible, now)
    return None if place is None else (entry, place[0].ledger, place[1])


def _takes_work(books: Books, pool: Pool, now: float) -> bool:
    """Whether anything at all could start on a pool now."""
    if not pool.open or pool.paused_until > now or pool.fence is not None:
        return False
    return books.least.may_start(pool.ledger, books.waiting)


def _of_use(books: Books, pool: Pool, demand: Demand, ticket: Ticket, now: float) -> bool:
    """Whether room is all that it may lack here."""
    return pool.compiles(ticket.grammar, demand, now) and _in_time(books, pool, demand, ticket, now)


def _lacks_its_turn(
    entry: Entry, allowed: Iterable[tuple[Pool, Demand]], now: float
) -> Iterable[PoolId]:
    """Where all that it lacks is the end of other grammars."""
    grammar = entry.ticket.grammar
    for pool, demand in allowed if grammar is not None else ():
        if not pool.compiles(grammar, demand, now) and pool.fits(demand, entry):
            yield pool.ledger.pool


def _count_grammar(first: Entry | None, pool: Pool, entry: Entry) -> None:
    """This one is about to start on a pool: its grammar, where it is new, goes past that of `first`."""
    grammar = entry.ticket.grammar
    if first is not None and grammar is not None and pool.compiling.starts(grammar):
        first.passed_s += grammar.seconds


def _is_next(first: Entry | None, pool: Pool, entry: Entry) -> bool:
    """Whether the next grammar to be compiled is that of `first`, and not this one's."""
    if first is None or first.passed_s < min(pool.ledger.limits.compile_s, PATIENCE_S):
        return False
    return pool.compiling.starts(entry.ticket.grammar)


def _in_time(books: Books, pool: Pool, demand: Demand, ticket: Ticket, now: float) -> bool:
    """Whether its first token, asked for now, likely comes before it is of no use.

    Where nobody has tested the prediction lately it is given a try; and where the server has nothing
    else to do and nobody else waits, as it takes nobody's time.
    """
    if ticket.deadline is None or not pool.ttft.tested(now):
        return True
    if len(books.waiting) - books.aside == 1 and not pool.ledger.holds:
        return True
    return now + UNSURE * pool.first_token_s(demand, ticket.lead, now) <= ticket.deadline


def _fenced(books: Books, now: float) -> Choice | None:
    """A fenced request that fits now, wherever it stands in its line.

    A fence for a request that its client's own limits hold back would idle the pool: lifted.
    """
    for ident, pool in books.pools.items():
        if pool.fence is None:
            continue
        entry, flow = books.entry(pool.fence), books.waiting[pool.fence]
        demand = entry.demands.get(ident)
        if (
            demand is None
            or not flow.within_own_limits(demand)
            or not _of_use(books, pool, demand, entry.ticket, now)
        ):
            pool.fence = None
        elif pool.open and pool.paused_until <= now and pool.fits(demand, entry):
            return entry, pool.ledger, demand
    return None


def _ready(books: Books, entry: Entry, now: float) -> Iterable[tuple[Pool, Demand]]:
    """Pools where this request may run that take work now."""
    for ident, demand in entry.demands.items():
        pool = books.pools[ident]
        if pool.open and pool.paused_until <= now:
            yield pool, demand


def _allowed(flow: Flow, demand: Demand, pool: Pool, weights: dict[PoolId, float]) -> bool:
    """Whether neither policy nor fairness holds this client back on a pool."""
    return flow.within_own_limits(demand) and within_share(
        flow, demand, pool.ledger, weights[pool.ledger.pool]
    )


def _held_back_on(books: Books, flow: Flow, entry: Entry) -> Iterable[PoolId]:
    """Pools where later siblings prolong the wait of a request its own client holds back."""
    over_quota = not any(flow.within_own_limits(d) for d in entry.demands.values())
    return books.pools if over_quota else entry.demands


def held_back(books: Books, flow: Flow, entry: Entry) -> bool:
    """Whether its own client's share or limits, not the servers, keep a waiting request waiting."""
    pools = [(books.pools[ident], demand) for ident, demand in entry.demands.items()]
    weights = {ident: books.weight_on(ident) for ident in entry.demands}
    return not any(pool.open and _allowed(flow, demand, pool, weights) for pool, demand in pools)


def _insists(entry: Entry | None, flow: Flow, pool: Pool) -> bool:
    """Whether a held-back request has let its siblings pass often enough."""
    if entry is None:
        return False
    quota = flow.rule.max_held_tokens
    patience = pool.ledger.limits.kv_tokens
    return entry.passed >= (patience if quota is None else min(patience, quota))


def _count_pass(
    books: Books,
    blocked: dict[PoolId, Entry],
    held_back: dict[PoolId, Entry],
    ledger: PoolLedger,
    demand: Demand,
) -> None:
    """Something is about to start on a pool: it passes whoever waits for it in front."""
    behind = held_back.get(ledger.pool)
    if behind is not None:
        behind.passed += demand.kv
    first = blocked.get(ledger.pool)
    if first is None:
        return
    if first is not behind:
        first.passed += demand.kv
    pools = books.pools.values()
    patience = 0 if first.came_back else ledger.limits.kv_tokens
    if first.passed >= patience and all(p.fence != first.ticket.id for p in pools):
        books.pools[ledger.pool].fence = first.ticket.id
