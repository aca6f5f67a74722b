"""Who starts next.

Order of service: flows by occupancy (see `flows`), within a flow by arrival; the first request
that fits everything now starts. What cannot start may be passed, but only so often:

- A request *blocked* by a pool (it may start there, it does not fit) counts each token that
  starts on that pool past it. After one pool-full the pool is *fenced*: nothing else starts
  there, and the request goes as soon as enough has ended. One request fences one pool.
- A request *held back* by its own client's share or limits counts what its own later siblings
  start. After one pool-full (or one quota-full, where that is less) they wait behind it, until
  what the client holds has ended; other clients are not concerned.

Both are counted for each pool by itself, so that a request stuck on one server hides nobody who
waits for another.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from gateway.core import placement
from gateway.core.flows import within_share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.core.books import Books, Pool
    from gateway.core.flows import Entry, Flow
    from gateway.core.ledger import PoolLedger
    from gateway.core.model import Demand, PoolId

LOOK_AHEAD = 64
"""Requests of one flow considered in one step: its head, and those behind a head that must wait."""

LOOK_AROUND = 256
"""Requests behind heads considered in one step, over all flows. Heads are always looked at. Bounds
the time of a decision to about a millisecond; the default queue holds 256 in all."""

Choice = tuple["Entry", "PoolLedger", "Demand"]


def next_to_start(books: Books, now: float) -> Choice | None:
    """The next request to start and where; counts whom that passes. None if nothing fits."""
    if (fenced := _fenced(books, now)) is not None:
        return fenced
    if not any(_takes_work(books, pool, now) for pool in books.pools.values()):
        return None  # nothing would be passed either
    weights = {ident: books.weight_on(ident) for ident in books.pools}
    blocked: dict[PoolId, Entry] = {}
    spare = LOOK_AROUND
    for flow in sorted((f for f in books.flows.values() if f.waiting), key=lambda f: f.turn):
        held_back: dict[PoolId, Entry] = {}
        deep = min(LOOK_AHEAD, len(flow.waiting), spare + 1)
        spare -= deep - 1
        for entry in islice(flow.waiting, deep):
            ready = list(_ready(books, entry, now))
            allowed = [(p, d) for p, d in ready if _allowed(flow, d, p, weights)]
            place = placement.pick(
                (pool.ledger, demand)
                for pool, demand in allowed
                if pool.fence is None
                and not _insists(held_back.get(pool.ledger.pool), flow, pool)
                and pool.ledger.fits(demand)
            )
            if place is not None:
                _count_pass(books, blocked, held_back, *place)
                return entry, *place
            for pool, _ in allowed:
                blocked.setdefault(pool.ledger.pool, entry)
            if ready and not allowed:
                for ident in _held_back_on(books, flow, entry):
                    held_back.setdefault(ident, entry)
    return None


def _takes_work(books: Books, pool: Pool, now: float) -> bool:
    """Whether anything at all could start on a pool now."""
    if not pool.open or pool.paused_until > now or pool.fence is not None:
        return False
    return books.least.may_start(pool.ledger, books.waiting)


def _fenced(books: Books, now: float) -> Choice | None:
    """A fenced request that fits now, wherever it stands in its line.

    A fence for a request that its client's own limits hold back would idle the pool: lifted.
    """
    for ident, pool in books.pools.items():
        if pool.fence is None:
            continue
        entry, flow = books.entry(pool.fence), books.waiting[pool.fence]
        demand = entry.demands.get(ident)
        if demand is None or not flow.within_own_limits(demand):
            pool.fence = None
        elif pool.open and pool.paused_until <= now and pool.ledger.fits(demand):
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
    if first.passed >= ledger.limits.kv_tokens and all(p.fence != first.ticket.id for p in pools):
        books.pools[ledger.pool].fence = first.ticket.id
