"""Shares and order between clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.flows import Entry, Flow, longest, within_share
from gateway.core.hold import Hold
from gateway.core.ledger import PoolLedger
from gateway.core.model import Ask, ClientRule, Demand, PoolId, PoolLimits, QueueRule, Ticket
from tests.core.desk import GPU0, GPU1, Desk, rid

LONG = QueueRule(max_requests=10_000, max_wait_s=1e9)


def entry(seq: int, name: str | None = None) -> Entry:
    ticket = Ticket(rid(name or f"r{seq}"), ClientRule("a"), Ask((1,)), (GPU0,))
    return Entry(ticket, seq, since=0.0, expires=1.0, need=1)


def pool(kv: int = 1_000, **held: int) -> PoolLedger:
    ledger = PoolLedger(PoolId("gpu0"), PoolLimits(kv_tokens=kv))
    for client, tokens in held.items():
        demand = Demand(1, tokens, 0, 1)
        ledger.reserve(rid(client), Hold(client, demand, prompt=0, since=0.0, streamed=True))
    return ledger


def flow(name: str, weight: float = 1.0) -> Flow:
    return Flow(ClientRule(name, weight=weight))


def need(kv: int) -> Demand:
    return Demand(1, kv, 0, 1)


@pytest.mark.parametrize(
    ("held", "others", "kv", "allowed"),
    [
        ({}, 0, 1_000, True),  # nothing held: may always start
        ({"a": 250}, 0, 416, True),  # up to twice what then stays free: 666 <= 2 * 334
        ({"a": 250}, 0, 417, False),
        ({"a": 250}, 0, 83, True),
        ({"a": 100}, 400, 300, True),  # 400 <= 2 * 200
        ({"a": 100}, 400, 301, False),  # 401 > 2 * 199, over a share of 250
        ({"a": 100}, 800, 100, True),  # within its share whatever is free: 200 <= 250
    ],
)
def test_dynamic_threshold_with_a_share_of_a_quarter(held, others, kv, allowed) -> None:
    ledger = pool(**held, z=others) if others else pool(**held)
    assert within_share(flow("a"), need(kv), ledger, active_weight=4.0) is allowed


def test_alone_a_client_may_use_everything() -> None:
    assert within_share(flow("a"), need(1), pool(a=999), active_weight=1.0)


@given(weight=st.floats(0.5, 4), others=st.floats(0.5, 40), held=st.integers(1, 900))
def test_nobody_beyond_share_and_two_thirds_of_the_pool(weight, others, held) -> None:
    """Whatever starts under the threshold leaves its client at most max(share, twice what stays free)."""
    ledger, of = pool(a=held), flow("a", weight)
    share = 1_000 * weight / (weight + others)
    fits = [
        kv for kv in range(1, 1_001 - held) if within_share(of, need(kv), ledger, weight + others)
    ]
    if fits:
        assert held + max(fits) <= max(share, 667)


def test_weights_divide_a_contended_pool() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    heavy, light = ClientRule("heavy", weight=3), ClientRule("light", weight=1)
    for i in range(200):
        desk.ask(f"h{i}", 23, 1, client=heavy)
        desk.ask(f"l{i}", 23, 1, client=light)
    for _ in range(100):
        desk.finish(next(iter(desk.running)))  # the oldest ends: the pool turns over
    held = desk.core.books.pools[GPU0].ledger.by_client
    assert held["heavy"] == pytest.approx(750, abs=50)
    assert held["light"] == pytest.approx(250, abs=50)


def test_a_newcomer_finds_room_in_a_pool_a_runaway_shares_with_somebody() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("quiet", 23, 1, client="quiet")
    for i in range(100):
        desk.ask(f"r{i}", 23, 1, client="runaway")
    held = desk.core.books.pools[GPU0].ledger.by_client
    assert 600 <= held["runaway"] <= 667, "alpha / (1 + alpha), no less and no more"
    desk.ask("new", 298, 1, client="new")
    assert "new" in desk.running


def test_the_victims_of_a_runaway_do_not_wait() -> None:
    """E: one client fires as fast as it can; the quiet one is served on arrival, each time."""
    desk = Desk(QueueRule(max_requests=50), gpu0=PoolLimits(kv_tokens=10_000))
    desk.ask("warm", 98, 1, client="quiet")
    for i in range(400):
        desk.ask(f"r{i}", 398, 1, client="runaway")
        if i % 3 == 0:
            desk.finish(next(n for n in desk.running if n[0] == "r"))
        if i % 10 == 0:
            desk.ask(f"q{i}", 398, 1, client="quiet")
            assert f"q{i}" in desk.running
            desk.finish(f"q{i}")
    assert len(desk.refused) > 100, "the runaway pays for its own line"
    assert all(name.startswith("r") for name in desk.refused)


def test_answers_that_have_just_begun_count_with_what_they_come_to() -> None:
    """A flood of small prompts and long answers, all begun together. By what they use now it would pass
    with all of them; then nothing has room until they end, together."""
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=20_000, forecast=True))
    for i in range(40):  # they are known for answers of 900 tokens
        desk.ask(f"known{i}", 100, 1_000, client="runaway")
        desk.first_token(f"known{i}")
        desk.core.true_up(rid(f"known{i}"), 900)
        desk.finish(f"known{i}")
    desk.ask("quiet", 100, 1_000, client="quiet")
    for i in range(40):
        desk.ask(f"r{i}", 100, 1_000, client="runaway")
        desk.wait(0.01)
        if f"r{i}" in desk.running:
            desk.first_token(f"r{i}")
    ledger = desk.core.books.pools[GPU0].ledger
    assert 0.45 * ledger.limit < ledger.reserved < 0.8 * ledger.limit
    for i in range(4):
        desk.ask(f"new{i}", 100, 1_000, client=f"new{i}")
        assert f"new{i}" in desk.running


def test_answers_longer_than_expected_count_for_whoever_gets_them() -> None:
    """A client known for short answers gets long ones: its charges are small, and what it uses is its own.
    The other, whose charges are most of all, would have been held back for it."""
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=64_000, context=32_000, forecast=True))
    for i in range(300):
        desk.ask(f"known{i}", 100, 8_000, client="runaway")
        desk.first_token(f"known{i}")
        desk.core.true_up(rid(f"known{i}"), 20)
        desk.finish(f"known{i}")
    for i in range(2):
        desk.ask(f"quiet{i}", 6_000, 2_000, client="quiet")
        desk.ask(f"other{i}", 2_000, 2_000, client="other")
    desk.first_token("quiet0", "quiet1", "other0", "other1")
    ledger, told = desk.core.books.pools[GPU0].ledger, 0
    for i in range(20):
        desk.ask(f"r{i}", 100, 8_000, client="runaway")
    while ledger.used < 50_000:
        told += 100
        desk.wait(1.0)
        running = [name for name in desk.running if name.startswith("r")]
        desk.first_token(*running)
        for name in running:
            desk.core.true_up(rid(name), told)
    ledger.refresh(desk.now)
    assert ledger.by_client["runaway"] < ledger.by_client["quiet"] / 2
    weight, flows = desk.core.books.weight_on(GPU0), desk.core.books.flows
    small = Demand(100, 1_600, 1_500, 1)
    assert within_share(flows["quiet"], small, ledger, weight), (
        "16,000 of 64,000, and three are there"
    )
    assert not within_share(flows["runaway"], small, ledger, weight)
    desk.finish(*desk.running)
    assert not ledger.in_use


def test_who_is_alone_may_use_all_that_is_forecast_to_fit() -> None:
    """What ends before the pool is at its fullest adds nothing to that moment."""
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=20_000, forecast=True))
    for i in range(40):
        desk.ask(f"known{i}", 100, 1_000, client="alone")
        desk.first_token(f"known{i}")
        desk.core.true_up(rid(f"known{i}"), 900)
        desk.finish(f"known{i}")
    for i in range(40):
        desk.ask(f"r{i}", 100, 1_000, client="alone")
        desk.wait(0.3)
        if f"r{i}" in desk.running:
            desk.first_token(f"r{i}")
    ledger = desk.core.books.pools[GPU0].ledger
    assert ledger.reserved + 220 > ledger.limit
    assert ledger.used < 0.5 * ledger.limit, "they have only begun"
    desk.ask("brief", 200, 20, client="alone")
    assert "brief" in desk.running


def test_least_occupancy_first_then_longest_waiting() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("a0", 98, 1, client="a")
    desk.ask("z", 898, 1, client="z")
    desk.ask("a1", 98, 1, client="a")
    desk.ask("b1", 98, 1, client="b")
    desk.ask("c1", 98, 1, client="c")
    desk.finish("z")
    assert desk.order[2:] == ["b1", "c1", "a1"]


def test_priority_goes_first_and_waiting_raises_it() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    low, high = ClientRule("low"), ClientRule("high", priority=1)
    desk.ask("z", 998, 1, client="z")
    desk.ask("low", 998, 1, client=low)
    desk.wait(20)
    desk.ask("high", 998, 1, client=high)
    desk.finish("z")
    assert desk.order[-1] == "high", "before one that has waited longer"
    desk.wait(20)  # low has waited 40 s: it counts as one higher, and holds no more
    desk.ask("high2", 998, 1, client=ClientRule("other", priority=1))
    desk.finish("high")
    assert desk.order[-1] == "low"


def test_order_looks_at_what_a_client_holds_anywhere() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000), gpu1=PoolLimits(kv_tokens=1_000))
    desk.ask("far", 498, 1, client="a", to=(GPU1,))
    desk.ask("z", 998, 1, client="z")
    desk.ask("a", 598, 1, client="a")
    desk.ask("b", 598, 1, client="b")
    desk.finish("z")
    assert desk.waiting == ["a"]


def test_a_line_keeps_arrival_order_when_something_comes_back() -> None:
    of = flow("a")
    for seq in (3, 7, 9):
        of.put_back(entry(seq))
    five = entry(5)
    of.put_back(five)
    of.put_back(entry(1))
    assert [e.seq for e in of.waiting] == [1, 3, 5, 7, 9]
    of.remove(five)
    assert [e.seq for e in of.waiting] == [1, 3, 7, 9]
    assert [[e.seq for e in lane] for lane in of.lanes.values()] == [[1, 3, 7, 9]]
    with pytest.raises(KeyError):
        of.remove(five)


def test_longest_is_per_weight() -> None:
    two, three = flow("two", weight=1), flow("three", weight=2)
    for seq in (1, 2):
        two.put_back(entry(seq))
    for seq in (3, 4, 5):
        three.put_back(entry(seq))
    assert longest([three, two]) is two
    assert longest([flow("none")]) is None


@pytest.mark.parametrize(
    ("rule", "inflight", "held", "kv", "allowed"),
    [
        (ClientRule("a"), 900, 10**9, 10**9, True),
        (ClientRule("a", max_inflight=4), 3, 0, 1, True),
        (ClientRule("a", max_inflight=4), 4, 0, 1, False),
        (ClientRule("a", max_held_tokens=40_000), 1, 30_000, 10_000, True),
        (ClientRule("a", max_held_tokens=40_000), 1, 30_000, 10_001, False),
    ],
)
def test_own_limits(rule, inflight, held, kv, allowed) -> None:
    assert Flow(rule, inflight=inflight, held=held).within_own_limits(need(kv)) is allowed


def test_a_quota_leaves_the_rest_to_others() -> None:
    """N03: forty streams of one client: four run, 40,000 tokens at most; the other starts at once."""
    rule = ClientRule("a", max_inflight=4, max_held_tokens=40_000)
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=100_000))
    for i in range(40):
        desk.ask(f"a{i}", 5_000, 4_000, client=rule)
    desk.ask("b", 5_000, 4_000, client="b")
    assert list(desk.running) == ["a0", "a1", "a2", "a3", "b"]
    assert desk.core.books.flows["a"].held <= 40_000


@pytest.mark.parametrize(
    ("mine", "others", "more", "allowed"),
    [
        (4, 0, 2, True),  # 6 <= 2 x 4
        (4, 0, 3, False),  # 7 > 2 x 3
        (1, 8, 1, True),  # 2 <= 2.5, its part of ten
        (2, 6, 1, False),  # 3 > 2.5 and 3 > 2 x 1
    ],
)
def test_so_are_running_slots(mine: int, others: int, more: int, allowed: bool) -> None:
    ledger = PoolLedger(GPU0, PoolLimits(1_000, slots=10))
    for name, slots in (("a", mine), ("z", others)):
        if slots:
            hold = Hold(name, Demand(1, slots, 0, slots), 0, 0.0, streamed=True)
            ledger.reserve(rid(name), hold)
    one = Demand(1, more, 0, more)
    assert within_share(flow("a"), one, ledger, active_weight=4.0) is allowed
