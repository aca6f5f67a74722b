"""Grammars that a server compiles: one large one at a time, and nobody else waits for them."""

from __future__ import annotations

import math

import pytest

from gateway.core.compiling import KNOWN, Compiling
from gateway.core.model import Code, Grammar, Outcome, PoolLimits, QueueRule, Release
from tests.core.desk import GPU0, GPU1, Desk, rid

LIMITS = PoolLimits(1000, compile_s=10.0)
LARGE, OTHER, SMALL = Grammar(1, 9.0), Grammar(2, 9.0), Grammar(3, 0.5)


@pytest.fixture
def desk() -> Desk:
    return Desk(QueueRule(max_wait_s=60.0), gpu0=LIMITS)


def test_two_large_ones_are_compiled_one_after_the_other(desk) -> None:
    desk.ask("one", grammar=LARGE)
    desk.ask("two", grammar=OTHER)
    desk.ask("three", grammar=SMALL)
    desk.ask("none")
    assert set(desk.running) == {"one", "three", "none"}
    assert (desk.running["one"].compile_s, desk.running["none"].compile_s) == (9.0, None)
    desk.first_token("one")
    assert "two" in desk.running


def test_what_is_compiled_costs_nothing_again(desk) -> None:
    desk.ask("one", grammar=LARGE)
    desk.ask("same", grammar=LARGE)
    assert "same" in desk.running, "the engine compiles it once"
    desk.first_token("one")
    desk.ask("two", grammar=OTHER)
    desk.ask("again", grammar=LARGE)
    assert desk.running["again"].compile_s is None
    assert desk.running["two"].compile_s == 9.0


def test_what_is_larger_than_the_bound_goes_alone(desk) -> None:
    desk.ask("small", grammar=SMALL)
    desk.ask("giant", grammar=Grammar(9, 30.0))
    assert "giant" not in desk.running
    desk.first_token("small")
    assert "giant" in desk.running
    desk.ask("two", grammar=OTHER)
    assert "two" not in desk.running


def test_an_answer_in_one_piece_holds_it_for_its_likely_time(desk) -> None:
    desk.ask("one", grammar=LARGE, streamed=False)
    desk.ask("two", grammar=OTHER)
    desk.wait(8.9)
    assert "two" not in desk.running
    desk.wait(0.2)
    assert "two" in desk.running, "at its time, though nobody asked"


def test_what_is_told_of_it_ends_with_its_time(desk) -> None:
    """Also where nobody comes who would look."""
    desk.ask("one", grammar=LARGE)
    desk.take(desk.core.settle(rid("one"), Outcome.FAILED, desk.now))
    assert [pool.compiling for pool in desk.core.view(8.9).pools] == [1]
    assert [pool.compiling for pool in desk.core.view(9.1).pools] == [0]


def test_a_whole_answer_shows_it_done(desk) -> None:
    desk.ask("one", grammar=LARGE, streamed=False)
    desk.ask("two", grammar=OTHER)
    desk.now = 1.0
    desk.core.true_up(rid("one"), 5)
    desk.finish("one")
    assert "two" in desk.running
    desk.ask("three", grammar=LARGE)
    assert desk.running["three"].compile_s is None


@pytest.mark.parametrize("lingers", [True, False])
def test_who_leaves_does_not_end_the_compiler(desk, lingers) -> None:
    desk.ask("one", grammar=LARGE)
    desk.now = 1.0
    if lingers:
        desk.take(desk.core.abandon(rid("one"), Outcome.CANCELLED, desk.now, 30.0))
        desk.take(desk.core.confirm(rid("one"), desk.now))
    else:
        desk.take(desk.core.settle(rid("one"), Outcome.FAILED, desk.now))
    desk.ask("two", grammar=OTHER)
    desk.wait(7.9)
    assert "two" not in desk.running
    desk.wait(0.2)
    assert "two" in desk.running


def test_one_of_two_that_wait_for_the_same_leaves(desk) -> None:
    desk.ask("one", grammar=LARGE)
    desk.ask("same", grammar=LARGE)
    desk.take(desk.core.settle(rid("one"), Outcome.FAILED, desk.now))
    desk.ask("two", grammar=OTHER)
    desk.wait(20.0)
    assert "two" not in desk.running, "the other will show its first token"
    desk.first_token("same")
    assert "two" in desk.running


@pytest.mark.parametrize("why", [Release.UNSENT, Release.REQUEUED])
def test_what_never_reached_the_engine_is_not_compiled(desk, why) -> None:
    desk.ask("one", grammar=LARGE)
    if why is Release.UNSENT:
        desk.take(desk.core.settle(rid("one"), Outcome.CANCELLED, desk.now, why))
    else:
        desk.take(desk.core.requeue(rid("one"), desk.now, 0.0))
        assert desk.running["one"].compile_s == 9.0, "and it may start again"
        desk.first_token("one")
    desk.ask("two", grammar=OTHER)
    assert "two" in desk.running


def test_a_server_that_ended_has_forgotten(desk) -> None:
    desk.ask("one", grammar=LARGE)
    desk.first_token("one")
    desk.finish("one")
    desk.ask("two", grammar=OTHER)
    desk.take(desk.core.void(GPU0, desk.now))
    desk.ask("three", grammar=LARGE)
    assert desk.running["three"].compile_s == 9.0


def test_each_server_has_its_own() -> None:
    desk = Desk(gpu0=LIMITS, gpu1=LIMITS)
    for number in range(3):
        desk.ask(f"r{number}", grammar=Grammar(number, 9.0), to=(GPU0, GPU1))
    assert {grant.pool for grant in desk.running.values()} == {GPU0, GPU1}
    assert desk.waiting == ["r2"]


def test_who_waits_for_it_is_told_so(desk) -> None:
    desk.ask("one", grammar=LARGE)
    desk.ask("two", grammar=OTHER)
    desk.wait(61.0)
    refusal = desk.refused["two"]
    assert refusal.code is Code.QUEUE_TIMEOUT
    assert "grammar" in refusal.message


def test_a_fence_for_it_idles_nobody() -> None:
    """It was passed until the pool was fenced; then another large grammar began."""
    desk = Desk(QueueRule(max_wait_s=1e6), gpu0=LIMITS)
    desk.ask("holder", 490, 10)
    desk.ask("wide", 890, 10, grammar=OTHER, client="w")
    for number in range(3):
        desk.ask(f"s{number}", 390, 10, client=f"c{number}")
        desk.finish(f"s{number}")
    assert desk.core.books.pools[GPU0].fence == "wide"
    desk.core.books.pools[GPU0].compiling.begins(LARGE, desk.now, streamed=True)
    desk.ask("next", 100, 10, client="z")
    assert "next" in desk.running


def test_what_is_compiled_first_takes_no_turn_at_being_read() -> None:
    desk = Desk(gpu0=PoolLimits(20_000, prefill_tokens=3_000, compile_s=10.0))
    desk.ask("large", 2_000, grammar=LARGE)
    desk.ask("whole", 900, grammar=LARGE, streamed=False)
    desk.now = 0.1
    desk.ask("plain", 900)
    assert set(desk.running) == {"large", "whole", "plain"}
    assert desk.prefill() == 900
    assert desk.core.books.pools[GPU0].read_by < 1.2, "nor is it waited for"
    desk.first_token("plain")
    holds = desk.core.books.pools[GPU0].ledger.holds
    assert holds[rid("whole")].prefilling, "though it came before"
    desk.wait(10.0)
    assert not holds[rid("whole")].prefilling
    desk.ask("next", 5_000)
    desk.ask("behind", 5_000)
    assert desk.waiting == ["behind"], "what needs no compiling goes one by one"
    desk.first_token("large")
    desk.finish("large", "whole", "plain", "next")
    desk.finish("behind")
    assert desk.at_rest()


def test_times_with_a_compilation_say_nothing_of_the_server(desk) -> None:
    desk.ask("one", grammar=LARGE)
    before = desk.core.books.pools[GPU0].prefill_rate
    desk.now = 9.0
    desk.first_token("one")
    assert desk.core.books.pools[GPU0].prefill_rate == before
    desk.ask("two")
    desk.now = 9.5
    desk.first_token("two")
    assert desk.core.books.pools[GPU0].prefill_rate != before


def test_what_is_remembered_is_bounded() -> None:
    of = Compiling()
    for mark in range(KNOWN + 5):
        of.begins(Grammar(mark, 1.0), 0.0, streamed=True)
        of.done(Grammar(mark, 1.0))
    assert of.is_new(Grammar(4, 1.0))
    assert not of.is_new(Grammar(5, 1.0))
    assert of.under_way(0.0) == 0


def test_many_small_ones_do_not_keep_a_large_one_away_for_ever(desk) -> None:
    """Together with any of them it is above the bound, and the next of them comes before the last is done."""
    desk.ask("s0", grammar=Grammar(100, 2.0), client="flood")
    desk.ask("large", grammar=LARGE, client="victim")
    for number in range(1, 30):
        desk.ask(f"s{number}", grammar=Grammar(100 + number, 2.0), client="flood")
        desk.now += 1.0
        if f"s{number - 1}" in desk.running:
            desk.first_token(f"s{number - 1}")
            desk.finish(f"s{number - 1}")
    assert "large" in desk.running
    past = [name for name in desk.order[: desk.order.index("large")] if name.startswith("s")]
    assert len(past) == 1 + 5, "what fits at once goes past it, 10 s of them, and no more"


def test_a_large_one_that_waits_lets_small_ones_by(desk) -> None:
    desk.ask("one", grammar=LARGE)
    desk.ask("two", grammar=OTHER)
    for number in range(6):
        desk.ask(f"s{number}", grammar=Grammar(100 + number, 0.9))
        desk.first_token(f"s{number}")
    assert {f"s{number}" for number in range(6)} <= set(desk.running)
    assert desk.waiting == ["two"]


def test_what_the_engine_refused_is_not_compiled(desk) -> None:
    """A request may be refused for any other reason, before anybody looks at its grammar."""
    desk.ask("bad", grammar=LARGE, streamed=False)
    desk.finish("bad")  # answered with 400: no token was seen
    desk.ask("two", grammar=OTHER)
    assert "two" in desk.running, "nor is it being compiled"
    desk.ask("again", grammar=LARGE)
    assert desk.waiting == ["again"]


@pytest.mark.parametrize("most", [10.0, math.inf])
@pytest.mark.parametrize("same", [True, False])
def test_prompts_that_wait_for_a_grammar_are_few(most, same) -> None:
    """They are read at once when it is done: no more than may be read at once, or one."""
    desk = Desk(gpu0=PoolLimits(100_000, prefill_tokens=1_000, compile_s=most))
    for number in range(8):
        desk.ask(f"r{number}", 900, grammar=Grammar(1 if same else number, 0.3))
    assert list(desk.running) == ["r0"]
    desk.ask("small", 90, grammar=Grammar(99, 0.3))
    assert "small" in desk.running
    desk.first_token("r0")
    assert len(desk.running) == 3
    assert desk.prefill() <= 1_000, "those whose grammar is known by now are read in turn"
