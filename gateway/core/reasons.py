"""What a request that waits is waiting for, in words, for whom it has been too long.

"No room" is the common answer and not the only one: a server may be away, may have said that it is full,
may be on trial after a death, may be kept for others by fairness or by this client's own limits, may
decode as many at once as its pace allows. The first of these that holds is told, from what nothing here
can change to what the client can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.choice import held_back
from gateway.core.quarantine import TRIAL

if TYPE_CHECKING:
    from gateway.core.books import Books
    from gateway.core.flows import Entry
    from gateway.core.pools import Pool

NO_SHARE = "for this gate's share of a server, of which it has none now (see its leases)"


def waits_for(books: Books, entry: Entry, now: float) -> str:
    """Completes "waited 5 s …"."""
    pools = [pool for ident in entry.demands if (pool := books.pools[ident]).open]
    if not pools:
        return "for its server, which is not ready"
    pools = [pool for pool in pools if pool.paused_until <= now]
    if not pools:
        return "for a server that takes nothing new for the moment"
    flow = books.waiting[entry.ticket.id]
    if not any(flow.within_own_limits(demand) for demand in entry.demands.values()):
        if flow.elsewhere:
            return "for its client's own requests to end, here or in other processes of this gate"
        return "for its client's own requests to end"
    if all(_on_trial(pool) for pool in pools):
        return "for a server that has been reached anew and gets few requests until it answers one"
    return _among_others(books, entry, pools, now)


def _among_others(books: Books, entry: Entry, pools: list[Pool], now: float) -> str:
    if all(pool.keeps_apart(entry.ticket) for pool in pools):
        return (
            "for a server that runs scores or words, and ends where it runs both (0.5.23 runs both)"
        )
    if not any(pool.seats(entry.ticket) for pool in pools):
        return "for its adapter's place on a server, which runs so many at once (--max-loras-per-batch)"
    if not any(pool.ledger.fits(entry.demands[pool.ledger.pool], entry.lengths) for pool in pools):
        return NO_SHARE if all(_has_no_share(pool) for pool in pools) else "for room on a server"
    if not any(
        pool.compiles(entry.ticket.grammar, entry.demands[pool.ledger.pool], now) for pool in pools
    ):
        return "for its grammar's turn to be compiled: the server is at work on those of others"
    if held_back(books, books.waiting[entry.ticket.id], entry):
        return "for its client's share of the server"
    return "for its turn"


def _has_no_share(pool: Pool) -> bool:
    """Whether it has nothing of it to grant: others have it all, or the store that tells is away."""
    return pool.ledger.grants.kv_tokens == 0 < pool.ledger.limits.kv_tokens


def _on_trial(pool: Pool) -> bool:
    """Whether it is full only for being on trial."""
    ledger = pool.ledger
    return ledger.limits.trial <= TRIAL and ledger.slots + ledger.foreign_slots > 0
