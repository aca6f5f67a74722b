"""The smallest thing that waits, so that a full pool is recognised without looking at everybody.

A heap per pool and ledger: entries that left the queue, or whose demand changed since, are dropped
when they come to its top, or all together when they are most of it. Each is pushed and dropped once,
so asking costs O(log n) spread over the life of a request.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.core.flows import Entry, Flow
    from gateway.core.ledger import PoolLedger
    from gateway.core.model import Demand, PoolId, RequestId

    Heap = list[tuple[int, int, Entry, Demand]]


SLACK = 64
"""A heap that is twice as long as the queue, and this much more, is cleaned of those who left: each
clean-up costs what the additions since the last one did."""


class Least:
    """Lower bounds on what the requests waiting for each pool need."""

    def __init__(self) -> None:
        self._kv: dict[PoolId, Heap] = {}
        self._prefill: dict[PoolId, Heap] = {}
        self._tie = count()  # entries are not ordered; the number before them is

    def add(self, entry: Entry, waiting: Mapping[RequestId, Flow]) -> None:
        """An entry waits, or waits with other demands than before."""
        for pool, demand in entry.demands.items():
            tie = next(self._tie)
            least = demand.start or demand.kv
            for heaps, need in ((self._kv, least), (self._prefill, demand.prefill)):
                heap = heaps.setdefault(pool, [])
                if len(heap) > 2 * len(waiting) + SLACK:
                    heap[:] = [item for item in heap if _waits(item, pool, waiting)]
                    heapq.heapify(heap)
                heapq.heappush(heap, (need, tie, entry, demand))

    def forget(self, pool: PoolId) -> None:
        """Nobody waits for that pool, nor will."""
        self._kv.pop(pool, None)
        self._prefill.pop(pool, None)

    def may_start(self, ledger: PoolLedger, waiting: Mapping[RequestId, Flow]) -> bool:
        """Whether the smallest demands that wait for a pool would fit it: no promise that one will."""
        pool = ledger.pool
        if ledger.holds and ledger.slots >= ledger.all_slots:
            return False
        kv = _top(self._kv.get(pool), pool, waiting)
        if kv is None or kv > ledger.room:
            return False
        if ledger.prefill == 0:
            return True
        prefill = _top(self._prefill.get(pool), pool, waiting)
        return prefill is not None and ledger.prefill + prefill <= ledger.limits.prefill_tokens


def _top(heap: Heap | None, pool: PoolId, waiting: Mapping[RequestId, Flow]) -> int | None:
    """The smallest demand that still waits; what does not is dropped."""
    while heap:
        if _waits(heap[0], pool, waiting):
            return heap[0][0]
        heapq.heappop(heap)
    return None


def _waits(
    item: tuple[int, int, Entry, Demand], pool: PoolId, waiting: Mapping[RequestId, Flow]
) -> bool:
    """Whether an item of a heap stands for somebody who waits, with the demand it has now."""
    _, _, entry, demand = item
    return entry.ticket.id in waiting and entry.demands.get(pool) is demand
