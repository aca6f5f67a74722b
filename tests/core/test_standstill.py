"""A gate that stood still: nobody has waited in that time, though clients' own clocks went on."""

from __future__ import annotations

import pytest

from gateway.core.model import Code, Lingering, Outcome, PoolLimits, QueueRule, Release
from tests.core.desk import GPU0, Desk, rid

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


# ---- what was learned --------------------------------------------------------------------------


def drained(desk: Desk, seconds: int) -> None:
    """One request after the other, each a second."""
    for number in range(seconds):
        desk.ask(f"done{number}", 1, 40)
        desk.wait(1)
        desk.finish(f"done{number}")


def told(desk: Desk, name: str) -> float:
    """What somebody is told for whom there is no room."""
    desk.core.queue = QueueRule(max_requests=1)
    desk.ask(name, 1, 90)
    return desk.refused[name].retry_after_s or 0.0


def test_the_drain_goes_on_as_fast_as_it_went() -> None:
    desk = Desk(gpu0=ONE)
    drained(desk, 60)
    desk.ask("runs", 1, 90)
    desk.ask("waits", 1, 90)
    before = told(desk, "a")
    assert before < 10
    stand_still(desk)
    assert told(desk, "b") == before


def test_who_was_told_to_come_back_keeps_his_place() -> None:
    desk = Desk(QueueRule(max_requests=1), gpu0=ONE)
    desk.ask("runs", 1, 90)
    desk.ask("waits", 1, 90)
    desk.ask("early", 1, 80)
    assert desk.refused.pop("early").retry_after_s
    desk.wait(5)
    stand_still(desk)
    away = desk.core._recall.away(desk.now)
    assert away == {"anyone": 82}, "who could not come has not stayed away"
    desk.finish("runs")
    desk.ask("late", 1, 70)
    desk.core.queue = QueueRule(max_requests=9)
    desk.ask("early", 1, 80)
    assert desk.core.books.entry(rid("early")).came_back
    desk.wait(31)
    assert desk.core._recall.away(desk.now) == {}


def test_a_place_is_kept_for_no_longer_than_it_would_have_been() -> None:
    desk = Desk(QueueRule(max_requests=1), gpu0=ONE)
    desk.ask("runs", 1, 90)
    desk.ask("waits", 1, 90)
    desk.ask("early", 1, 80)
    stand_still(desk)
    desk.wait(34.9)
    assert desk.core._recall.away(desk.now) == {"anyone": 82}
    desk.wait(0.2)
    assert desk.core._recall.away(desk.now) == {}


@pytest.mark.parametrize("goes_on", [False, True], ids=["asleep", "written meanwhile"])
def test_streams_are_not_taken_for_slower_or_faster_than_they_are(goes_on: bool) -> None:
    """Whether a server wrote all the while cannot be told: what it had under way tells nothing."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000, slots=40, tpot_s=0.1))
    pace = desk.core.books.pools[GPU0].ledger.pace
    names = [f"s{number}" for number in range(20)]
    for name in names:
        desk.ask(name, 10, 3_000)
    desk.first_token(*names)
    tokens = 1
    for _ in range(20):
        desk.wait(1)
        tokens += 20
        for name in names:
            desk.core.true_up(rid(name), tokens)
    before = pace.slots, pace.tokens_per_s, pace._best
    stand_still(desk)
    for _ in range(20):
        tokens += 2_000 * goes_on + 20
        goes_on = False
        for name in names:
            desk.core.true_up(rid(name), tokens)
        desk.wait(1)
    assert (pace.slots, pace.tokens_per_s, pace._best) == before
    desk.ask("new", 10, 3_000)
    desk.first_token("new")
    for number in range(1, 8):
        desk.wait(1)
        desk.core.true_up(rid("new"), number * 40)
    assert pace.tokens_per_s != before[1], "who comes after it tells"


def test_prompts_that_were_being_read_do_not_make_a_server_slow() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000))
    for number in range(30):
        desk.ask(f"t{number}", 1_000, 10)
        desk.wait(1.0)
        desk.first_token(f"t{number}")
        desk.finish(f"t{number}")
    place = desk.core.books.pools[GPU0]
    names = [f"s{number}" for number in range(8)]
    for name in names:
        desk.ask(name, 100, 10)
    before = place.ttft.predict(1_000, 1_000, 0, 0), place.prefill_rate
    stand_still(desk)
    desk.first_token(*names)
    assert (place.ttft.predict(1_000, 1_000, 0, 0), place.prefill_rate) == before
    assert desk.prefill() == 0
    desk.ask("new", 1_000, 10)
    desk.wait(3.0)
    desk.first_token("new")
    assert place.prefill_rate != before[1], "who comes after it tells"


def test_time_in_which_nobody_looked_is_no_clean_work() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=1_000, tpot_s=0.1))
    desk.ask("runs", 1, 900)
    desk.take(desk.core.retracted(GPU0, desk.now))
    envelope = desk.core.books.pools[GPU0].ledger.envelope
    before = envelope.share
    assert before < 1.0
    stand_still(desk)
    desk.wait(5)
    assert before < envelope.share < before + 0.001
