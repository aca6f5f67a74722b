"""Leases as stories: who gets what of a pool, and what happens when somebody is gone."""

from __future__ import annotations

from gateway.core.amount import NOTHING, Amount
from gateway.core.lease import Entry, Table, aims
from gateway.core.witness import PATIENCE_S, WINDOW_S, Sight, Witness
from tests.core.leasing import BUDGET, TTL_S, World, served

SMALL = Amount(kv=50, prefill=10, slots=1)


def share(world: World, of) -> Amount:
    assert world.doc is not None
    return world.doc.entries[of.name].share


def test_what_nobody_wants_is_half_headroom_and_half_free() -> None:
    world = served()
    each = BUDGET.kv // 6
    assert [share(world, one).kv for one in world.replicas] == [each] * 3


def test_who_alone_wants_gets_all_of_it() -> None:
    world = served()
    first = world.replicas[0]
    first.line += [Amount(100, 20, 1)] * 10
    world.run_for(3)
    assert world.held(first).kv == 1000
    assert first.line == []


def test_shares_follow_demand_and_are_equal_where_all_want() -> None:
    world = served()
    for one in world.replicas:
        one.line += [SMALL] * 60
    world.run_for(3)
    for ended in range(40):  # requests end, in the order in which they came
        world.end(world.requests[0])
        world.requests.sort(key=lambda r: r.prefilling)
        for request in world.requests:
            request.prefilling = False
        world.run_for(1)
        assert BUDGET.covers(world.in_use)
        third = BUDGET.slots // 3
        # The bound that docs/scale.md states: an equal part, less one request.
        fair = all(world.held(one).slots >= third - 1 for one in world.replicas)
        assert fair or ended < BUDGET.slots


def test_a_request_larger_than_the_share_borrows() -> None:
    world = served()
    first, second, third = world.replicas
    for one in (second, third):
        one.line += [SMALL] * 30
    world.run_for(3)
    first.line.append(Amount(900, 200, 3))
    world.run_for(3)
    assert world.held(first) == NOTHING  # the others hold too much
    ended = 0
    while first.line:
        world.end(world.requests[0])
        ended += 1
        world.run_for(1.5)
        assert ended <= 12, "others went on filling what it waits for"
    assert BUDGET.covers(world.in_use)
    assert world.held(first).kv == 900


def test_borrowers_take_turns() -> None:
    """Each can run only alone: none waits for more than those who came before it."""
    world = served()
    for one in world.replicas:
        one.line += [Amount(700, 280, 2)] * 5
    order = []
    for _ in range(9):
        world.run_for(3)
        assert len(world.requests) == 1
        order.append(world.requests[0].owner)
        world.end(world.requests[0])
    assert all(len(set(order[i : i + 3])) == 3 for i in range(0, 9, 3)), order


def test_a_borrower_that_can_not_be_served_now_takes_nothing_from_the_others() -> None:
    room = Amount(600, 300, 12)
    entries = {
        "a": Entry(1, 1, NOTHING, want=Amount(900, 0, 1), need=Amount(900, 0, 1), since=1),
        "b": Entry(1, 1, NOTHING, want=Amount(500, 0, 5)),
    }
    assert aims(room, entries)["b"].kv >= 300


def test_parts_are_whole_requests_and_what_is_over_fills_up_another() -> None:
    """Five fit into the pool, and one and a half into a third of it."""
    size = Amount(kv=351, prefill=20, slots=1)
    world = served(Amount(2026, 300, 12))
    for one in world.replicas:
        one.line += [size] * 40
    world.run_for(6)
    counts = dict.fromkeys((one.name for one in world.replicas), 0)
    for _ in range(30):
        assert len(world.requests) == 5
        counts[world.requests[0].owner] += 1
        world.end(world.requests[0])
        for request in world.requests:
            request.prefilling = False
        world.run_for(1.5)
    assert min(counts.values()) >= 9, counts  # and it is not always the same one's


def test_the_share_of_the_dead_returns_after_its_time_and_the_end_of_its_requests() -> None:
    world = served()
    dead, *others = world.replicas
    dead.line += [Amount(100, 0, 1)] * 6
    world.run_for(3)
    assert world.held(dead).kv == 600
    world.kill(dead)
    for one in others:
        one.line += [Amount(100, 0, 1)] * 6
    world.run_for(TTL_S + 20)
    assert world.doc is not None
    assert dead.name in world.doc.entries
    left = 1000 - share(world, dead).kv
    assert left - 100 < sum(world.held(one).kv for one in others) <= left
    for request in [r for r in world.requests if r.owner == dead.name]:
        world.end(request)
    world.run_for(10)
    assert dead.name not in world.doc.entries
    assert sum(world.held(one).kv for one in others) == 1000


def test_before_its_time_is_over_nobody_takes_the_share_of_the_silent() -> None:
    world = served()
    silent, *others = world.replicas
    silent.line += [Amount(100, 0, 1)] * 4
    world.run_for(2)
    for request in list(world.requests):
        world.end(request)
    kept = share(world, silent)
    silent.reach = False
    for one in others:
        one.line += [Amount(100, 0, 1)] * 10
    world.run_for(TTL_S - 1)
    assert share(world, silent) == kept
    assert world.in_use.kv <= 1000 - kept.kv


def test_who_is_cut_off_goes_on_in_its_share_and_stops_before_others_may_take_it() -> None:
    world = served()
    cut, *others = world.replicas
    cut.line += [Amount(100, 0, 1)] * 3
    world.run_for(2)
    cut.reach = False
    had = share(world, cut).kv
    started = 0
    for _ in range(int(TTL_S * 2) + 20):
        for request in [r for r in world.requests if r.owner == cut.name]:
            world.end(request)
        cut.line = [Amount(50, 0, 1)] * 3
        world.pump(cut)
        held = world.held(cut).kv
        started += held > 0
        assert held <= had
        for one in others:
            one.line = [Amount(10, 0, 0)] * 120
        assert BUDGET.covers(world.in_use)
        world.run_for(1)
    assert started >= int(TTL_S * 0.8)
    assert world.held(cut) == NOTHING
    assert sum(world.held(one).kv for one in others) > 900  # its share is in use again
    cut.reach = True
    cut.line = [Amount(10, 0, 1)]
    world.run_for(3)
    assert BUDGET.covers(world.in_use)


def test_who_was_cut_off_and_idle_starts_nothing_in_a_share_that_others_have() -> None:
    world = served(replicas=2)
    cut, other = world.replicas
    cut.reach = False
    other.line += [Amount(10, 0, 0)] * 120
    while world.in_use.kv < 950:
        world.run_for(1)
        assert world.t < 60
    cut.line = [Amount(100, 0, 1)]
    world.pump(cut)
    assert BUDGET.covers(world.in_use)


def test_the_store_gone_freezes_shares() -> None:
    world = served()
    for one in world.replicas:
        one.reach = False
        one.line += [SMALL] * 10
        before = share(world, one)
        world.pump(one)
        assert world.held(one) != NOTHING
        assert before.covers(world.held(one))


def test_an_empty_store_is_filled_by_what_is_held_before_anybody_grows() -> None:
    """One replica does not hear of the new store, and grants by the lease it has."""
    world = served()
    deaf, *others = world.replicas
    deaf.line += [Amount(100, 0, 1)] * 4
    world.run_for(2)
    for request in list(world.requests):
        world.end(request)
    deaf.reach = False
    world.restart_store()
    for one in others:
        one.line += [Amount(50, 0, 0)] * 30
    for _ in range(int(TTL_S)):
        world.run_for(1)
        deaf.line = [Amount(100, 0, 1)] * 4
        world.pump(deaf)
        assert BUDGET.covers(world.in_use)
    assert world.doc is not None
    assert world.doc.unclaimed is None


def test_an_older_table_does_not_make_the_living_silent() -> None:
    """A renewal that the store has lost is one all the same."""
    world = served(replicas=2)
    deaf, other = world.replicas
    deaf.line += [Amount(100, 0, 1)] * 4
    world.run_for(2)
    for request in list(world.requests):
        world.end(request)
    world.renew(other)
    old = world.doc
    world.t += TTL_S * 0.8
    world.renew(deaf)  # nobody else sees it
    deaf.reach = False
    world.restart_store()
    world.doc = old
    other.line += [Amount(50, 0, 0)] * 20
    for _ in range(4):
        world.run_for(2)
        deaf.line = [Amount(100, 0, 1)] * 4
        world.pump(deaf)
        assert BUDGET.covers(world.in_use)


def test_a_table_from_before_somebody_came_gives_nobody_his_share() -> None:
    world = served(replicas=1)
    first, old = world.replicas[0], world.doc
    came = world.start()
    came.line += [Amount(100, 0, 1)] * 4
    world.run_for(3)
    for request in list(world.requests):
        world.end(request)
    came.reach = False
    world.restart_store()
    world.doc = old
    first.line += [Amount(50, 0, 0)] * 30
    world.run_for(4)
    came.line = [Amount(100, 0, 1)] * 2
    world.pump(came)
    assert world.held(came) != NOTHING
    assert BUDGET.covers(world.in_use)


def test_the_first_waits_as_long_as_a_lease_and_for_a_quiet_engine() -> None:
    world = World()
    first = world.start()
    first.line.append(SMALL)
    world.run_for(TTL_S - 0.5)
    assert world.held(first) == NOTHING
    world.run_for(8)
    assert world.held(first) == SMALL


def test_an_answer_that_is_lost_leaves_more_written_than_used() -> None:
    world = served(replicas=2)
    one, other = world.replicas
    one.line += [Amount(100, 0, 1)] * 8
    one.tenant.read(world.doc, world.clock(one))
    asking = world.ask(one)
    world.arrive(asking)  # and nobody hears of it
    assert share(world, one).kv > one.tenant.ceiling(world.clock(one)).kv
    other.line += [Amount(100, 0, 1)] * 8
    world.renew(other)
    world.answered(world.ask(one))
    world.run_for(2)
    assert BUDGET.covers(world.in_use)
    assert world.in_use.kv >= 900


def test_a_late_message_changes_nothing() -> None:
    world = served(replicas=2)
    one, other = world.replicas
    late = world.ask(one)
    world.run_for(3)
    doc = world.doc
    world.arrive(late)
    assert world.doc is doc
    assert not world.answered(late)
    assert other.tenant.ceiling(world.clock(other)) != NOTHING


def test_of_two_budgets_the_smaller_counts() -> None:
    world = served(replicas=1)
    world.start(budget=Amount(600, 300, 12))
    world.run_for(2)
    for one in world.replicas:
        one.line += [Amount(100, 0, 1)] * 10
    world.run_for(4)
    assert world.in_use.kv == 600


def test_traffic_past_all_gates_is_charged_when_it_does_not_end() -> None:
    world = World()
    first = world.start()
    first.line.append(SMALL)

    def publish() -> None:
        there = len(world.requests)
        world.published = (world.t, there + 1, world.in_use.kv + 30)

    world.publish = publish
    world.run_for(TTL_S + 20)
    assert world.held(first) == NOTHING
    world.run_for(PATIENCE_S, step=1.0)
    assert world.doc is not None
    assert world.doc.unclaimed == Amount(30 + 4096, 0, 1)


def test_who_leaves_gives_its_share_back_at_once() -> None:
    world = served(replicas=2)
    one, other = world.replicas
    one.line += [Amount(100, 0, 1)] * 8
    world.run_for(2)
    world.leave(one)
    other.line += [Amount(100, 0, 1)] * 10
    world.run_for(1)
    assert world.held(other).kv == 1000


# ---- a table that nobody can have used before ----------------------------------------------------


def fresh(unclaimed: Amount | None = None, version: int = 1) -> Table:
    mine = Entry(version, version, NOTHING, budget=Amount(8_000, 100, 10))
    return Table("run", "start", version, unclaimed, {"me": mine})


def test_what_an_engine_ran_before_a_fresh_table_is_charged_at_once_and_ever_less() -> None:
    one = Witness("me", TTL_S, fresh=True)
    one.read(fresh(), 0.0)
    assert one.verdict(fresh(), 0.0).unclaimed is None, "nothing has been seen yet"
    charged, version = None, 1
    for second, (count, tokens, kv) in enumerate(
        [(3, 6_000, 6_000 + 3_000), (1, 2_000, 2_000 + 1_000), (5, 9_000, 3_000), (0, 0, 0)], 1
    ):
        one.saw(Sight(second - 0.5, count, tokens))
        version += 1
        one.wrote(version)
        table = fresh(charged, version)
        one.read(table, second)
        charged = one.verdict(table, second).unclaimed
        assert charged is not None
        assert charged.kv == kv, "a request there may come to an eighth of the pool more"
    assert charged == NOTHING
    assert one.verdict(fresh(NOTHING, 9), 9.0).unclaimed is None, "that is over for good"


def test_the_engine_may_be_seen_before_the_fresh_table_is() -> None:
    """What it ran then is there all the same; with a table from before, that proves nothing."""
    for is_fresh, charged in ((True, Amount(700 + 2 * 1_000, 0, 2)), (False, None)):
        one = Witness("me", TTL_S, fresh=is_fresh)
        one.saw(Sight(0.1, 2, 700))
        one.read(fresh(), 0.2)
        assert one.verdict(fresh(), 0.2).unclaimed == charged


def test_of_an_engine_that_does_not_say_what_it_runs_a_fresh_table_is_free_after_a_moment() -> None:
    one = Witness("me", TTL_S, fresh=True)
    one.read(fresh(), 0.0)
    assert one.verdict(fresh(), WINDOW_S - 0.1).unclaimed is None
    assert one.verdict(fresh(), WINDOW_S).unclaimed == NOTHING


def test_a_second_borrower_leaves_all_the_others_an_equal_part() -> None:
    """Each of those who want as much as there is, not one of them."""
    room = Amount(1500, 300, 12)

    def wants(kv: int) -> Entry:
        return Entry(1, 1, NOTHING, want=Amount(kv, 0, 1))

    def borrows(kv: int, since: int) -> Entry:
        return Entry(1, 1, NOTHING, want=Amount(kv, 0, 1), need=Amount(kv, 0, 1), since=since)

    entries = {"a": borrows(600, 1), "b": borrows(380, 2), "idle": wants(0)}
    entries |= {"c": wants(1000), "d": wants(1000)}
    aimed = aims(room, entries)
    assert aimed["a"].kv == 600
    assert aimed["b"].kv < 380
    assert min(aimed["c"].kv, aimed["d"].kv) >= 1500 // 5
    entries["a"] = borrows(400, 1)
    aimed = aims(room, entries)
    assert (aimed["a"].kv, aimed["b"].kv) == (400, 380), "now there is room for both"
