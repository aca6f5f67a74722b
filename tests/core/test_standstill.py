"""A gate that stood still: nobody has waited in that time, though clients' own clocks went on."""

from __future__ import annotations

import pytest

from gateway.core.model import Code, Lingering, Outcome, PoolLimits, QueueRule, Release
from tests.core.desk import Desk, rid

ONE = PoolLimits(kv_tokens=100)
AWAY_S = 500.0


@pytest.fixture
def desk() -> Desk:
    """One request fills the pool, and the next have waited for 10 of 120 seconds."""
    desk = Desk(QueueRule(max_wait_s=120.0), gpu0=ONE)
    desk.ask("runs", 1, 90)
    desk.ask("waits", 1, 90)
    desk.wait(10)
    return desk


def stand_still(desk: Desk, seconds: float = AWAY_S) -> None:
    desk.now += seconds
    desk.core.stood_still(seconds)


def test_who_waits_waits_as_long_as_if_it_had_not_been(desk: Desk) -> None:
    stand_still(desk)
    desk.wait(109.9)
    assert desk.waiting == ["waits"]
    desk.wait(0.2)
    refusal = desk.refused["waits"]
    assert refusal.code is Code.QUEUE_TIMEOUT
    assert refusal.message.startswith("waited 620 s")


def test_room_that_came_meanwhile_is_theirs(desk: Desk) -> None:
    stand_still(desk)
    desk.finish("runs")
    assert "waits" in desk.running


@pytest.mark.parametrize(
    ("deadline", "lasts", "code"),
    [
        (100.0, 0.0, Code.DEADLINE_UNREACHABLE),  # over while nobody was there
        (550.0, 40.0, Code.DEADLINE_UNREACHABLE),  # later than the queue would have let it wait
        (900.0, 120.0, Code.QUEUE_TIMEOUT),
    ],
)
def test_a_client_waits_by_its_own_clock(deadline: float, lasts: float, code: Code) -> None:
    desk = Desk(QueueRule(max_wait_s=120.0), gpu0=ONE)
    desk.ask("runs", 1, 90)
    desk.wait(10)
    desk.ask("waits", 1, 90, deadline=deadline)
    stand_still(desk)
    desk.wait(max(lasts - 0.1, 0.0))
    assert ("waits" in desk.refused) is (lasts == 0)
    desk.wait(0.2)
    assert desk.refused["waits"].code is code


def test_one_that_is_put_back_has_the_time_that_it_had(desk: Desk) -> None:
    desk.finish("runs")
    stand_still(desk)
    desk.ask("other", 1, 90)
    desk.take(desk.core.requeue(rid("waits"), desk.now, pause_s=1000.0))
    assert set(desk.waiting) == {"waits", "other"}
    desk.wait(109.9)
    assert "waits" not in desk.refused
    desk.wait(0.2)
    assert desk.refused["waits"].code is Code.QUEUE_TIMEOUT
    assert "other" not in desk.refused


def test_twice_is_given_twice(desk: Desk) -> None:
    stand_still(desk)
    desk.wait(10)
    stand_still(desk, 60.0)
    desk.wait(99.9)
    assert desk.waiting == ["waits"]
    desk.wait(0.2)
    assert "waits" in desk.refused


def test_an_abandoned_request_keeps_its_grace(desk: Desk) -> None:
    """The engine could not be asked whether it is gone."""
    desk.take(desk.core.abandon(rid("runs"), Outcome.CANCELLED, desk.now, 30.0))
    desk.wait(5)
    stand_still(desk)
    desk.wait(24.9)
    assert desk.kv() == 92
    assert desk.released == []
    desk.wait(0.2)
    assert desk.released == [("runs", Release.GRACE)]
    assert "waits" in desk.running


def test_a_longer_grace_stays_the_longer(desk: Desk) -> None:
    desk.take(desk.core.abandon(rid("runs"), Outcome.CANCELLED, desk.now, 30.0))
    stand_still(desk)
    told = desk.take(desk.core.prolong(rid("runs"), desk.now, 30.0))
    assert [one.until for one in told if isinstance(one, Lingering)] == [desk.now + 30.0]
    told = desk.take(desk.core.prolong(rid("runs"), desk.now, 20.0))
    assert [one.until for one in told if isinstance(one, Lingering)] == [desk.now + 30.0]
