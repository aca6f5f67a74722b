"""A small world for the lease protocol: a store, an engine, replicas with clocks of their own.

Messages to the store and answers from it are things that can be held back, lost, doubled and brought
late. The engine runs what was sent to it until it is told or pleases to end it, whoever is dead by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from gateway.core.amount import NOTHING, Amount
from gateway.core.lease import Claim
from gateway.core.tenant import Tenant
from gateway.core.witness import WINDOW_S, Sight

if TYPE_CHECKING:
    from gateway.core.lease import Draft, Table

TTL_S = 10.0
SETTLE_S = 1.0
BUDGET = Amount(1000, 300, 12)


@dataclass(eq=False)
class Request:
    owner: str
    size: Amount
    since: float  # its owner's clock
    enters: float  # true time at which the engine has it
    prefilling: bool = True
    known: bool = True  # to a living owner

    @property
    def takes(self) -> Amount:
        return self.size if self.prefilling else Amount(self.size.kv, 0, self.size.slots)


@dataclass(eq=False)
class Asking:
    """One compare-and-swap on its way."""

    by: Replica
    run: str
    expects: Table | None
    draft: Draft
    began: float
    answer: tuple[bool, Table | None, str] | None = None


@dataclass(eq=False)
class Replica:
    name: str
    offset: float
    rate: float
    budget: Amount = BUDGET
    reach: bool = True  # of the store
    run: str = ""
    epoch: str = ""  # of the table that it wrote last
    lag: float = 0.0  # from grant to engine
    line: list[Amount] = field(default_factory=list)
    heads: int = 0
    asking: Asking | None = None
    tenant: Tenant = field(init=False)

    def __post_init__(self) -> None:
        self.tenant = Tenant(self.name, TTL_S)
        self.tenant.until = float("-inf")


class World:
    def __init__(self) -> None:
        self.t = 0.0
        self.names = count()
        self.runs = count(1)
        self.run = "run0"
        self.doc: Table | None = None
        self.olden: list[Table | None] = [None]
        self.replicas: list[Replica] = []
        self.requests: list[Request] = []
        self.published = (0.0, 0, 0)  # true time, sequences, tokens

    # ---- clocks and sums -----------------------------------------------------------------------

    def clock(self, of: Replica, at: float | None = None) -> float:
        return of.offset + of.rate * (self.t if at is None else at)

    def held(self, of: Replica) -> Amount:
        return Amount.total(r.takes for r in self.requests if r.owner == of.name)

    @property
    def in_use(self) -> Amount:
        """By everybody, dead or alive: what living replicas have granted and what the engine runs."""
        return Amount.total(r.takes for r in self.requests)

    # ---- what happens --------------------------------------------------------------------------

    def start(self, offset: float = 0.0, rate: float = 1.0, **of) -> Replica:
        one = Replica(f"g{next(self.names)}", offset, rate, **of)
        self.replicas.append(one)
        return one

    def kill(self, one: Replica) -> None:
        """What it granted and did not send is gone with it; what the engine has stays there."""
        self.replicas.remove(one)
        self.requests = [r for r in self.requests if r.owner != one.name or r.enters <= self.t]

    def leave(self, one: Replica) -> None:
        """It drained and goes."""
        self.requests = [r for r in self.requests if r.owner != one.name]
        self.replicas.remove(one)
        one.tenant.read(self.doc, self.clock(one))
        rest = one.tenant.left(self.run)
        if rest is not None and one.reach:
            self.doc = rest

    def pump(self, one: Replica) -> None:
        """Grant in order of arrival while it fits, as a gate does: at once, by itself."""
        while one.line:
            size, now = one.line[0], self.clock(one)
            if not one.tenant.ceiling(now).covers(self.held(one) + size):
                return
            one.line.pop(0)
            one.heads += 1
            self.requests.append(Request(one.name, size, now, self.t + one.lag))

    def end(self, request: Request) -> None:
        self.requests.remove(request)
        for one in self.replicas:
            self.pump(one)

    def publish(self) -> None:
        there = [r for r in self.requests if r.enters <= self.t]
        self.published = (self.t, len(there), sum(r.size.kv for r in there))

    def look(self, one: Replica) -> None:
        at, sequences, tokens = self.published
        taken = self.clock(one, at)
        mine = [r for r in self.requests if r.owner == one.name and r.since <= taken - SETTLE_S]
        if one.tenant.witness.curious:
            ours = sum(r.size.kv for r in self.requests if r.owner == one.name)
            one.tenant.witness.saw(Sight(taken, sequences - len(mine), max(tokens - ours, 0)))

    def claim(self, one: Replica) -> Claim:
        now, held = self.clock(one), self.held(one)
        mine = [r for r in self.requests if r.owner == one.name]
        return Claim(
            keeps=one.tenant.keeps(held, now),
            held=held,
            want=(held + Amount.total(one.line)).least(one.budget).most(held),
            need=one.line[0] if one.line else NOTHING,
            budget=one.budget,
            started=one.heads,
            running=len(mine),
            steady=sum(r.since <= now - WINDOW_S * 1.1 - SETTLE_S for r in mine),
        )

    def ask(self, one: Replica) -> Asking:
        """Begin to renew. What was asked before is waited for no more."""
        tenant, now = one.tenant, self.clock(one)
        tenant.heed(tenant.draft(one.run, self.claim(one), now))
        draft = tenant.draft(one.run, self.claim(one), now)
        one.asking = Asking(one, one.run, tenant.table, draft, now)
        return one.asking

    def arrive(self, asking: Asking) -> None:
        """The message comes to the store, now or again."""
        if asking.run == self.run and asking.expects == self.doc:
            self.doc = asking.draft.table
            self.olden.append(self.doc)
            asking.answer = (True, None, self.run)
        else:
            asking.answer = (False, self.doc, self.run)

    def answered(self, asking: Asking) -> bool:
        """The answer comes back; whether it was a yes that somebody still waited for."""
        one = asking.by
        if one.asking is not asking or one not in self.replicas or asking.answer is None:
            return False
        one.asking = None
        good, doc, one.run = asking.answer
        now = self.clock(one)
        if good:
            one.tenant.wrote(asking.draft, asking.began, now)
            one.epoch = asking.draft.table.epoch
        else:
            one.tenant.read(doc, now)
        self.pump(one)
        return good

    def renew(self, one: Replica) -> None:
        """All of it, with nothing in the way."""
        if not one.reach:
            return
        for _ in range(3):
            asking = self.ask(one)
            self.arrive(asking)
            if self.answered(asking):
                return

    def run_for(self, seconds: float, step: float = 0.5) -> None:
        """Calm: everybody who reaches the store renews, and the engine is looked at."""
        until = self.t + seconds
        while self.t < until:
            self.t += step
            self.publish()
            for one in self.replicas:
                self.look(one)
                self.renew(one)
                self.pump(one)

    def restart_store(self, *, back_to: int | None = None) -> None:
        """Another life of the store: empty, or with the table as it was some writes ago."""
        self.run = f"run{next(self.runs)}"
        self.doc = None if back_to is None else self.olden[-1 - back_to % len(self.olden)]


def served(budget: Amount = BUDGET, replicas: int = 3) -> World:
    """A world past its beginning: everybody is in the table and nothing is unknown."""
    world = World()
    for index in range(replicas):
        world.start(offset=1000.0 * index, budget=budget)
    world.run_for(TTL_S + 8)
    assert world.doc is not None
    assert world.doc.unclaimed == NOTHING
    return world
