"""What one pool's books hold and want: the words in which a replica asks for its share.

Read from the books in one step, at a cost that does not grow with the queue: how many wait for a pool
is known by client, and what one of them takes is the mean of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.amount import NOTHING, Amount
from gateway.core.flows import within_share

if TYPE_CHECKING:
    from gateway.core.books import Books
    from gateway.core.flows import Entry
    from gateway.core.ledger import PoolLedger
    from gateway.core.model import Demand, PoolId


@dataclass(frozen=True, slots=True)
class Appetite:
    """Of one pool."""

    held: Amount  # in use, or promised to what runs
    want: Amount  # that, and what those who wait for this pool would take
    need: Amount = NOTHING  # what its next request takes by itself; nothing where none waits
    started: int = 0  # requests so far
    hungry: bool = False  # whether it would start were there no ceiling


def appetite(books: Books, pool: PoolId, now: float) -> Appetite:
    """Of `pool`, now. Raises KeyError where it is unknown."""
    ledger = books.pools[pool].ledger
    ledger.refresh(now)
    held = holding(ledger)
    count = books.wanting(pool)
    entry = _head(books, pool, now) if count else None
    if entry is None:
        return Appetite(held, held, started=books.pools[pool].started)
    demand = entry.demands[pool]
    each = Amount(books.tokens // (len(books.waiting) - books.aside), demand.prefill, demand.slots)
    line = Amount(each.kv * count, each.prefill * count, each.slots * count)
    all_of_it = Amount.of(ledger.limits)
    return Appetite(
        held=held,
        want=(held + line).least(all_of_it).most(held),
        need=_alone(ledger, demand).least(all_of_it),
        started=books.pools[pool].started,
        hungry=not ledger.fits(demand, entry.lengths),
    )


def holding(ledger: PoolLedger) -> Amount:
    """What a pool's requests have been promised: a giant in prefill counts as all of the budget."""
    kv = ledger.reserved if ledger.limits.forecast else ledger.worst
    return Amount(kv, min(ledger.prefill, ledger.limits.prefill_tokens), ledger.slots)


def steady(ledger: PoolLedger, before: float) -> int:
    """Sequences that were granted before that, and that nobody has left."""
    return sum(
        hold.demand.slots
        for hold in ledger.holds.values()
        if hold.since <= before and not hold.lingering
    )


def _alone(ledger: PoolLedger, demand: Demand) -> Amount:
    """What a request takes of an empty pool. Where what is expected of it is there and it stands idle
    all the same, its worst case."""
    worst = demand.worst or demand.kv
    kv = max(demand.kv, demand.start)
    if not ledger.limits.forecast or (not ledger.holds and ledger.grants.kv_tokens >= kv):
        kv = worst
    return Amount(min(kv, worst), demand.prefill, demand.slots)


def _head(books: Books, pool: PoolId, now: float) -> Entry | None:
    """Whose turn it is there: the first of the line that its own client does not hold back. A client's
    part is one of what this gate may use; where that alone holds all of them back, the first."""
    place = books.pools[pool]
    if place.fence is not None:
        return books.entry(place.fence)
    weight = books.weight_on(pool)
    flows = [flow for flow in books.flows.values() if flow.wants.get(pool)]
    first = None
    for flow in sorted(flows, key=lambda flow: flow.turn(now)):
        entry = next(flow.ahead({pool}, 1), None)
        if entry is None or not flow.within_own_limits(entry.demands[pool]):
            continue
        if within_share(flow, entry.demands[pool], place.ledger, weight):
            return entry
        first = first or entry
    return first


def uses(ledger: PoolLedger) -> tuple[int, int]:
    """KV tokens that our requests use on a pool now, at least and at most: of a prompt that is being read any
    part may be in, and the last page of each sequence may be empty but for one."""
    least = sum(hold.used for hold in ledger.holds.values())
    reading = sum(hold.prompt for hold in ledger.holds.values() if hold.prefilling)
    return least, least + reading + ledger.slots * ledger.limits.page
