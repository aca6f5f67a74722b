"""Learned limits: speed, what a server survived, when a first token comes, and kept places."""

from __future__ import annotations

import pytest

from gateway.core import envelope, pace
from gateway.core.envelope import Envelope
from gateway.core.model import ClientRule, Code, PoolLimits, QueueRule
from gateway.core.pace import Pace
from tests.core.desk import GPU0, Desk, rid

LONG = QueueRule(max_requests=10_000, max_wait_s=1e9)


# ---- pace ----------------------------------------------------------------------------------------


def test_slow_streams_cut_the_slots_and_fast_ones_give_them_back() -> None:
    of = Pace()
    of.target_s = 0.1
    of.window([0.03] * 10, running=10)
    assert of.slots == float("inf")
    of.window([0.08] * 150 + [0.15] * 50, running=200)
    assert of.slots == float("inf"), "one bad window after good ones is a long prefill"
    of.window([0.08] * 150 + [0.15] * 50, running=200)
    assert of.slots == 170
    of.window([0.15] * 180, running=180)
    assert of.slots == 170, "the cut has not taken effect"
    for _ in range(4):  # each is believed to two fifths
        of.window([0.05] * 150, running=150)
    grown = of.slots
    assert 145 < grown < 250
    of.window([0.05] * 150, running=150)
    assert grown < of.slots <= 1.2 * grown
    grown = of.slots
    for _ in range(3):
        of.window([0.05] * 80, running=80)
    assert of.slots == grown, "not taken: nothing is known of more"


def test_a_machine_that_cannot_reach_the_target_is_not_starved() -> None:
    of = Pace()
    of.target_s = 0.1
    for _ in range(20):
        of.window([0.5] * 8, running=8)
    assert of.slots == float("inf"), "0.5 s is the best it ever showed"
    for _ in range(20):
        running = min(8, of.slots)
        of.window([2.0] * int(running), running=int(running))
    assert of.slots == pace.LEAST_SLOTS


def test_one_stream_is_no_percentile() -> None:
    of = Pace()
    of.target_s = 0.1
    of.window([0.01], running=1)
    of.window([5.0], running=1)
    assert of.slots == float("inf")


def test_two_hundred_short_answers_do_not_decode_at_once() -> None:
    """Incident C: memory for all, and every stream slow. The limit finds the speed."""
    limits = PoolLimits(kv_tokens=10**9, forecast=True, tpot_s=0.1)
    desk = Desk(LONG, gpu0=limits)
    tokens: dict[str, float] = {}
    count = 0
    for step in range(900):  # half a second each; a step of the engine takes 1 ms a stream
        while len(desk.waiting) < 100 and len(desk.running) < 250:
            desk.ask(f"r{count}", 10, 300)
            count += 1
        speed = 1.0 / (0.02 + 0.001 * len(desk.running))
        for name in list(desk.running):
            desk.first_token(name)
            tokens[name] = tokens.get(name, 0.0) + 0.5 * speed
            desk.core.true_up(rid(name), int(tokens[name]))
            if tokens[name] >= 300:
                desk.finish(name)
        desk.wait(0.5)
        if step > 700:
            assert 55 <= len(desk.running) <= 110, "0.1 s a token is 80 streams"


# ---- envelope ------------------------------------------------------------------------------------


def test_a_retraction_costs_a_little_and_time_gives_it_back() -> None:
    of = Envelope()
    of.retracted()
    assert of.share == pytest.approx(0.98)
    of.served(300.0)
    assert of.share == pytest.approx(0.99)
    of.served(10_000.0)
    assert of.share == 1.0
    for _ in range(100):
        of.retracted()
    assert of.share == envelope.LEAST_SHARE


def test_a_death_in_a_full_pool_moves_the_plan_below_it() -> None:
    of = Envelope()
    of.died(0.4)
    assert of.share == 1.0, "memory for all: it was something else"
    of.died(0.9)
    assert of.share == pytest.approx(0.855)
    of.died(0.95)
    assert of.share == pytest.approx(0.855)
    of.died(0.71)
    assert of.share == envelope.LEAST_SHARE


def test_what_was_learned_never_stops_the_only_one() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    for _ in range(20):
        desk.take(desk.core.retracted(GPU0, desk.now))
    desk.ask("whole", 949, 50)
    assert "whole" in desk.running
    desk.finish("whole")
    desk.ask("most", 649, 50)
    desk.ask("second", 49, 50)
    assert desk.waiting == ["second"], "of 1,000 tokens 700 are planned with"


def test_strangers_in_the_pool_take_room_until_they_are_gone() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000, slots=4))
    desk.take(desk.core.foreign(GPU0, 600, 3, desk.now))
    desk.ask("big", 498, 1)
    desk.ask("small", 98, 1)
    assert desk.waiting == ["big"], "and is not refused: they will go"
    desk.ask("fourth", 8, 1)
    assert desk.waiting == ["big", "fourth"], "three of four slots are theirs"
    desk.take(desk.core.foreign(GPU0, 0, 0, desk.now))
    assert desk.waiting == []


# ---- deadlines and kept places -------------------------------------------------------------------


def test_what_cannot_start_in_time_is_told_while_it_still_helps() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("running", 998, 1)
    desk.ask("late", 998, 1, deadline=10.0)
    desk.wait(8.96)  # its prompt takes about a second
    assert desk.refused["late"].code is Code.DEADLINE_UNREACHABLE
    assert desk.refused["late"].retry_after_s is not None


def test_who_comes_back_when_told_has_kept_its_place() -> None:
    desk = Desk(QueueRule(max_requests=3, max_wait_s=1e9), gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("running", 998, 1)
    for i in range(3):
        desk.ask(f"r{i}", 900 + i, 1)
    desk.ask("turned away", 950, 1)
    told = desk.refused["turned away"].retry_after_s
    assert told is not None
    desk.take(desk.core.cancel(rid("r0"), desk.now))
    desk.ask("later", 903, 1)
    desk.take(desk.core.cancel(rid("r1"), desk.now))
    desk.ask("too early", 950, 1)
    desk.take(desk.core.cancel(rid("too early"), desk.now))
    desk.wait(told)
    desk.ask("back", 950, 1)
    assert desk.waiting.index("back") < desk.waiting.index("later")
    desk.take(desk.core.cancel(rid("back"), desk.now))
    desk.ask("again", 950, 1)
    assert desk.waiting[-1] == "again", "a place is kept once"


def test_a_place_is_kept_for_half_a_minute_and_for_its_owner() -> None:
    desk = Desk(QueueRule(max_requests=1, max_wait_s=1e9), gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("running", 998, 1)
    desk.ask("first", 900, 1)
    desk.ask("turned away", 950, 1)
    desk.take(desk.core.cancel(rid("first"), desk.now))
    desk.wait(5.0)
    desk.ask("other", 950, 1, client=ClientRule("other"))
    assert desk.core.books.entry(rid("other")).seq > 3
    desk.take(desk.core.cancel(rid("other"), desk.now))
    desk.wait(60.0)
    desk.ask("back", 950, 1)
    assert desk.core.books.entry(rid("back")).seq > 4


@pytest.mark.parametrize("tpot_s", [0.1, None])
@pytest.mark.parametrize("forecast", [False, True])
def test_what_was_held_back_is_given_back_however_memory_is_promised(
    forecast: bool, tpot_s: float | None
) -> None:
    """Also where no speed is looked at: clean work is counted by the same windows."""
    limits = PoolLimits(kv_tokens=1000, forecast=forecast, tpot_s=tpot_s)
    desk = Desk(gpu0=limits)
    desk.ask("a", 10, 100)
    desk.take(desk.core.retracted(GPU0, desk.now))
    desk.finish("a")
    learned = desk.core.books.pools[GPU0].ledger.envelope
    assert learned.share < 1.0
    for number in range(70):  # a little more than ten minutes
        desk.ask(f"b{number}", 10, 100)
        desk.wait(10)
        desk.finish(f"b{number}")
    assert learned.share == 1.0
    desk.wait(60)
    assert desk.core.next_wakeup() is None, "and then nothing is looked at"
