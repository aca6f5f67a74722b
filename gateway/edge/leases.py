"""This gate's leases: for each pool one tenant, renewed every second, so that requests never wait for it.

Each renewal is one compare-and-swap in the store: what is kept and wanted goes in, a share comes out and
becomes the pool's ceiling in the core. Between two renewals nothing is asked of anybody. Sooner than in
a second it is asked again while a request waits for more than there is, or while somebody else waits
for what has just become free here. Where the store does not answer, the ceiling stays as it is until the
lease is over, and then nothing new starts (see `core.tenant`).
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.core.amount import NOTHING, Amount
from gateway.core.lease import Claim
from gateway.core.tenant import Tenant
from gateway.core.witness import WINDOW_S, Sight
from gateway.edge.backend import SETTLE_S, Others
from gateway.lease.store import StoreError
from gateway.lease.wire import decode, encode
from gateway.tasks import spawn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from structlog.typing import FilteringBoundLogger

    from gateway.core.appetite import Appetite
    from gateway.core.model import PoolId
    from gateway.edge.backend import Backend
    from gateway.edge.backends import Fleet
    from gateway.gate import Gate
    from gateway.lease.store import Store
    from gateway.upstream.loads import LoadsFacts

RENEW_S = 1.0
"""Between two renewals: a new share of demand is felt after one or two of them."""

HURRY_S = 0.05
"""Between two renewals while somebody here waits for what one of them may bring: below what a person
notices, and twenty small questions a second."""

WAITS_S = 0.1
"""The same where nothing is known to come."""

LOOK_S = 0.02
"""Between two looks whether something has become free here that somebody else waits for."""

ANSWER_S = 2.0
"""Longest time for one answer of the store, beside its own limits on connecting and reading."""

TRIES = 8
"""Swaps in a row, where others were faster: with ten gates that renew together the last one needs ten;
it is asked again in a moment."""

ASKED_S = 0.5
"""How much older the engine's count may be than it says: a poll takes that long where the engine is
busy with a step."""

SURE_WINDOW_S = WINDOW_S * 1.1 + SETTLE_S
"""A sequence granted before that was there during all of the window, by any gate's clock."""


@dataclass(slots=True)
class _Place:
    """One pool."""

    tenant: Tenant
    document: bytes | None = None  # as it stood in the store when it was last read
    run: str = ""
    asked: float = 0.0
    appetite: Appetite | None = None
    task: asyncio.Task[None] | None = None
    error: str | None = None
    lacking: bool = False  # whether it was told that its lease is over
    budgets: set[Amount] = field(default_factory=set)
    since: float = 0.0  # when they became what they are
    differs: bool = False  # whether it was told that they differ


class Leases:
    """Of all pools of a fleet. `start`, then `stop`, each once."""

    def __init__(
        self,
        store: Store,
        ttl_s: float,
        *,
        gate: Gate,
        fleet: Fleet,
        log: FilteringBoundLogger,
        me: str | None = None,
        fresh: bool = False,
    ) -> None:
        """`me`: the name of this life, never used by another in this store; by default a new one.
        `fresh`: nobody can have used the store before those who are there (see `core.witness`)."""
        self._fresh = fresh
        self.me = secrets.token_hex(6) if me is None else me
        self.store = store
        self._ttl_s = ttl_s
        self._gate = gate
        self._fleet = fleet
        self._log = log
        self._places: dict[PoolId, _Place] = {}
        self._task: asyncio.Task[None] | None = None
        fleet.on_loads = self._saw

    def start(self) -> None:
        """Begin to renew, in the background."""
        self._task = spawn(self._run(), "leases")

    async def stop(self) -> None:
        """Give back what holds nothing. What still runs upstream stays in the table, for others to see
        it end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for pool, place in self._places.items():
            if place.task is not None:
                place.task.cancel()
                await asyncio.wait([place.task])
            await self._leave(pool, place)
        await self.store.close()

    def status(self, backend: Backend) -> dict[str, Any] | None:
        """The `lease` of a server in /status, its ranks added up; None before anything is known."""
        places = [self._places[pool] for pool in backend.pools if pool in self._places]
        tables = [place.tenant.table for place in places if place.tenant.table is not None]
        if not tables:
            return None
        now = self._gate.now()
        ceilings = [place.tenant.ceiling(now) for place in places]
        return {
            "replica": self.me,
            "replicas": max(len(table.entries) for table in tables),
            "share": _told(Amount.total(ceilings)),
            "budget": _told(Amount.total(table.budget() for table in tables)),
            "left_s": round(max(0.0, min(place.tenant.until for place in places) - now), 1),
            "settled": all(table.unclaimed is not None for table in tables),
            "unclaimed": _told(Amount.total(table.unclaimed or NOTHING for table in tables)),
            "error": next((place.error for place in places if place.error is not None), None),
            "budgets_differ": any(len(place.budgets) > 1 for place in places),
        }

    # ---- renewal ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            for backend in self._fleet:
                for pool in backend.pools:
                    if self._gate.limits(pool) is not None:
                        self._look(pool)
            for pool in [pool for pool in self._places if self._gate.limits(pool) is None]:
                place = self._places.pop(pool)
                if place.task is not None:
                    place.task.cancel()
            await asyncio.sleep(LOOK_S)

    def _look(self, pool: PoolId) -> None:
        place = self._places.get(pool) or self._known(pool)
        if place.task is not None and not place.task.done():
            return
        if self._gate.now() >= place.asked + RENEW_S or self._is_urgent(pool, place):
            place.task = spawn(self._renew(pool, place), f"lease of {pool}")

    def _known(self, pool: PoolId) -> _Place:
        place = self._places[pool] = _Place(Tenant(self.me, self._ttl_s, fresh=self._fresh))
        return place

    def _is_urgent(self, pool: PoolId, place: _Place) -> bool:
        """Whether asking now may help a request, here or elsewhere."""
        tenant, table = place.tenant, place.tenant.table
        if table is None or place.error is not None:
            return False
        wants = place.appetite
        rested = self._gate.now() - place.asked
        if rested >= HURRY_S and self._gate.core.books.wanting(pool) and wants is not None:
            if wants.need == NOTHING:  # the first that waits
                return True
            # More is meant for it, or may become free at any time.
            pause = WAITS_S if tenant.share.covers(tenant.aim) else HURRY_S
            if wants.hungry and rested >= pause:
                return True
        others = (entry for who, entry in table.entries.items() if who != self.me)
        if not tenant.pressed or not any(entry.since for entry in others):
            return False
        return not self._gate.appetite(pool).held.covers(tenant.share)

    async def _renew(self, pool: PoolId, place: _Place) -> None:
        tenant = place.tenant
        place.asked = self._gate.now()
        for _ in range(TRIES):
            if self._fleet.budget(pool.backend) is None:
                return  # the server is being taken out
            # First what it should have, so that less is granted from here on; then what that leaves.
            if place.error is None:
                tenant.heed(tenant.draft(place.run, self._claim(pool, place), self._gate.now()))
                self._bound(pool, tenant)
            began = self._gate.now()
            draft = tenant.draft(place.run, self._claim(pool, place), began)
            document = encode(draft.table)
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = await self.store.swap(str(pool), place.run, place.document, document)
                place.run = answer.run
                if answer.taken:
                    place.document = document
                    tenant.wrote(draft, began, self._gate.now())
                    self._wrote(pool, place)
                    return
                table = None if answer.document is None else decode(answer.document)
                place.document = answer.document
            except (StoreError, TimeoutError) as error:
                self._failed(pool, place, str(error) or "does not answer in time")
                return
            tenant.read(table, self._gate.now())

    def _claim(self, pool: PoolId, place: _Place) -> Claim:
        """What this gate says of itself, at this moment."""
        now = self._gate.now()
        # Not what this gate holds back for itself while a server proves that it is well: a gate
        # without work would never lift that, and the smallest budget is that of all.
        budget = self._fleet.budget(pool.backend)
        wants = place.appetite = self._gate.appetite(pool)
        return Claim(
            keeps=place.tenant.keeps(wants.held, now),
            held=wants.held,
            want=wants.want,
            need=wants.need,
            budget=NOTHING if budget is None else budget,
            started=wants.started,
            running=self._gate.steady(pool, now),
            steady=self._gate.steady(pool, now - SURE_WINDOW_S),
        )

    def _bound(self, pool: PoolId, tenant: Tenant) -> None:
        self._gate.ceiling(pool, tenant.ceiling(self._gate.now()), tenant.until)

    def _wrote(self, pool: PoolId, place: _Place) -> None:
        tenant = place.tenant
        self._bound(pool, tenant)
        if place.error is not None:
            self._log.info("leases_renewed", pool=str(pool))
        place.error, place.lacking = None, False
        if (table := tenant.table) is None:
            return
        others = [entry for who, entry in table.entries.items() if who != self.me]
        budgets = {entry.budget for entry in table.entries.values()}
        now = self._gate.now()
        if budgets != place.budgets:
            place.budgets, place.since, place.differs = budgets, now, False
        # Where a server starts anew with another pool, not all meet it at once; who is gone is out by then.
        if len(budgets) > 1 and not place.differs and now - place.since >= self._ttl_s:
            place.differs = True
            self._log.warning(
                "lease_budgets_differ",
                pool=str(pool),
                budgets=[_told(budget) for budget in budgets],
                reason="gates in front of one server plan with different budgets: the smaller counts; "
                "give all of them the same policy",
            )
        if (backend := self._fleet.backends.get(pool.backend)) is not None:
            backend.others[pool.rank] = Others(
                sum(entry.running for entry in others), sum(entry.steady for entry in others)
            )

    def _failed(self, pool: PoolId, place: _Place, why: str) -> None:
        """The store can not be asked. Said once, and again when the lease is over."""
        left = place.tenant.until - self._gate.now()
        if place.error is None:
            self._log.warning(
                "leases_frozen",
                pool=str(pool),
                error=f"the store {why}",
                left_s=round(max(left, 0.0), 1),
                reason="shares stay as they are; when left_s is over nothing new starts",
            )
        elif left <= 0 and not place.lacking:
            place.lacking = True
            self._log.error("lease_over", pool=str(pool), error=f"the store {why}")
        place.error = f"the store {why}"
        place.tenant.failed()
        self._bound(pool, place.tenant)

    async def _leave(self, pool: PoolId, place: _Place) -> None:
        """Take this gate out of the table, where it holds nothing."""
        for _ in range(TRIES):
            if self._gate.limits(pool) is None or self._gate.appetite(pool).held != NOTHING:
                return
            rest = place.tenant.left(place.run)
            if rest is None:
                return
            self._gate.ceiling(pool, NOTHING, float("inf"))
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = await self.store.swap(
                        str(pool), place.run, place.document, encode(rest)
                    )
                    if answer.taken or answer.document is None:
                        return
                    place.tenant.read(decode(answer.document), self._gate.now())
                    place.run, place.document = answer.run, answer.document
            except (StoreError, TimeoutError):
                return

    # ---- the engine's count ----------------------------------------------------------------------

    def _saw(self, backend: Backend, loads: LoadsFacts) -> None:
        for load, pool in self._ranks(backend, loads):
            place = self._places.get(pool) or self._known(pool)
            if not place.tenant.witness.curious:
                continue
            taken = self._gate.now() - (load.age_s or 0.0) - ASKED_S
            mine = self._gate.steady(pool, taken - SETTLE_S)
            tokens = max(load.total - self._gate.used(pool), 0)
            place.tenant.witness.saw(Sight(taken, load.running + load.waiting - mine, tokens))

    def _ranks(self, backend: Backend, loads: LoadsFacts) -> Iterable[tuple[Any, PoolId]]:
        for load in loads.ranks:
            for pool in backend.pools:
                if pool.rank == load.rank:
                    yield load, pool


def _told(amount: Amount) -> dict[str, int]:
    return {"kv": amount.kv, "prefill": amount.prefill, "slots": amount.slots}
