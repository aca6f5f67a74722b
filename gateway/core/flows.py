"""Clients, their waiting requests, their shares, and who is next.

A *flow* is the line of one client. Three rules keep a runaway from being anybody else's problem:

- *Order.* A higher priority goes first, and waiting raises it. Then the flow that holds least KV
  per weight; among equals the one whose head has waited longest. Least occupancy first isolates
  latency better than a virtual-time counter (trial on Azure lengths, one client at 14 × its share:
  victims' p99 TTFT 1.61 s against 4.95 s for VTC, 1.35 s alone).
- *Dynamic threshold* (Choudhury and Hahne, 1998). Beyond its weighted share a client may hold at
  most ALPHA × what then still is free, so that a newcomer finds room at once. Both in what the pool is
  planned to come to, as room is: in tokens in use now, a runaway whose answers all begin and end together
  passed with small ones, and then nothing had room until they ended.
- A client that holds nothing may always start, and a client that is alone may use everything.

`max_held_tokens` is of all processes of the gate together, as far as they have heard of each other:
**bound: a client holds no more than that, and what the other processes let start after they wrote what was
heard of them last, and one request in each process where it held nothing and waited `ELSEWHERE_S`.**

Within a line, conversations take turns (weighted fair queueing, Demers 1989): a request's tag is
where its conversation's last one ended, in KV tokens needed, or where service has come to, if that is
later; the least tag goes first, and with each start service comes further by what was needed over the
conversations that wait. One agent's thirty sub-agents then do not stand before another agent of the
same key. Requests that name no conversation are of one together: they go by arrival.

Shares are per pool; the order looks at what a client holds anywhere. None of it looks at requests that were refused.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from gateway.core.others import Others

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from gateway.core.ledger import PoolLedger
    from gateway.core.lengths import Lengths
    from gateway.core.model import ClientRule, Demand, PoolId, Ticket

AGE_S = 30.0
"""Waiting that counts as one priority more: strict bands alone would let the lowest starve. A
quarter of the longest wait allowed by default, so four bands can be climbed."""

ALPHA = 2.0
"""One runaway then has alpha / (1 + alpha) = two thirds of what a pool that others use too is planned to
come to. In the laboratory (64k pool, 14 × its share; beside it, with prompts four times as long): victims'
p99 TTFT against alone 1.12; 1.20, what the runaway gets of what VTC gives it 0.93; 0.73. While all of the plan was
split by charges 1.10; 1.28 and 0.93; 0.75, with 3 (three seeds) 1.31; 1.47 and 0.96; 0.75, with 5 2.3; 1.8 and
1.03; 0.82. Of tokens in use instead of planned 1.14; 3.2 and 0.93; 0.88, of what is planned without the margin for
unknown lengths 1.12; 2.7 and 0.93; 0.77. Keeping free what the others
usually ask for, instead of a part of what is free, measured 1.4 at the same output: a burst of
victims shrinks this threshold, not that one."""


ELSEWHERE_S = 10.0
"""How long a client that holds nothing here may be kept waiting by what it holds at other processes of the
gate: small work that goes on and on there would keep one large request here for ever. A twelfth of the
longest wait allowed by default."""

SESSIONS = 64
"""Conversations of a client remembered beyond those that wait, before old ones are looked for."""


@dataclass(slots=True, eq=False)
class Entry:
    """A ticket that waits."""

    ticket: Ticket
    seq: int  # arrival order; kept when a request is put back
    since: float
    expires: float
    need: int  # KV tokens on the pool where it needs least, for bounds and estimates
    demands: dict[PoolId, Demand] = field(default_factory=dict)
    lengths: Lengths | None = None  # of its client's answers, see lengths
    passed: int = 0  # KV tokens granted past it while it was blocked or held back, see choice
    passed_s: float = 0.0  # seconds of grammars granted past it while it waited for its own
    came_back: bool = False  # when it was told to
    given: float = 0.0  # seconds of its wait in which there was no gate, see Admission.stood_still
    tag: float = 0.0  # its place in line, see the module

    @property
    def place(self) -> tuple[float, int]:
        """Sort key in its client's line."""
        return self.tag, self.seq


PLACE = attrgetter("place")


@dataclass(slots=True)
class Flow:
    """One client's line and what it holds."""

    rule: ClientRule
    waiting: list[Entry] = field(default_factory=list)  # in the order of their places
    tokens: int = 0  # KV tokens its waiting requests need
    held: int = 0  # KV tokens over all pools
    inflight: int = 0
    wants: dict[PoolId, int] = field(default_factory=dict)  # waiting requests per pool
    lanes: dict[tuple[PoolId, ...], list[Entry]] = field(default_factory=dict)
    """The same requests by where they may run: a full or dead server hides nobody's other work."""
    newest: int = 0  # arrival number of the request whose rule holds
    served: float = 0.0  # how far service has come, in tags
    talks: Counter[str | None] = field(default_factory=Counter)  # waiting requests by conversation
    ends: dict[str | None, float] = field(
        default_factory=dict
    )  # of each conversation's last request
    others: Others = field(default_factory=Others)
    owed: bool = False
    """It holds nothing here and has waited long for what it holds elsewhere: one may start."""

    @property
    def active(self) -> bool:
        """Whether this client takes part in sharing now."""
        return self.held > 0 or bool(self.waiting)

    def turn(self, now: float) -> tuple[int, float, int]:
        """Sort key: smallest goes first. Only for flows with somebody waiting."""
        head = self.waiting[0]
        band = self.rule.priority + int(max(now - head.since, 0.0) / AGE_S)
        return (-band, self.held / self.rule.weight, head.seq)

    @property
    def line(self) -> float:
        """How long this client's line is, per weight."""
        return len(self.waiting) / self.rule.weight

    def within_own_limits(self, demand: Demand) -> bool:
        """Whether policy lets this client hold `demand` more. What it holds at other processes of the
        gate counts as well, as far as it was heard; but not for ever against the first one here."""
        rule = self.rule
        if rule.max_inflight is not None and self.inflight >= rule.max_inflight:
            return False
        if rule.max_held_tokens is None:
            return True
        return self.held + self.elsewhere + demand.kv <= rule.max_held_tokens

    @property
    def elsewhere(self) -> int:
        """Tokens held at other processes of the gate that count here."""
        return 0 if self.owed and not self.held else self.others.held.get(self.rule.name, 0)

    def look(self, now: float) -> None:
        """What others hold may have changed."""
        self.owed = (
            not self.held and bool(self.waiting) and now - self.waiting[0].since >= ELSEWHERE_S
        )

    def tag(self, entry: Entry) -> float:
        """The start tag of a newcomer; its conversation's next one starts where it ends."""
        session = entry.ticket.session
        tag = max(self.served, self.ends.get(session, 0.0))
        self.ends[session] = tag + entry.need
        return tag

    def started(self, entry: Entry) -> None:
        """One of the line got its turn: service has come further."""
        self.served = max(self.served + entry.need / max(len(self.talks), 1), entry.tag)
        if len(self.ends) > 2 * len(self.talks) + SESSIONS:
            self.ends = {
                who: end for who, end in self.ends.items() if end > self.served or who in self.talks
            }

    def want(self, pools: Iterable[PoolId], by: int) -> None:
        """One request more (or less) waits for each of `pools`."""
        for pool in pools:
            self.wants[pool] = self.wants.get(pool, 0) + by

    def put_back(self, entry: Entry) -> None:
        """Insert by its place: a request the engine pushed back keeps it."""
        self.talks[entry.ticket.session] += 1
        insort(self.waiting, entry, key=PLACE)
        insort(self.lanes.setdefault(tuple(entry.demands), []), entry, key=PLACE)

    def remove(self, entry: Entry) -> None:
        """Take a waiting entry out of the line. Raises KeyError if it is not there."""
        _take_out(self.waiting, entry)
        self._leave_lane(entry)
        self._leave_talk(entry.ticket.session)

    def change_lane(self, entry: Entry, demands: dict[PoolId, Demand]) -> None:
        """A waiting entry may now run elsewhere. Its place is its own: where it may run as before, nothing moves."""
        if tuple(demands) == tuple(entry.demands):
            entry.demands = demands
            return
        self._leave_lane(entry)
        entry.demands = demands
        insort(self.lanes.setdefault(tuple(demands), []), entry, key=PLACE)

    def ahead(self, pools: Container[PoolId], most: int) -> Iterator[Entry]:
        """Who waits for one of `pools`, in order: the first `most` of each lane."""
        lanes = (
            islice(lane, most)
            for key, lane in self.lanes.items()
            if any(pool in pools for pool in key)
        )
        return merge(*lanes, key=lambda entry: entry.place)

    def _leave_talk(self, session: str | None) -> None:
        self.talks[session] -= 1
        if not self.talks[session]:
            del self.talks[session]
        if not self.talks:  # nobody waited for anybody: all begin anew, alike
            self.served = max(self.served, *self.ends.values()) if self.ends else self.served
            self.ends.clear()

    def _leave_lane(self, entry: Entry) -> None:
        key = tuple(entry.demands)
        _take_out(self.lanes[key], entry)
        if not self.lanes[key]:
            del self.lanes[key]


def _take_out(line: list[Entry], entry: Entry) -> None:
    """Found by its place, as thousands may leave at once, and not one after the other."""
    at = bisect_left(line, entry.place, key=PLACE)
    if at == len(line) or line[at] is not entry:
        raise KeyError(entry.ticket.id)
    del line[at]


def within_share(flow: Flow, demand: Demand, ledger: PoolLedger, active_weight: float) -> bool:
    """The dynamic threshold on one pool.

    planned + need <= max(weight share of the pool, ALPHA * what stays free), per client and pool,
    and the same for running slots: which of the two is scarce depends on the box. Planned is what a client
    has in use, and of what the pool is still to come to (by its forecast, or all that is charged) the part
    that it has of all charges: one whose answers are longer than was expected has a small charge and much
    in use, which is not the others'. `active_weight` is the sum of the weights of all clients active on this
    pool, this one included: who works elsewhere takes no share here.
    """
    charged = ledger.by_client.get(flow.rule.name, 0)
    part = flow.rule.weight / active_weight
    if charged == 0 or part >= 1.0:  # whether it fits is asked elsewhere, moment by moment
        return True
    in_use = ledger.in_use.get(flow.rule.name, 0)

    def within(planned: int) -> bool:
        to_come = max(planned - ledger.used, 0)
        own = in_use + to_come * charged / ledger.kv + demand.kv
        stays_free = ledger.limit - planned - demand.kv
        return own <= max(ledger.grants.kv_tokens * part, ALPHA * stays_free)

    # Where there is room for all caps, nobody need look at the forecast.
    if not (within(ledger.worst) or within(ledger.reserved)):
        return False
    slots = ledger.slots_of[flow.rule.name] + demand.slots
    slots_left = ledger.all_slots - ledger.slots - demand.slots
    return slots <= max(ledger.all_slots * part, ALPHA * slots_left, 1.0)


def longest(flows: Iterable[Flow]) -> Flow | None:
    """The flow with most waiting per weight: the one that gives way when the queue is full."""
    return max(
        (flow for flow in flows if flow.waiting),
        key=lambda flow: flow.line,
        default=None,
    )
