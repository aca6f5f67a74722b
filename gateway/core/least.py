"""The smallest thing that waits, so that a full pool is recognised without looking at everybody.

A heap per pool and ledger that is cleaned when it is asked: entries that left the queue, or whose
demand changed since, are dropped when they come to its top. Each is pushed and popped once, so
asking costs O(log n) spread over the life of a request.
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


class Least:
    """Lower bounds on what the requests waiting for each pool need."""

    def __init__(self) -> None:
        self._kv: dict[PoolId, Heap] = {}
        self._prefill: dict[PoolId, Heap] = {}
        self._tie = count()  # entries are not ordered; the number before them is

    def add(self, entry: Entry) -> None:
        """An entry waits, or waits with other demands than before."""
        for pool, demand in entry.demands.items():
            tie = next(self._tie)
            heapq.heappush(self._kv.setdefault(pool, []), (demand.kv, tie, entry, demand))
            heapq.heappush(self._prefill.setdefault(pool, []), (demand.prefill, tie, entry, demand))

    def may_start(self, ledger: PoolLedger, waiting: Mapping[RequestId, Flow]) -> bool:
        """Whether the smallest demands that wait for a pool would fit it: no promise that one will."""
        limits, pool = ledger.limits, ledger.pool
        if ledger.slots >= limits.slots:
            return False
        kv = _top(self._kv.get(pool), pool, waiting)
        if kv is None or kv > ledger.free:
            return False
        if ledger.prefill == 0:
            return True
        prefill = _top(self._prefill.get(pool), pool, waiting)
        return prefill is not None and ledger.prefill + prefill <= limits.prefill_tokens


def _top(heap: Heap | None, pool: PoolId, waiting: Mapping[RequestId, Flow]) -> int | None:
    """The smallest demand that still waits; what does not is dropped."""
    while heap:
        need, _, entry, demand = heap[0]
        if entry.ticket.id in waiting and entry.demands.get(pool) is demand:
            return need
        heapq.heappop(heap)
    return None
