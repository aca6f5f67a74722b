"""Which of several pools a request goes to.

Only pools where it fits *now* are compared, and the choice is taken in the same step, so that a
server cannot fill up between choice and dispatch. Of those that fit, the least loaded by share of
its own pool wins: memory is what runs out, and a share compares a small card with a large one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.core.ledger import PoolLedger
    from gateway.core.model import Demand


def pick(feasible: Iterable[tuple[PoolLedger, Demand]]) -> tuple[PoolLedger, Demand] | None:
    """The feasible pool with the smallest reserved share; the first listed among equals."""
    return min(feasible, key=lambda place: place[0].kv / place[0].limits.kv_tokens, default=None)
