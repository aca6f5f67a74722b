"""Whether a request that was refused for want of room would be refused again, without asking it in.

To be right in one direction only: what is said to be refused would be, by the books as the last step
left them. It would where its client's quota is used up; or where it could start on none of its pools
and there is no room in line for it either, its own client being the one to give way. Anything else
(a timer that is due, another pool that has opened, a size that is priced otherwise by now, a longer line
of somebody else's, the end) is left to the real question.

Nothing is decided by asking, and it costs a fraction of reading a request: no tokens are counted, no
order is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core import door
from gateway.core.bounds import bound_passed
from gateway.core.flows import longest
from gateway.core.model import Code, Refusal

if TYPE_CHECKING:
    from gateway.core.books import Books
    from gateway.core.lengths import Lengths
    from gateway.core.model import Demand, PoolId, Ticket
    from gateway.core.turns import Turns


def opened(books: Books) -> frozenset[PoolId]:
    """The pools that take work."""
    return frozenset(ident for ident, pool in books.pools.items() if pool.open)


def still_refused(
    turns: Turns, ticket: Ticket, then: frozenset[PoolId], now: float
) -> Refusal | None:
    """Why a request like `ticket` would be refused now; None: it may not be. `then`: the pools that took
    work when it was. The refusal names no time, but for that of a quota."""
    books = turns.books
    due = books.next_timer()
    if turns.draining or (due is not None and due <= now) or not opened(books) <= then:
        return None
    spent = turns.meters.spent(ticket.client, books.under_way(ticket.client), now)
    if spent is not None:
        return door.over_quota(spent)
    lengths = books.lengths_of(ticket)
    demands, _ = door.demands_of(ticket, books.pools, lengths)
    if not demands or _may_start(books, demands, lengths, now):
        return None
    need = min(demand.kv for demand in demands.values())
    code = _line_is_full(turns, ticket, need)
    if code is None:
        return None
    return Refusal(code, "", needed=need, position=len(books.waiting) + 1)


def _may_start(books: Books, demands: dict[PoolId, Demand], lengths: Lengths, now: float) -> bool:
    """Whether it fits on a pool that takes work: if so, fairness alone may let it by."""
    for ident, demand in demands.items():
        pool = books.pools[ident]
        if pool.open and pool.paused_until <= now:
            pool.ledger.refresh(now)
            if pool.ledger.fits(demand, lengths):
                return True
    return not any(books.pools[ident].open for ident in demands)  # that is another refusal


def _line_is_full(turns: Turns, ticket: Ticket, need: int) -> Code | None:
    """The bound that it would pass as one more in line, its own client being the one to give way."""
    books, client = turns.books, ticket.client
    own = books.flows.get(client.name)
    code = bound_passed(
        turns.queue,
        client,
        1 if own is None else len(own.waiting) + 1,
        requests=len(books.waiting) + 1,
        tokens=books.tokens + need,
        size=books.bytes + ticket.body_bytes,
    )
    if code is Code.QUEUE_FULL:
        fullest = longest(books.flows.values())
        if fullest is not None and fullest.line > (0.0 if own is None else own.line):
            return None  # somebody else would give way, or may
    return code
