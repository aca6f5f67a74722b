"""So much of each ledger of a pool: KV tokens, prompt tokens in prefill, running requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.core.model import PoolLimits


@dataclass(frozen=True, slots=True)
class Amount:
    """A vector over the three ledgers that are counted in tokens and requests."""

    kv: int = 0
    prefill: int = 0
    slots: int = 0

    @classmethod
    def of(cls, limits: PoolLimits) -> Self:
        """All of a pool."""
        return cls(limits.kv_tokens, limits.prefill_tokens, limits.slots)

    @classmethod
    def total(cls, amounts: Iterable[Amount]) -> Self:
        """Their sum."""
        kv = prefill = slots = 0
        for one in amounts:
            kv, prefill, slots = kv + one.kv, prefill + one.prefill, slots + one.slots
        return cls(kv, prefill, slots)

    def __add__(self, other: Amount) -> Amount:
        """Of each as much as both have together."""
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Amount) -> Amount:
        """Of each what is left; never below nothing."""
        return self._with(other, lambda a, b: max(a - b, 0))

    def least(self, other: Amount) -> Amount:
        """Of each the smaller."""
        return self._with(other, min)

    def most(self, other: Amount) -> Amount:
        """Of each the larger."""
        return self._with(other, max)

    def covers(self, other: Amount) -> bool:
        """Whether it is at least that much of each."""
        return self.kv >= other.kv and self.prefill >= other.prefill and self.slots >= other.slots

    def _with(self, other: Amount, op: Callable[[int, int], int]) -> Amount:
        return Amount(
            op(self.kv, other.kv), op(self.prefill, other.prefill), op(self.slots, other.slots)
        )


NOTHING = Amount()


def bounded(limits: PoolLimits, ceiling: Amount | None) -> PoolLimits:
    """`limits`, no higher than `ceiling` where there is one."""
    if ceiling is None:
        return limits
    least = Amount.of(limits).least(ceiling)
    return replace(limits, kv_tokens=least.kv, prefill_tokens=least.prefill, slots=least.slots)
