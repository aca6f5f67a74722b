"""However many could be started or sent away at once, one step does so with a few; the next with a few more."""

from __future__ import annotations

import pytest

from gateway.core.model import ClientRule, Code, Granted, PoolLimits, QueueRule, Refused
from gateway.core.turns import STEP_S
from tests.core.desk import GPU0, Desk, rid

FEW = 4
MANY = 30
LONG = QueueRule(max_requests=1_000, max_tokens=10**9, max_wait_s=10.0)
FULL = PoolLimits(kv_tokens=1_000)
ROOMY = PoolLimits(kv_tokens=1_000_000)


def crowd() -> Desk:
    """One holds the whole pool, and many wait."""
    desk = Desk(LONG, gpu0=FULL)
    desk.core.at_once = FEW
    desk.ask("first", 900, 90)
    for number in range(MANY):
        desk.ask(f"r{number}", 90, 10)
    return desk


def moved(desk: Desk, got: list[object]) -> int:
    return sum(isinstance(one, Granted | Refused) for one in got)


def to_the_end(desk: Desk, got: list[object]) -> list[int]:
    """How many moved in each step of the core from `got` on, until there is none left to move."""
    steps = [moved(desk, got)]
    while desk.waiting:
        wake = desk.core.next_wakeup()
        assert wake is not None, "those that wait are forgotten"
        assert wake > desk.now or steps[-1] == 0, "a timer that rings and rings, and nothing moves"
        desk.now = max(desk.now, wake)
        steps.append(moved(desk, desk.take(desk.core.advance(desk.now))))
    return steps


def test_room_for_all_starts_a_few_at_a_time() -> None:
    desk = crowd()
    steps = to_the_end(desk, desk.take(desk.core.resize(GPU0, ROOMY, desk.now)))
    assert max(steps) == FEW
    assert sum(steps) == MANY
    assert desk.order[1:] == [f"r{number}" for number in range(MANY)]


def test_other_steps_of_the_same_moment_start_no_more() -> None:
    desk = crowd()
    desk.take(desk.core.resize(GPU0, ROOMY, desk.now))
    before = len(desk.running)
    for number in range(3):
        desk.take(desk.core.advance(desk.now))
        desk.ask(f"late{number}", 90, 10)
    assert len(desk.running) == before
    desk.now += STEP_S
    desk.take(desk.core.advance(desk.now))
    assert len(desk.running) == before + FEW


def test_a_time_that_is_over_for_all_sends_a_few_away_at_a_time() -> None:
    desk = crowd()
    desk.now = 10.0
    steps = to_the_end(desk, desk.take(desk.core.advance(desk.now)))
    assert max(steps) == FEW
    assert {refusal.code for refusal in desk.refused.values()} == {Code.QUEUE_TIMEOUT}
    assert len(desk.refused) == MANY


def test_a_gate_that_goes_down_sends_a_few_away_at_a_time_and_starts_none() -> None:
    desk = crowd()
    got = desk.take(desk.core.drain(desk.now))
    desk.take(desk.core.resize(GPU0, ROOMY, desk.now))
    desk.finish("first")
    steps = to_the_end(desk, got)
    assert max(steps) == FEW
    assert len(desk.refused) == MANY
    assert {refusal.code for refusal in desk.refused.values()} == {Code.DRAINING}
    assert desk.order == ["first"]


@pytest.mark.parametrize(
    ("rule", "client"),
    [
        (QueueRule(max_requests=MANY, max_tokens=10**9, max_wait_s=10.0), "anyone"),
        (QueueRule(max_requests=1_000, max_tokens=MANY * 101, max_wait_s=10.0), "anyone"),
        (LONG, ClientRule("anyone", max_waiting=MANY)),
    ],
)
def test_a_bound_refuses_nobody_for_what_was_only_put_off(rule, client) -> None:
    """The queue is full as the room comes, and so are those that come before it has been used."""
    desk = Desk(rule, gpu0=FULL)
    desk.core.at_once = FEW
    desk.ask("first", 900, 90)
    for number in range(MANY):
        desk.ask(f"r{number}", 90, 10, client=client)
    desk.take(desk.core.resize(GPU0, ROOMY, desk.now))
    for number in range(MANY):
        desk.ask(f"late{number}", 90, 10, client=client)
    assert not desk.refused
    to_the_end(desk, [])
    assert len(desk.running) == 1 + 2 * MANY


def test_nobody_is_held_up_where_few_move() -> None:
    """As many as may move: there is nothing to come back for."""
    desk = Desk(LONG, gpu0=ROOMY)
    desk.core.at_once = FEW
    for number in range(FEW):
        desk.ask(f"r{number}", 90, 10)
    assert len(desk.running) == FEW
    assert desk.core.next_wakeup() is None


@pytest.mark.parametrize("last_first", [False, True])
def test_who_leaves_is_found_by_its_place(monkeypatch, last_first) -> None:
    """Thousands hang up together, in any order: to look through the line for each takes seconds."""
    desk = crowd()
    looks = 0

    def place(entry):
        nonlocal looks
        looks += 1
        return entry.place

    monkeypatch.setattr("gateway.core.flows.PLACE", place)
    names = [f"r{number}" for number in range(MANY)]
    for name in reversed(names) if last_first else names:
        desk.take(desk.core.cancel(rid(name), desk.now))
    in_line_and_lane = 2
    assert 0 < looks <= in_line_and_lane * MANY * MANY.bit_length()
    assert not desk.waiting
