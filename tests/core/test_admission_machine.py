"""Random lives against the promises of the core.

Arrivals, grants, streamed tokens, ends, cancels, abandoned requests, push-backs, server deaths,
resizes and time, in any order. After every step the books must add up.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gateway.core import caps
from gateway.core.admission import Admission
from gateway.core.amount import Amount
from gateway.core.choice import LOOK_AHEAD, PATIENCE_S
from gateway.core.flows import within_share
from gateway.core.model import (
    Ask,
    ClientRule,
    Ended,
    Grammar,
    Granted,
    Lingering,
    Outcome,
    PoolId,
    PoolLimits,
    Queued,
    QueueRule,
    Refused,
    Release,
    Released,
    RequestId,
    Ticket,
)
from gateway.core.turns import ALL, STEP_S

if TYPE_CHECKING:
    from gateway.core.ledger import PoolLedger

POOLS = (PoolId("gpu0"), PoolId("gpu1"))
CLIENTS = (
    ClientRule("a"),
    ClientRule("b", weight=2.0),
    ClientRule("c", max_inflight=2, max_held_tokens=900),
    ClientRule("d", max_waiting=2),
)


def limits(kv: int, page: int, prefill: int, slots: int, forecast: bool) -> PoolLimits:
    return PoolLimits(
        kv_tokens=kv,
        page=page,
        context=1200,
        max_input=1100,
        prefill_tokens=prefill,
        slots=slots,
        forecast=forecast,
        tpot_s=0.1 if forecast else None,
        compile_s=COMPILE_S,
        kinds=KINDS,
        scores_apart=True,
    )


some_limits = st.builds(
    limits,
    kv=st.integers(100, 2000),
    page=st.sampled_from([1, 16]),
    prefill=st.integers(50, 800),
    slots=st.integers(1, 8),
    forecast=st.booleans(),
)
some_kv = st.integers(0, 2000)
pick = st.integers(0, 10_000)


COMPILE_S = 10.0
KINDS = 2
GRAMMARS = (
    None,
    None,
    *(Grammar(mark, seconds) for mark, seconds in enumerate((1.0, 6.0, 6.0, 30.0))),
)


class Compilers:
    """What servers compile, by a rule of its own: whatever they were sent and have not compiled, for as long as was
    thought; whether somebody still waits for it or not."""

    def __init__(self) -> None:
        self.compiled: set[tuple[PoolId, int]] = set()
        self.jobs: dict[tuple[PoolId, int], tuple[Grammar, float]] = {}

    def sent(self, pool: PoolId, grammar: Grammar | None, now: float) -> None:
        if grammar is None or (pool, grammar.mark) in self.compiled:
            return
        self.jobs.setdefault((pool, grammar.mark), (grammar, now + grammar.seconds))
        busy = [of for (at, _), (of, until) in self.jobs.items() if at == pool and until > now]
        assert len(busy) <= 1 or sum(of.seconds for of in busy) <= COMPILE_S

    def done(self, pool: PoolId, grammar: Grammar | None) -> None:
        if grammar is not None:
            self.jobs.pop((pool, grammar.mark), None)
            self.compiled.add((pool, grammar.mark))

    def not_begun(self, pool: PoolId, grammar: Grammar | None) -> None:
        if grammar is not None:
            self.jobs.pop((pool, grammar.mark), None)

    def died(self, pool: PoolId) -> None:
        self.jobs = {key: job for key, job in self.jobs.items() if key[0] != pool}
        self.compiled = {key for key in self.compiled if key[0] != pool}


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.count = 0
        self.core = Admission(QueueRule(max_requests=6, max_tokens=4000, max_wait_s=20.0))
        self.state: dict[RequestId, str] = {}
        self.ends: dict[RequestId, int] = {}
        self.reserved: dict[RequestId, tuple[PoolId, int]] = {}
        self.shrunk: set[PoolId] = set()
        self.put_back: set[RequestId] = set()
        self.compilers = Compilers()

    @initialize(first=some_limits, second=some_limits, at_once=st.sampled_from([ALL, ALL, 2, 1]))
    def start(self, first: PoolLimits, second: PoolLimits, at_once: int) -> None:
        self.core.at_once = at_once
        for pool, of in zip(POOLS, (first, second), strict=True):
            self.take(self.core.resize(pool, of, self.now))
            self.take(self.core.set_open(pool, self.now, is_open=True))

    def take(self, transitions) -> None:
        """Play the shell: believe the transitions, and check each against what was true before."""
        for t in transitions:
            match t:
                case Queued(id=i):
                    assert self.state[i] in {"new", "held", "void"}
                    self.state[i] = "waiting"
                case Granted(grant=g):
                    assert self.state[g.id] in {"new", "waiting"}
                    assert g.id not in self.reserved
                    # decided = enforced: the cap granted is the cap in the ledger
                    hold = self.core.books.pools[g.pool].ledger.holds.get(g.id)
                    assert hold is None or hold.demand == g.demand
                    self.bound_holds(g.pool)
                    self.state[g.id] = "held"
                    self.reserved[g.id] = (g.pool, g.demand.kv)
                    if hold is not None:  # else it was granted and refused in one step
                        self.compilers.sent(g.pool, self.grammar_of(g.id), self.now)
                case Refused(id=i, queued_s=waited):
                    assert self.state[i] in {"new", "waiting", "aside"}
                    assert waited is None or waited >= 0
                    self.end(i)
                case Ended(id=i):
                    self.end(i)
                case Lingering(id=i):
                    assert i in self.reserved
                case Released(id=i, pool=p, demand=d, why=why):
                    assert self.reserved.pop(i) == (p, d.kv)
                    if why is Release.VOIDED and self.state[i] == "held":
                        self.state[i] = "void"
                case _:
                    pass

    def adapters_on(self, pool: PoolId) -> Counter[str]:
        """By the requests that hold something there."""
        books = self.core.books
        return Counter(books.held[i].entry.ticket.adapter for i in books.pools[pool].ledger.holds)

    def grammar_of(self, ident: RequestId) -> Grammar | None:
        return self.core.books.held[ident].entry.ticket.grammar

    def bound_holds(self, pool: PoolId) -> None:
        """What was just granted keeps the pool inside its worst case or its forecast."""
        ledger = self.core.books.pools[pool].ledger
        ceiling = ledger.ceiling
        if ceiling is not None:
            prefill = min(ledger.prefill, ledger.limits.prefill_tokens)
            assert ledger.slots <= ceiling.slots
            assert prefill <= ceiling.prefill
            assert self.now < self.core.books.pools[pool].until
        assert (
            ledger.worst <= ledger.limit
            or (len(ledger.holds) == 1 and ledger.worst <= ledger.grants.kv_tokens)
            or (
                ledger.limits.forecast
                and not ledger.plain
                and ledger.mirror.room(ledger.limit) >= 0
                and ledger.outlook.peak(ledger.z) <= ledger.limit + 1e-6
            )
        )

    def end(self, ident: RequestId) -> None:
        self.ends[ident] += 1
        assert self.ends[ident] == 1, f"{ident} ended twice"
        self.state[ident] = "ended"

    def some(self, state: str, index: int) -> RequestId:
        ids = [i for i, s in self.state.items() if s == state]
        return ids[index % len(ids)]

    def any_in(self, *states: str) -> bool:
        return any(s in states for s in self.state.values())

    @rule(
        client=st.sampled_from(CLIENTS),
        prompts=st.lists(st.integers(0, 600), min_size=1, max_size=3),
        n=st.sampled_from([1, 1, 1, 2, 5]),
        cap=st.one_of(st.none(), st.integers(0, 700)),
        streamed=st.booleans(),
        where=st.sampled_from([POOLS, POOLS[:1], POOLS[1:]]),
        patience=st.one_of(st.none(), st.floats(0.1, 30)),
        late=st.sampled_from([0.0, 0.0, 0.5, 7.0]),
        grammar=st.sampled_from(GRAMMARS),
        adapter=st.sampled_from(["", "", "x", "y"]),
        scores=st.sampled_from([False, False, True]),
    )
    def arrive(
        self, client, prompts, n, cap, streamed, where, patience, late, grammar, adapter, scores
    ) -> None:
        self.now += late  # timers came due and nobody called advance
        self.count += 1
        ident = RequestId(f"r{self.count:06}")
        self.state[ident], self.ends[ident] = "new", 0
        ticket = Ticket(
            id=ident,
            client=client,
            ask=Ask(tuple(prompts), n, cap),
            pools=where,
            body_bytes=len(prompts) * 100,
            streamed=streamed,
            deadline=None if patience is None else self.now + patience,
            grammar=grammar,
            adapter=adapter,
            scores=scores,
        )
        self.take(self.core.submit(ticket, self.now))
        assert self.state[ident] != "new"

    @rule(client=st.sampled_from(CLIENTS), late=st.sampled_from([0.0, 5.0]))
    def arrive_before_its_server_is_known(self, client, late) -> None:
        self.now += late
        self.count += 1
        ident = RequestId(f"r{self.count:06}")
        self.state[ident], self.ends[ident] = "new", 0
        ticket = Ticket(id=ident, client=client, ask=Ask(()), pools=(), body_bytes=100)
        self.take(self.core.attend(ticket, self.now))
        if self.state[ident] == "new":
            self.state[ident] = "aside"

    @precondition(lambda self: self.any_in("aside"))
    @rule(index=pick, prompt=st.integers(0, 600), where=st.sampled_from([POOLS, POOLS[1:]]))
    def its_server_is_known(self, index, prompt, where) -> None:
        ident = self.some("aside", index)
        client = self.core.books.waiting[ident].rule
        self.take(self.core.leave(ident, self.now))
        if self.state[ident] == "aside":
            self.state[ident] = "new"
            ticket = Ticket(ident, client, Ask((prompt,), 1, 50), where, 100)
            self.take(self.core.submit(ticket, self.now))
            assert self.state[ident] != "new"

    @precondition(lambda self: self.any_in("held"))
    @rule(index=pick, tokens=st.integers(0, 800))
    def stream(self, index, tokens) -> None:
        ident = self.some("held", index)
        self.compilers.done(self.reserved[ident][0], self.grammar_of(ident))
        self.take(self.core.first_token(ident, self.now))
        self.core.true_up(ident, tokens)

    @precondition(lambda self: self.any_in("held"))
    @rule(index=pick, outcome=st.sampled_from([Outcome.COMPLETED, Outcome.FAILED]))
    def finish(self, index, outcome) -> None:
        ident = self.some("held", index)
        if outcome is Outcome.COMPLETED:
            self.compilers.done(self.reserved[ident][0], self.grammar_of(ident))
        self.take(self.core.settle(ident, outcome, self.now))

    @precondition(lambda self: self.any_in("void"))
    @rule(index=pick)
    def fail_after_death(self, index) -> None:
        self.take(self.core.settle(self.some("void", index), Outcome.FAILED, self.now))

    @precondition(lambda self: self.any_in("waiting"))
    @rule(index=pick, late=st.sampled_from([0.0, 5.0]))
    def client_leaves_queue(self, index, late) -> None:
        self.now += late
        self.take(self.core.cancel(self.some("waiting", index), self.now))

    @precondition(lambda self: self.any_in("held", "void"))
    @rule(index=pick, void=st.booleans(), grace=st.floats(0.1, 10))
    def client_leaves(self, index, void, grace) -> None:
        state = "void" if void and self.any_in("void") else "held"
        if not self.any_in(state):
            return
        ident = self.some(state, index)
        self.take(self.core.abandon(ident, Outcome.CANCELLED, self.now, grace))

    @precondition(lambda self: any(self.state[i] == "ended" for i in self.reserved))
    @rule(index=pick)
    def engine_confirms(self, index) -> None:
        gone = [i for i in self.reserved if self.state[i] == "ended"]
        self.take(self.core.confirm(gone[index % len(gone)], self.now))

    @precondition(lambda self: self.any_in("held", "void"))
    @rule(index=pick, void=st.booleans(), pause=st.floats(0, 3))
    def engine_pushes_back(self, index, void, pause) -> None:
        state = "void" if void and self.any_in("void") else "held"
        if self.any_in(state):
            ident = self.some(state, index)
            self.put_back.add(ident)
            if state == "held":
                self.compilers.not_begun(self.reserved[ident][0], self.grammar_of(ident))
            self.take(self.core.requeue(ident, self.now, pause))

    @rule(which=st.sampled_from(POOLS))
    def server_dies(self, which) -> None:
        self.take(self.core.set_open(which, self.now, is_open=False))
        self.compilers.died(which)
        self.take(self.core.void(which, self.now))
        assert self.core.books.pools[which].ledger.kv == 0

    @rule(which=st.sampled_from(POOLS), to=some_limits)
    def server_is_back(self, which, to) -> None:
        self.shrunk.add(which)
        self.take(self.core.resize(which, to, self.now))
        self.take(self.core.set_open(which, self.now, is_open=True))

    @rule(which=st.sampled_from(POOLS), tokens=st.integers(-50, 500), slots=st.integers(0, 2))
    def strangers_use_the_server(self, which, tokens, slots) -> None:
        self.shrunk.add(which)
        self.take(self.core.foreign(which, tokens, slots, self.now))

    @rule(
        which=st.sampled_from(POOLS),
        most=st.one_of(st.none(), st.builds(Amount, some_kv, some_kv, st.integers(0, 8))),
        lasts=st.floats(0.5, 20),
    )
    def other_gates_need_room(self, which, most, lasts) -> None:
        self.take(self.core.ceiling(which, most, self.now, self.now + lasts))

    @rule(which=st.sampled_from(POOLS))
    def engine_retracts(self, which) -> None:
        self.take(self.core.retracted(which, self.now))

    @rule(passed=st.floats(0.01, 15))
    def time_passes(self, passed) -> None:
        wake = self.core.next_wakeup()
        self.now += passed
        self.take(self.core.advance(self.now))
        later = self.core.next_wakeup()
        assert later is None or later > self.now, "advance left something due"
        assert wake is None or later is None or later >= wake or wake <= self.now

    @rule(passed=st.floats(1, 300))
    def nobody_is_there(self, passed) -> None:
        """Late timers, and then the first step after it."""
        self.now += passed
        self.core.stood_still(passed)
        self.take(self.core.advance(self.now))

    @invariant()
    def nobody_waits_longer_than_told(self) -> None:
        most = self.core.queue.max_wait_s
        for flow in self.core.books.flows.values():
            for entry in flow.waiting:
                assert entry.expires <= entry.since + most + entry.given + 1e-6

    @invariant()
    def never_over_committed(self) -> None:
        for pool in self.core.books.pools.values():
            ledger = pool.ledger
            held = [h.demand for h in ledger.holds.values()]
            assert ledger.kv == sum(d.kv for d in held)
            assert ledger.slots == sum(d.slots for d in held)
            assert ledger.prefill == sum(
                h.demand.prefill
                for h in ledger.holds.values()
                if h.prefilling and h.compile_s is None
            )
            assert ledger.kv == sum(kv for p, kv in self.reserved.values() if p == ledger.pool)
            assert ledger.worst == sum(d.worst or d.kv for d in held)
            self.forecasts_add_up(ledger)
            charged = 0 if ledger.limits.forecast else ledger.worst
            over = charged > ledger.limits.kv_tokens or ledger.slots > ledger.limits.slots
            # Only a resize below what was held may do that.
            assert not over or ledger.pool in self.shrunk
            if not over:
                self.shrunk.discard(ledger.pool)
            for hold in ledger.holds.values():
                assert hold.since <= self.now
        for name, flow in self.core.books.flows.items():
            assert flow.held == sum(
                p.ledger.by_client.get(name, 0) for p in self.core.books.pools.values()
            )

    def forecasts_add_up(self, ledger: PoolLedger) -> None:
        """The sums kept step by step are what one would compute anew."""
        priced = {i: h for i, h in ledger.holds.items() if h.lengths is not None}
        assert ledger.plain == len(ledger.holds) - len(priced)
        outlook = ledger.outlook
        assert len(outlook) == len(priced)
        assert all(ident in outlook for ident in priced)
        decoding = [h for h in priced.values() if not h.prefilling]
        mirror = ledger.mirror
        assert mirror.occupied == sum(h.occupied for h in decoding)
        assert mirror.growth == sum(h.growth for h in decoding)
        assert mirror.sequences == sum(h.demand.slots for h in decoding)
        assert mirror.starting == sum(h.demand.start for h in priced.values() if h.prefilling)
        assert ledger.used == sum(h.occupied for h in ledger.holds.values())
        for index, mean in enumerate(outlook._mean):  # not asked for: that would make the others
            whole = sum(t.mean[index] for t in outlook._terms.values())
            assert abs(mean - whole) < 1e-3

    @invariant()
    def queue_adds_up(self) -> None:
        books = self.core.books
        entries = [e for f in books.flows.values() for e in f.waiting]
        assert {e.ticket.id for e in entries} == set(books.waiting)
        assert books.tokens == sum(e.need for e in entries)
        assert books.bytes == sum(e.ticket.body_bytes for e in entries)
        assert books.aside == sum(not e.demands for e in entries)
        assert books.aside == sum(state == "aside" for state in self.state.values())
        # What was let in once and is put back is not refused for want of a place.
        put_back = sum(e.ticket.id in self.put_back for e in entries)
        assert len(entries) - put_back <= self.core.queue.max_requests
        for flow in books.flows.values():
            order = [e.seq for e in flow.waiting]
            assert order == sorted(order)

    def taking(self) -> set[PoolId]:
        return {ident for ident, pool in self.core.books.pools.items() if pool.open}

    @invariant()
    def lanes_hold_the_same_requests(self) -> None:
        for flow in self.core.books.flows.values():
            in_lanes = [e for lane in flow.lanes.values() for e in lane]
            assert sorted(e.seq for e in in_lanes) == sorted(e.seq for e in flow.waiting)
            assert all(tuple(e.demands) == key for key, lane in flow.lanes.items() for e in lane)

    @invariant()
    def no_more_adapters_than_run_together(self) -> None:
        for ident, pool in self.core.books.pools.items():
            assert pool.kinds == self.adapters_on(ident)
            assert len(pool.kinds) <= KINDS

    @invariant()
    def scores_and_words_are_apart(self) -> None:
        books = self.core.books
        for pool in books.pools.values():
            sorts = [books.held[ident].entry.ticket.scores for ident in pool.ledger.holds]
            assert pool.scores == sum(sorts)
            assert len(set(sorts)) < 2

    @invariant()
    def work_conserving(self) -> None:
        """Whoever waits is held back by something that can be named, or for a moment by those that go first."""
        books = self.core.books
        wake = self.core.next_wakeup()
        if self.core.at_once < ALL and wake is not None and wake <= self.now + STEP_S:
            return
        for flow in books.flows.values():
            line = [e for e in flow.waiting if set(e.demands) & self.taking()][:LOOK_AHEAD]
            for at, entry in enumerate(line):
                for ident, demand in entry.demands.items():
                    pool = books.pools[ident]
                    weight = sum(
                        f.rule.weight
                        for name, f in books.flows.items()
                        if name in pool.ledger.by_client
                        or any(ident in e.demands for e in f.waiting)
                    )
                    patience = min(
                        pool.ledger.limits.kv_tokens, flow.rule.max_held_tokens or 1 << 30
                    )
                    free_to_go = (
                        pool.open
                        and pool.paused_until <= self.now
                        and pool.fence in {None, entry.ticket.id}
                        and flow.within_own_limits(demand)
                        and within_share(flow, demand, pool.ledger, weight)
                        and not any(e.passed >= patience for e in line[:at])
                        and pool.compiles(entry.ticket.grammar, demand, self.now)
                        and not (
                            pool.compiling.starts(entry.ticket.grammar)
                            and any(  # another one's grammar is next
                                ident in e.demands
                                and e.passed_s >= min(pool.ledger.limits.compile_s, PATIENCE_S)
                                for f in books.flows.values()
                                for e in f.waiting
                            )
                        )
                    )
                    if free_to_go and pool.fits(demand, entry):
                        assert any(  # the next prefill is spoken for
                            ident in e.demands and pool.only_prefill_lacks(e.demands[ident], e)
                            for f in books.flows.values()
                            for e in f.waiting
                        )

    @invariant()
    def fences_have_an_owner_who_can_go(self) -> None:
        books = self.core.books
        for ident, pool in books.pools.items():
            if pool.fence is not None:
                assert ident in books.entry(pool.fence).demands
        owners = [p.fence for p in books.pools.values() if p.fence is not None]
        assert len(owners) == len(set(owners)), "one request fences one pool"

    @invariant()
    def wants_add_up(self) -> None:
        for flow in self.core.books.flows.values():
            for pool in POOLS:
                waits = sum(pool in e.demands for e in flow.waiting)
                assert flow.wants.get(pool, 0) == waits

    def teardown(self) -> None:
        """Everybody leaves: every ledger must come back to zero."""
        for ident in [i for i, s in self.state.items() if s == "waiting"]:
            self.take(self.core.cancel(ident, self.now))
        while self.any_in("aside"):
            ident = self.some("aside", 0)
            self.take(self.core.leave(ident, self.now))
            if self.state[ident] == "aside":
                self.end(ident)
        while self.any_in("held", "void"):
            ident = self.some("held" if self.any_in("held") else "void", 0)
            self.take(self.core.settle(ident, Outcome.COMPLETED, self.now))
            for waiting in [i for i, s in self.state.items() if s == "waiting"]:
                self.take(self.core.cancel(waiting, self.now))
        self.now += 1000
        while (wake := self.core.next_wakeup()) is not None:
            self.now = max(self.now, wake)
            self.take(self.core.advance(self.now))
        for pool in self.core.books.pools.values():
            assert (pool.ledger.kv, pool.ledger.prefill, pool.ledger.slots) == (0, 0, 0)
            assert pool.ledger.by_client == {}
            assert pool.fence is None
        assert self.core.books.flows == {}
        assert self.core.books.waiting == {}
        assert self.reserved == {}
        assert all(n == 1 for n in self.ends.values()), "a request did not end"


def lives(count: int) -> settings:
    """Settings for so many lives of up to 50 steps."""
    return settings(
        max_examples=count,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


TestLives = Lives.TestCase
TestLives.settings = lives(60)


@pytest.mark.slow
@pytest.mark.timeout(1500)
class TestManyLives(Lives.TestCase):
    """The promise, at length: a minute. What one life in seven hundred shows is found in 19 runs of 20."""

    settings = lives(2_000)


def test_caps_and_ledger_agree_on_what_fits() -> None:
    """The demand decided for a cap is what `kv_demand` says for that cap."""
    of = limits(1500, 16, 800, 8, forecast=False)
    demand = caps.decide(Ask((100, 37), 2, None), of)
    assert isinstance(demand, caps.Demand)
    assert demand.kv == caps.kv_demand(Ask((100, 37), 2, None), demand.cap, of)
