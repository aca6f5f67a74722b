"""When to come back: a client's own line, those of it who are away, and what holds it back."""

from __future__ import annotations

import pytest

from gateway.core.drainrate import DrainRate
from gateway.core.eta import wait_s
from gateway.core.model import ClientRule, PoolLimits, QueueRule
from gateway.core.recall import KEEP_S, MOST
from tests.core.desk import GPU0, Desk, rid

POOL = PoolLimits(kv_tokens=10_000, prefill_tokens=10_000)


def told(desk: Desk, name: str) -> float:
    after = desk.refused[name].retry_after_s
    assert after is not None
    return after


def busy(desk: Desk, tokens_per_s: int, seconds: int = 120) -> None:
    """Requests of `tokens_per_s` start and end each second: the drain rate is known."""
    for _ in range(seconds):
        desk.ask("warm", tokens_per_s - 2, 1)
        desk.wait(1)
        desk.finish("warm")
        desk.ended.clear()


def test_the_next_one_is_told_a_later_time_than_the_one_before() -> None:
    desk = Desk(QueueRule(max_requests=1, max_wait_s=1e9), gpu0=POOL)
    busy(desk, 1_000)
    desk.ask("running", 9_998, 1)
    desk.ask("waits", 998, 1)
    for i in range(20):
        desk.ask(f"r{i}", 998 - i, 1)
    times = [told(desk, f"r{i}") for i in range(20)]
    assert times == sorted(times)
    assert times[0] <= 3
    assert 15 <= times[-1] <= 30, "20 requests of 1,000 tokens at 1,000 a second"


def test_where_nobody_comes_back_nobody_is_counted() -> None:
    desk = Desk(QueueRule(max_requests=1, max_wait_s=1e9), gpu0=POOL)
    busy(desk, 1_000)
    desk.ask("running", 9_998, 1)
    desk.ask("waits", 998, 1)
    for i in range(60):
        desk.ask(f"r{i}", 998 - i, 1)
    asked_too_much = told(desk, "r59")
    desk.wait(asked_too_much + KEEP_S + 61)
    desk.finish("running")
    busy(desk, 1_000, 60)
    desk.ask("running", 8_998, 1)
    desk.ask("waits too", 998, 1)
    for i in range(20):
        desk.ask(f"s{i}", 498 - i, 1)
    assert told(desk, "s19") <= 4


def test_one_that_its_own_share_holds_back_is_not_told_that_the_pool_has_room() -> None:
    """The runaway holds two thirds; what is free is for the others, and it drains at its own rate."""
    desk = Desk(QueueRule(max_requests=8, max_wait_s=1e9), gpu0=POOL)
    busy(desk, 1_000)
    desk.ask("other", 498, 1, client="b")
    for i in range(20):
        desk.ask(f"r{i}", 998, 1, client="a")
    assert desk.core.books.pools[GPU0].ledger.free > 1_000
    held = desk.kv() - 500
    at_least = 9 * 1_000 / 1_000 * (held / (held + 500))
    assert told(desk, "r19") >= at_least > 5


def test_one_that_comes_back_is_passed_once() -> None:
    desk = Desk(QueueRule(max_requests=2, max_wait_s=1e9), gpu0=POOL)
    desk.ask("running", 5_998, 1, client="a")
    desk.ask("x", 7_998, 1, client="b")
    desk.ask("y", 7_998, 1, client="b")
    desk.ask("turned away", 7_000, 1, client="b")
    desk.take(desk.core.cancel(rid("x"), desk.now))
    desk.take(desk.core.cancel(rid("y"), desk.now))
    desk.wait(told(desk, "turned away"))
    desk.ask("back", 7_000, 1, client="b")
    desk.ask("small", 998, 1, client="c")
    assert "small" in desk.running
    assert desk.core.books.pools[GPU0].fence == rid("back")
    desk.ask("small too", 998, 1, client="d")
    assert "small too" in desk.waiting
    desk.finish("running", "small")
    assert "back" in desk.running


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_small_client_is_not_told_the_time_of_the_whole_queue(weight: float) -> None:
    """Its share of the drain rate is its own, however long the others' line is."""
    desk = Desk(QueueRule(max_requests=100, max_wait_s=1e9), gpu0=POOL)
    busy(desk, 1_000)
    for i in range(40):
        desk.ask(f"r{i}", 998, 1, client="a")
    rule = ClientRule("b", weight=weight, max_waiting=1)
    desk.ask("b0", 5_998, 1, client=rule)
    desk.ask("b1", 998, 1, client=rule)
    line = 7_000 / 1_000
    part = weight / (weight + 1)
    assert told(desk, "b1") <= 1 + 1.25 * line / part


def test_what_is_remembered_of_a_flood_is_bounded() -> None:
    desk = Desk(QueueRule(max_requests=1, max_wait_s=1e9), gpu0=POOL)
    desk.ask("running", 9_998, 1)
    desk.ask("waits", 998, 1)
    for i in range(3 * MOST):
        desk.ask(f"r{i}", 1 + i % 5_000, 1)
    recall = desk.core._recall
    assert (len(recall._places), len(recall._ends) <= 2 * MOST) == (MOST, True)
    assert desk.core._recall.away(desk.now)["anyone"] == sum(
        place.need for place in recall._places.values()
    )
    desk.wait(KEEP_S + 100)
    assert (recall.away(desk.now), recall._places, recall._ends) == ({}, {}, [])


@pytest.mark.parametrize(
    ("running", "weight", "seconds"),
    [
        (10_000, 1.0, 2.0),  # half of what ends is its own: 1,000 at 500 a second
        (10_000, 3.0, 4 / 3),  # three quarters
        (9_700, 1.0, 1.4),  # 300 are free: 700 at 500 a second
    ],
)
def test_of_what_ends_a_client_has_its_weight_s_part(
    running: int, weight: float, seconds: float
) -> None:
    desk = Desk(QueueRule(max_wait_s=1e9), gpu0=POOL)
    desk.ask("running", running - 2, 1, client="other")
    for i in range(8):
        desk.ask(f"other{i}", 4_998, 1, client="other")
    desk.ask("mine", 998, 1, client=ClientRule("me", weight=weight))
    drain = DrainRate(desk.now)
    drain.busy(desk.now, is_busy=True)
    drain.released(10_000, desk.now + 10.0)
    rate = drain.per_second(desk.now + 10.0)
    assert rate == pytest.approx(1_000, rel=0.2)
    books = desk.core.books
    entry = books.entry(rid("mine"))
    told_s = wait_s(books, entry, drain, {}, desk.now + 10.0)
    assert told_s == pytest.approx(seconds * 1_000 / rate)
