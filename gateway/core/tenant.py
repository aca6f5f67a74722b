"""One replica's side of a lease: what it may grant now, and what it writes into the table.

It lowers what it grants before it writes less, and raises it only after more was written. Its lease
counts from before it asked; what it cannot renew stays as it is until then (frozen, never grown), and
after that only what it really holds is its own, until it has reached the table again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.core.amount import NOTHING, Amount
from gateway.core.lease import begun, rewritten
from gateway.core.witness import Witness

if TYPE_CHECKING:
    from gateway.core.lease import Claim, Draft, Table

SURE = 0.85
"""Part of its time for which a lease is used. The rest is for clocks that do not go equally fast (5 %
each way), and for what was granted at the last moment to reach the engine and be counted there."""


class Tenant:
    """Of one pool. `me` names this life of this replica: never used by another. `fresh`: see `witness`."""

    def __init__(self, me: str, ttl_s: float, *, fresh: bool = False) -> None:
        self.me = me
        self.ttl_s = ttl_s
        self.until = 0.0
        """When the lease is over, by this replica's clock."""
        self.witness = Witness(me, ttl_s, fresh=fresh)
        self.table: Table | None = None  # as it was last seen
        self._share = NOTHING
        self._aim = NOTHING
        self._writes = 0

    def ceiling(self, now: float) -> Amount:
        """What it may grant in all; requests that it holds above that may end."""
        return self._share.least(self._aim) if now < self.until else NOTHING

    @property
    def share(self) -> Amount:
        """What stands in the table for it, or less: what it may come to use."""
        return self._share

    @property
    def aim(self) -> Amount:
        """What it should come to have."""
        return self._aim

    @property
    def pressed(self) -> bool:
        """Whether somebody waits for it to write down less."""
        return not self._aim.covers(self._share)

    def keeps(self, held: Amount, now: float) -> Amount:
        """What it goes on using. From here on nothing above it may be granted but by `ceiling`."""
        self._share = held.most(self.ceiling(now))
        return self._share

    def read(self, table: Table | None, now: float) -> None:
        """The table came, as it is."""
        self.table = table
        if table is not None:
            self.witness.read(table, now)

    def draft(self, run: str, claim: Claim, now: float) -> Draft:
        """What to write in place of the table that was read last. `claim` was made after that."""
        self._writes += 1
        table = begun(self.table, run, f"{self.me}.{self._writes}")
        self.witness.read(table, now)
        found = self.witness.verdict(table, now)
        return rewritten(
            table,
            self.me,
            claim,
            silent=found.silent,
            gone=found.gone,
            unclaimed=found.unclaimed,
        )

    def heed(self, draft: Draft) -> None:
        """Use no more than that from now on, whether or not it comes to be written."""
        self._aim = draft.aim

    def wrote(self, draft: Draft, began: float, now: float) -> None:
        """That was written; the asking began at `began`."""
        self._share, self._aim = draft.table.entries[self.me].share, draft.aim
        self.until = began + SURE * self.ttl_s
        self.read(draft.table, now)
        self.witness.wrote(draft.table.version)

    def failed(self) -> None:
        """The store can not be asked. What it should have given back stays in use: nobody else has it."""
        self._aim = self._share

    def left(self, run: str) -> Table | None:
        """The table without this replica, to write when it holds nothing; None: it is not in it."""
        table = self.table
        if table is None or table.run != run or self.me not in table.entries:
            return None
        self.until = 0.0
        self._share = NOTHING
        rest = {who: entry for who, entry in table.entries.items() if who != self.me}
        return replace(table, version=table.version + 1, entries=rest)
