"""Hunting for starvation: an engine in virtual time, thousands of steps, unfriendly mixes.

Each grant ends after at most `LONGEST` seconds and arrivals never stop. Then nobody may wait
longer than a bound, no open pool may stand empty while somebody could run there, and when the
arrivals stop everything must come to rest.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.core.model import ClientRule, Outcome, PoolId, PoolLimits, QueueRule
from tests.core.desk import GPU0, GPU1, Desk, rid

LONGEST = 10.0
QUEUE = 40
BOUND = 300.0
"""Seconds: 30 requests ahead, each alone on the pool for LONGEST, one after another.
Over 13 seeds of 400 s all mixes but the overloaded two-pool one stayed under 170."""


@dataclass
class Kind:
    """One sort of request a client sends."""

    client: ClientRule
    per_s: float
    prompt: tuple[int, int]
    cap: tuple[int, int]
    n: int = 1
    to: tuple[PoolId, ...] = (GPU0,)
    streamed: bool = True
    leaves: float = 0.0  # share whose client goes away while they run
    pushed: float = 0.0  # share the engine pushes back at first


@dataclass
class Engine:
    """Ends what the desk starts, after a time drawn for each."""

    desk: Desk
    rng: random.Random
    events: list[tuple[float, int, str, str]] = field(default_factory=list)
    seen: int = 0
    seq: int = 0
    kinds: dict[str, Kind] = field(default_factory=dict)
    arrived: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    pushed: set[str] = field(default_factory=set)

    def at(self, when: float, what: str, name: str) -> None:
        self.seq += 1
        heapq.heappush(self.events, (when, self.seq, what, name))

    def notice(self) -> None:
        """Plan the life of whatever was granted since."""
        order = self.desk.order
        while self.seen < len(order):
            name = order[self.seen]
            self.seen += 1
            kind, now = self.kinds[name], self.desk.now
            self.waits[name] = now - self.arrived[name]
            if name not in self.pushed and self.rng.random() < kind.pushed:
                self.pushed.add(name)
                self.at(now + 0.1, "push", name)
                continue
            lasts = self.rng.uniform(0.5, LONGEST)
            self.at(now + lasts * 0.2, "first", f"{name} {self.seen}")
            what = "leave" if self.rng.random() < kind.leaves else "end"
            self.at(now + lasts, what, name)

    def step(self, what: str, name: str) -> None:
        desk, core = self.desk, self.desk.core
        match what:
            case "first":
                ident = name.split(maxsplit=1)[0]
                if ident in desk.running:
                    desk.first_token(ident)
            case "push":
                desk.take(core.requeue(rid(name), desk.now, 0.5))
            case "leave":
                desk.take(core.abandon(rid(name), Outcome.CANCELLED, desk.now, 3.0))
            case _:
                desk.finish(name)

    def no_pool_idles(self) -> None:
        books = self.desk.core.books
        for flow in books.flows.values():
            for entry in list(flow.waiting)[:64]:
                for ident, demand in entry.demands.items():
                    pool = books.pools[ident]
                    free = pool.open and pool.paused_until <= self.desk.now
                    if free and pool.ledger.kv == 0 and flow.within_own_limits(demand):
                        pytest.fail(f"{ident} is empty and {entry.ticket.id} waits for it")

    def run(self, kinds: list[Kind], seconds: float) -> None:
        for index, kind in enumerate(kinds):
            self.at(self.rng.expovariate(kind.per_s), "arrive", str(index))
        count = 0
        while self.events:
            when, _, what, name = heapq.heappop(self.events)
            self.desk.wait(max(0.0, when - self.desk.now))
            self.notice()
            if what == "arrive":
                kind = kinds[int(name)]
                count += 1
                ident = f"{kind.client.name}-{name}-{count}"
                self.kinds[ident], self.arrived[ident] = kind, self.desk.now
                self.desk.ask(
                    ident,
                    self.rng.randint(*kind.prompt),
                    self.rng.randint(*kind.cap),
                    client=kind.client,
                    n=kind.n,
                    to=kind.to,
                    streamed=kind.streamed,
                )
                if self.desk.now < seconds:
                    self.at(self.desk.now + self.rng.expovariate(kind.per_s), "arrive", name)
            else:
                self.step(what, name)
            self.notice()
            self.no_pool_idles()
            for ident in self.desk.waiting:
                waited = self.desk.now - self.arrived[ident]
                assert waited < BOUND, f"{ident} waits for {waited:.0f} s"


A, B, C = ClientRule("a"), ClientRule("b"), ClientRule("c")
ONE = {"gpu0": PoolLimits(kv_tokens=10_000, prefill_tokens=4_000, slots=32)}
TWO = {**ONE, "gpu1": PoolLimits(kv_tokens=4_000, page=16, prefill_tokens=2_000, slots=8)}
BOTH = (GPU0, GPU1)

MIXES: dict[str, tuple[dict[str, PoolLimits], list[Kind]]] = {
    "a trickle and whales of the same client": (
        ONE,
        [Kind(A, 4.0, (50, 200), (50, 300)), Kind(A, 0.02, (5_000, 6_000), (2_000, 3_500))],
    ),
    "a trickle and whales of another client": (
        ONE,
        [Kind(A, 4.0, (50, 200), (50, 300)), Kind(B, 0.02, (5_000, 6_000), (2_000, 3_500))],
    ),
    "whales and trickle of one, a steady other": (
        ONE,
        [
            Kind(A, 1.0, (50, 900), (50, 900)),
            Kind(B, 1.0, (50, 200), (50, 300)),
            Kind(B, 0.02, (5_000, 6_000), (2_000, 3_500)),
        ],
    ),
    "a flood, a quiet one, one with a quota": (
        ONE,
        [
            Kind(A, 8.0, (50, 2_000), (50, 1_000)),
            Kind(B, 0.1, (50, 5_000), (50, 4_000)),
            Kind(ClientRule("q", max_held_tokens=2_000, max_inflight=3), 1.0, (50, 900), (50, 900)),
        ],
    ),
    "many sequences against single ones": (
        ONE,
        [Kind(A, 5.0, (10, 50), (10, 100)), Kind(B, 0.05, (10, 50), (50, 200), n=32)],
    ),
    "giants in prefill": (
        ONE,
        [Kind(A, 3.0, (500, 1_000), (10, 100)), Kind(B, 0.05, (4_100, 6_000), (10, 100))],
    ),
    "two pools, some for one only": (
        TWO,
        [
            Kind(A, 2.0, (50, 900), (50, 600), to=BOTH),
            Kind(B, 1.0, (50, 900), (50, 600), to=(GPU1,)),
            Kind(C, 0.03, (3_000, 3_200), (300, 700), to=(GPU1,)),
            Kind(C, 0.03, (5_000, 6_000), (2_000, 3_900), to=(GPU0,)),
            Kind(A, 0.03, (3_000, 3_200), (300, 700), to=BOTH),
        ],
    ),
    "clients that leave, engines that push back, answers nobody streams": (
        TWO,
        [
            Kind(A, 2.0, (50, 900), (50, 600), to=BOTH, leaves=0.2, pushed=0.1),
            Kind(B, 1.0, (50, 900), (50, 600), to=BOTH, streamed=False, leaves=0.2),
            Kind(C, 0.05, (2_000, 3_200), (300, 700), to=BOTH, pushed=0.5),
        ],
    ),
    "weights far apart": (
        ONE,
        [
            Kind(ClientRule("light", weight=0.1), 1.0, (50, 3_000), (50, 1_000)),
            Kind(ClientRule("heavy", weight=10.0), 4.0, (50, 3_000), (50, 1_000)),
        ],
    ),
}


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("mix", MIXES)
def test_nobody_waits_for_ever_and_no_pool_idles(mix, seed) -> None:
    pools, kinds = MIXES[mix]
    desk = Desk(QueueRule(max_requests=QUEUE, max_wait_s=1e9), **pools)
    engine = Engine(desk, random.Random(seed))
    engine.run(kinds, seconds=120.0)
    desk.wait(1e9)
    assert desk.at_rest()
    assert len(desk.ended) + len(desk.refused) == len(engine.arrived)
    assert len(desk.ended) > 20


POOL = 1_000
small = st.tuples(st.sampled_from("abc"), st.integers(20, 300))


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    whose=st.sampled_from("abd"),
    size=st.integers(300, POOL),
    trickle=st.lists(small, min_size=1, max_size=6),
    overlap=st.integers(1, 12),
    prefill=st.sampled_from([200, POOL]),
)
def test_whoever_fits_starts_within_a_bounded_amount_of_service(
    whose, size, trickle, overlap, prefill
) -> None:
    """Small ones overlap for ever, so the pool is never empty by itself. Its own client's siblings
    may pass it by one pool-full while it is held back and one while it is blocked; other clients
    have what is theirs meanwhile, so that the rounds are bounded too."""
    limits = PoolLimits(kv_tokens=POOL, prefill_tokens=prefill)
    desk = Desk(QueueRule(max_requests=20, max_wait_s=1e9), gpu0=limits)
    for i in range(overlap):
        client, need = trickle[i % len(trickle)]
        desk.ask(f"before{i}{client}", need - 2, 1, client=client)
    desk.ask("big", size - 2, 1, client=whose)
    before, ahead, i = len(desk.order), desk.core.books.tokens, 0
    needs: dict[str, int] = {}
    while "big" in desk.waiting:
        client, need = trickle[i % len(trickle)]
        name = f"t{i}"
        needs[name] = need if client == whose else 0
        oldest = next(iter(desk.running))
        desk.ask(name, need - 2, 1, client=client)
        desk.first_token(name) if name in desk.running else desk.finish(oldest)
        if len(desk.running) > overlap:
            desk.finish(next(iter(desk.running)))
        i += 1
        assert i < 2_000, "a livelock: time goes on and nothing is served"
    own = sum(needs.get(name, 0) for name in desk.order[before:])
    assert own <= 2 * POOL + ahead
    assert "big" in desk.started or "big" in desk.refused
