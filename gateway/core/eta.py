"""How long until one more of a client can start: what stands before it over how fast that goes.

Before it stand its client's own line, those of it who were told to come back (see `recall`), and
its own need. Two cases:

- The client is *held back* by its share or its own limits: only its own ends make room for it, and
  they make up the part of the drain rate that it holds of all that is held. That the pool has room
  is of no use to it.
- Else what is free counts, and the rate is the larger of what it holds and its weight's share. It
  waits no longer than if everybody who waits went first.

rate R: KV tokens released per second (see `drainrate`). All in tokens of whole demands, as they are
reserved under `declared`: under `forecast` more of them are held than the pool has, in both terms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.choice import held_back

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.core.books import Books
    from gateway.core.drainrate import DrainRate
    from gateway.core.flows import Entry


def wait_s(
    books: Books, entry: Entry, drain: DrainRate, away: Mapping[str, float], now: float
) -> float | None:
    """Seconds until a waiting entry, put at the end of its client's line, can start.

    `away`: KV tokens of those told to come back, by client. None while no rate is known.
    """
    flow = books.waiting[entry.ticket.id]
    own = flow.tokens + away.get(flow.rule.name, 0.0)
    held = sum(other.held for other in books.flows.values())
    part = flow.held / held if held else 1.0
    if held_back(books, flow, entry):
        return drain.eta_s(own / part, now) if part else None
    active = sum(other.rule.weight for other in books.flows.values() if other.active)
    part = max(part, flow.rule.weight / active)
    free = sum(max(0, pool.ledger.free) for pool in books.pools.values() if pool.open)
    everybody = books.tokens + sum(away.values())
    return drain.eta_s(min((own - free) / part, everybody - free), now)
