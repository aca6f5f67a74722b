"""Sums that are kept step by step: one that would go below zero is a bug in the caller, and raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.core.model import PoolId


class LedgerError(RuntimeError):
    """An impossible entry: the books would no longer add up."""


def less(value: int, by: int, what: str, pool: PoolId) -> int:
    """`value` without `by`. Raises LedgerError where that is below zero."""
    if value < by:
        msg = f"{what} of {pool} would go below zero: {value} - {by}"
        raise LedgerError(msg)
    return value - by


def tally(sums: dict[str, int], client: str, by: int, what: str, pool: PoolId) -> None:
    """A client's part of a sum changes; who has none is not kept. Raises LedgerError below zero."""
    left = sums.get(client, 0) + by
    if left < 0:
        msg = f"{what} of {client!r} on {pool} would be {left}"
        raise LedgerError(msg)
    if left:
        sums[client] = left
    else:
        sums.pop(client, None)
