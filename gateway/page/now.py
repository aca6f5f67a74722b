"""What is going on now, in a person's words: where requests are, how full it is, how it looks.

Read from the core's books, nothing is changed. The four places a request can be:

- *waiting for memory*: in the queue, and no open server has the KV tokens free that it is charged;
- *waiting to start*: in the queue, and what lacks is its turn, a slot, a place in prefill or a
  server;
- *reading input*: handed to a server, whose first token is not there yet;
- *writing*: decoding.

*Leaving* are those whose client is gone while the engine may still be at work on them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gateway.core.model import UNBOUNDED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.core.model import PoolView, View
    from gateway.gate import Gate

BUSY = 0.8
"""Share of memory or slots from which one more large request may have to wait: four of five taken."""


class Level(StrEnum):
    """How it looks, best first. The words are part of /status."""

    CALM = "calm"  # nothing waits and there is room
    BUSY = "busy"  # nothing waits, and memory or slots are nearly taken
    QUEUEING = "queueing"  # some wait
    REFUSING = "refusing"  # some wait, and somebody was refused for lack of room in the last minute
    NO_SERVER = "no_server"  # no server takes work
    DRAINING = "draining"


def now(gate: Gate, view: View, *, refused: int, ready: bool, draining: bool) -> dict[str, Any]:
    """The `now` of /status. `refused` counts refusals of the last minute for lack of room."""
    places = _places(gate, view)
    pressure = _pressure(view.pools)
    level = Level.CALM
    if draining:
        level = Level.DRAINING
    elif not ready:
        level = Level.NO_SERVER
    elif view.queue.requests:
        level = Level.REFUSING if refused else Level.QUEUEING
    elif max(pressure["kv"] or 0.0, pressure["slots"] or 0.0) >= BUSY:
        level = Level.BUSY
    return {
        "level": level.value,
        "working": places["reading"] + places["writing"],
        **places,
        "pressure": pressure,
    }


def _places(gate: Gate, view: View) -> dict[str, int]:
    books = gate.core.books
    holds = [hold for pool in books.pools.values() for hold in pool.ledger.holds.values()]
    leaving = sum(hold.lingering for hold in holds)
    reading = sum(hold.prefilling and not hold.lingering for hold in holds)
    free = {pool.pool: pool.kv.limit - pool.kv.reserved for pool in view.pools if pool.open}
    lacks = 0
    for flow in books.flows.values():
        for entry in flow.waiting:
            open_to_it = [(d.kv, free[pool]) for pool, d in entry.demands.items() if pool in free]
            lacks += bool(open_to_it) and all(needed > left for needed, left in open_to_it)
    return {
        "waiting_to_start": view.queue.requests - lacks,
        "waiting_for_memory": lacks,
        "reading": reading,
        "writing": len(holds) - leaving - reading,
        "leaving": leaving,
    }


def _pressure(pools: Iterable[PoolView]) -> dict[str, float | None]:
    """How much of memory and slots of the open servers is taken: a share, 1 = all. None: no limit.

    Prefill is left out: its limit is a chunk, which one long prompt passes many times, for a moment.
    """
    open_pools = [pool for pool in pools if pool.open]
    shares: dict[str, float | None] = {}
    for name in ("kv", "slots"):
        views = [getattr(pool, name) for pool in open_pools]
        limit = sum(view.limit for view in views if view.limit < UNBOUNDED)
        reserved = sum(view.reserved for view in views if view.limit < UNBOUNDED)
        shares[name] = round(reserved / limit, 4) if limit else None
    return shares
