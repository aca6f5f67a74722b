"""Whatever happens to clocks, messages, store and replicas: never more in use than the budget.

In use is what living replicas have granted and what the engine runs of anybody, dead or alive.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.amount import Amount
from tests.core.leasing import BUDGET, World

pick = st.integers(0, 1000)
sizes = st.builds(
    Amount,
    kv=st.sampled_from([20, 100, 330, 500, 1000]),
    prefill=st.sampled_from([5, 90, 150, 300]),
    slots=st.sampled_from([1, 1, 3]),
)


class Leases(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.post = []  # askings whose message or answer is on its way

    @initialize(count=st.integers(1, 3), settled=st.booleans())
    def begin(self, count, settled) -> None:
        for index in range(count):
            self.world.start(offset=index * 777.0, rate=(1.0, 0.955, 1.045)[index])
        if settled:
            self.world.run_for(20)

    def one(self, index):
        return self.world.replicas[index % len(self.world.replicas)]

    def any_replica(self) -> bool:
        return bool(self.world.replicas)

    # ---- work ----------------------------------------------------------------------------------

    @precondition(any_replica)
    @rule(index=pick, size=sizes, many=st.integers(1, 4), lag=st.sampled_from([0.0, 0.3]))
    def work_comes(self, index, size, many, lag) -> None:
        one = self.one(index)
        one.lag = lag
        if len(one.line) < 8:
            one.line += [size] * many
        self.world.pump(one)

    @precondition(lambda self: self.world.requests)
    @rule(index=pick)
    def request_ends(self, index) -> None:
        self.world.end(self.world.requests[index % len(self.world.requests)])

    @precondition(lambda self: self.world.requests)
    @rule(index=pick)
    def first_token(self, index) -> None:
        request = self.world.requests[index % len(self.world.requests)]
        request.prefilling = False
        for one in self.world.replicas:
            self.world.pump(one)

    @precondition(any_replica)
    @rule(index=pick)
    def client_gives_up(self, index) -> None:
        one = self.one(index)
        del one.line[:1]
        one.heads += 1

    # ---- messages ------------------------------------------------------------------------------

    @precondition(any_replica)
    @rule(index=pick)
    def ask(self, index) -> None:
        self.post.append(self.world.ask(self.one(index)))

    @precondition(lambda self: self.post)
    @rule(index=pick, keep=st.booleans())
    def message_arrives(self, index, keep) -> None:
        """In any order; kept, it will arrive again."""
        asking = self.post[index % len(self.post)]
        self.world.arrive(asking)
        self.world.answered(asking)
        if not keep:
            self.post.remove(asking)

    @precondition(lambda self: self.post)
    @rule(index=pick)
    def answer_is_lost(self, index) -> None:
        asking = self.post.pop(index % len(self.post))
        self.world.arrive(asking)

    @precondition(lambda self: self.post)
    @rule(index=pick)
    def message_is_lost(self, index) -> None:
        self.post.pop(index % len(self.post))

    @precondition(any_replica)
    @rule(index=pick)
    def renewed(self, index) -> None:
        self.world.renew(self.one(index))

    @precondition(any_replica)
    @rule(index=pick)
    def engine_is_looked_at(self, index) -> None:
        self.world.look(self.one(index))

    @rule()
    def engine_publishes(self) -> None:
        self.world.publish()

    # ---- time, and what breaks -----------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 4.0, 9.0, 12.0]))
    def silence(self, seconds) -> None:
        self.world.t += seconds

    @rule(seconds=st.sampled_from([1, 3, 12, 18, 18]), step=st.sampled_from([0.3, 0.5, 1.0]))
    def calm(self, seconds, step) -> None:
        self.world.run_for(seconds, step)

    @precondition(any_replica)
    @rule(index=pick)
    def cut_off(self, index) -> None:
        self.one(index).reach = False

    @precondition(any_replica)
    @rule(index=pick)
    def reaches_again(self, index) -> None:
        self.one(index).reach = True

    @precondition(any_replica)
    @rule(index=pick)
    def killed(self, index) -> None:
        self.world.kill(self.one(index))

    @precondition(any_replica)
    @rule(index=pick)
    def leaves(self, index) -> None:
        self.world.leave(self.one(index))

    @precondition(lambda self: len(self.world.replicas) < 4)
    @rule(rate=st.floats(0.955, 1.045), small=st.booleans())
    def comes(self, rate, small) -> None:
        budget = Amount(700, 300, 9) if small else BUDGET
        self.world.start(offset=self.world.t * 3, rate=rate, budget=budget)

    @rule(back_to=st.one_of(st.none(), st.integers(0, 30)))
    def store_restarts(self, back_to) -> None:
        self.world.restart_store(back_to=back_to)

    @rule()
    def table_is_deleted(self) -> None:
        self.world.doc = None

    # ---- the promise ---------------------------------------------------------------------------

    @invariant()
    def never_over_committed(self) -> None:
        assert BUDGET.covers(self.world.in_use), self.world.in_use

    @invariant()
    def the_table_knows_what_may_be_granted(self) -> None:
        """Of all who have written in this life of the table, no less is written than they may use. A table
        that came back older than it was says of the others what was true then."""
        doc = self.world.doc
        if doc is None or doc.run != self.world.run:
            return
        for one in self.world.replicas:
            entry = doc.entries.get(one.name)
            if one.run == self.world.run and one.epoch == doc.epoch and entry is not None:
                assert entry.share.covers(one.tenant.ceiling(self.world.clock(one))), one.name


def lives(count: int, steps: int) -> settings:
    return settings(
        max_examples=count,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


TestLeases = Leases.TestCase
TestLeases.settings = lives(15, 50)


@pytest.mark.slow
@pytest.mark.timeout(1500)
class TestManyLives(Leases.TestCase):
    """The promise, at length: minutes."""

    settings = lives(300, 80)
