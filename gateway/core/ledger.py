"""The ledger of one KV pool: who holds how much, and whether more fits.

Every sum is kept incrementally and checked: a counter that would go below zero is a bug in the
caller and raises `LedgerError`; nothing is ever clamped back to zero, since a clamped counter
hides the leak that will stop the gate next week.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.core.model import LedgerView

if TYPE_CHECKING:
    from gateway.core.model import Demand, PoolId, PoolLimits, RequestId


class LedgerError(RuntimeError):
    """An impossible entry: the books would no longer add up."""


@dataclass(slots=True)
class Hold:
    """One reservation."""

    client: str
    demand: Demand
    prompt: int  # prompt tokens that really occupy KV, all sequences
    since: float
    streamed: bool
    generated: int = 0
    prefilling: bool = True
    prefilled_by: float | None = None  # where no first token will be seen: when it should be in
    lingering: bool = False
    linger_until: float = 0.0

    @property
    def used(self) -> int:
        """KV tokens known to be occupied: the prompt once prefilled, and what was streamed."""
        return 0 if self.prefilling else min(self.prompt + self.generated, self.demand.kv)


@dataclass(slots=True)
class PoolLedger:
    """Reservations of one pool against its limits."""

    pool: PoolId
    limits: PoolLimits
    holds: dict[RequestId, Hold] = field(default_factory=dict)
    kv: int = 0
    prefill: int = 0
    slots: int = 0
    by_client: dict[str, int] = field(default_factory=dict)  # KV tokens held per client

    @property
    def free(self) -> int:
        """KV tokens not reserved; negative after a resize below what is held."""
        return self.limits.kv_tokens - self.kv

    def fits(self, demand: Demand) -> bool:
        """Whether all of `demand` fits now.

        A prompt larger than the whole prefill budget still runs, alone: one giant at a time.
        """
        limits = self.limits
        return (
            self.kv + demand.kv <= limits.kv_tokens
            and self.slots + demand.slots <= limits.slots
            and (self.prefill == 0 or self.prefill + demand.prefill <= limits.prefill_tokens)
        )

    def reserve(self, ident: RequestId, hold: Hold) -> None:
        """Enter a reservation. Raises LedgerError if it is there already or does not fit."""
        if ident in self.holds:
            msg = f"{ident} holds a reservation on {self.pool} already"
            raise LedgerError(msg)
        if not self.fits(hold.demand):
            msg = (
                f"{hold.demand} does not fit {self.pool}: {self.kv} of {self.limits.kv_tokens} held"
            )
            raise LedgerError(msg)
        self.holds[ident] = hold
        self.kv += hold.demand.kv
        self.prefill += hold.demand.prefill
        self.slots += hold.demand.slots
        self.by_client[hold.client] = self.by_client.get(hold.client, 0) + hold.demand.kv

    def prefilled(self, ident: RequestId) -> bool:
        """The prompt is in: give its prefill share back. False if that had happened before."""
        hold = self.holds[ident]
        if not hold.prefilling:
            return False
        hold.prefilling = False
        self.prefill = _less(self.prefill, hold.demand.prefill, "prefill", self.pool)
        return True

    def release(self, ident: RequestId) -> Hold:
        """Remove a reservation, once. Raises LedgerError if there is none."""
        hold = self.holds.pop(ident, None)
        if hold is None:
            msg = f"{ident} holds nothing on {self.pool}"
            raise LedgerError(msg)
        if hold.prefilling:
            self.prefill = _less(self.prefill, hold.demand.prefill, "prefill", self.pool)
        self.kv = _less(self.kv, hold.demand.kv, "kv", self.pool)
        self.slots = _less(self.slots, hold.demand.slots, "slots", self.pool)
        rest = _less(self.by_client[hold.client], hold.demand.kv, "client kv", self.pool)
        if rest:
            self.by_client[hold.client] = rest
        else:
            del self.by_client[hold.client]
        return hold

    def views(self) -> tuple[LedgerView, LedgerView, LedgerView]:
        """KV, prefill and slots for people."""
        limits = self.limits
        used = sum(hold.used for hold in self.holds.values())
        return (
            LedgerView(limits.kv_tokens, self.kv, used),
            LedgerView(limits.prefill_tokens, self.prefill, self.prefill),
            LedgerView(limits.slots, self.slots, self.slots),
        )


def _less(value: int, by: int, what: str, pool: PoolId) -> int:
    if value < by:
        msg = f"{what} of {pool} would go below zero: {value} - {by}"
        raise LedgerError(msg)
    return value - by
