"""When the first token comes: what is learned, and what a request sent now waits for."""

from __future__ import annotations

import random
from statistics import median

import pytest

from gateway.core.hold import Hold
from gateway.core.ledger import PoolLedger
from gateway.core.model import Demand, Outcome, PoolLimits
from gateway.core.pools import Pool
from gateway.core.ttft import TtftModel
from tests.core.desk import GPU0, Desk, rid

STEP_S = 0.05
"""Of a decode step, as is assumed before a stream was seen: 20 tokens a second."""


def test_the_first_token_is_predicted_within_a_few_percent() -> None:
    draw, model = random.Random(3), TtftModel(1_000.0)
    errors, covered = [], 0
    for number in range(1_000):
        prompt = draw.randrange(50, 20_000)
        wait, rest = draw.choice([(0.0, draw.uniform(0.0, 0.04)), (draw.uniform(0.0, 0.7), 0.0)])
        true = 0.05 + wait + rest + prompt / 6_000 + (prompt / 1_000) ** 2 / 400
        took = true * draw.lognormvariate(0, 0.05)
        guess = model.predict(prompt, prompt, wait, rest)
        if number >= 200:
            errors.append(abs(guess.likely / took - 1))
            covered += took <= guess.high
        model.learn(guess, took, number)
    assert sum(errors) / len(errors) < 0.08
    assert 0.92 <= covered / len(errors) <= 0.98


def test_a_slower_machine_is_noticed() -> None:
    model = TtftModel(1_000.0)
    for factor in (1.0, 3.0):
        for number in range(400):
            prompt = 100 + 37 * number % 5_000
            guess = model.predict(prompt, prompt, 0, 0)
            model.learn(guess, factor * (0.1 + prompt / 5_000), number)
    assert model.predict(2_000, 2_000, 0, 0).likely == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize("slower", [3.0, 10.0, 100.0])
def test_a_machine_that_became_much_slower_is_learned_in_a_dozen_first_tokens(
    slower: float,
) -> None:
    draw, model = random.Random(1), TtftModel(2_000.0)
    ratios = []
    for number in range(230):
        left, wait = (
            draw.randrange(200, 8_000),
            draw.choice([0.0, 0.0, 0.0, draw.uniform(0.0, 2.0)]),
        )
        rest = 0.0 if wait else draw.uniform(0.0, 0.04)
        took = (0.05 + left / 4_000 + wait + rest) * draw.lognormvariate(0, 0.2)
        took *= slower if number >= 200 else 1.0
        guess = model.predict(left, left, wait, rest)
        model.learn(guess, took, number)
        ratios.append(guess.likely / took)
    assert median(ratios[180:200]) == pytest.approx(1.0, rel=0.2)
    assert median(ratios[200:206]) == pytest.approx(1 / slower, rel=0.5)
    assert median(ratios[212:]) == pytest.approx(1.0, rel=0.2)


def test_what_is_sent_as_a_step_ends_has_a_bound_of_its_own() -> None:
    """It is predicted to the percent, and most are; of those in the middle of a step a twentieth would
    otherwise be all that the bound is about."""
    draw, model = random.Random(2), TtftModel(1_000.0)
    late = {True: 0, False: 0}
    seen = {True: 0, False: 0}
    for number in range(3_000):
        timely = number % 10 > 0
        rest = 0.05 if timely else 0.025
        took = 0.05 + (rest if timely else draw.uniform(0.0, 0.05))
        took *= draw.lognormvariate(0, 0.01)
        guess = model.predict(100, 100, 0.0, rest, timely=timely)
        if number >= 1_000:
            seen[timely] += 1
            late[timely] += took > guess.high
        model.learn(guess, took, number)
    for timely in (True, False):
        assert 0.02 <= late[timely] / seen[timely] <= 0.09, timely


def test_one_late_first_token_among_others_changes_next_to_nothing() -> None:
    model = TtftModel(1_000.0)
    for number in range(200):
        prompt = 100 + 37 * number % 5_000
        took = (0.1 + prompt / 5_000) * (40.0 if number % 25 == 24 else 1.0)
        model.learn(model.predict(prompt, prompt, 0, 0), took, number)
    assert model.predict(2_000, 2_000, 0, 0).likely == pytest.approx(0.5, rel=0.1)


def test_requests_of_one_size_for_days_do_not_blow_the_model_up() -> None:
    model = TtftModel(1_000.0)
    for _ in range(20_000):
        model.learn(model.predict(1_000, 1_000, 0.0, 0.02), 0.2, 0.0)
    assert model.predict(1_000, 1_000, 0.0, 0.02).likely == pytest.approx(0.2, rel=0.01)
    assert 0 < model.predict(4_000, 4_000, 2.0, 0.0).likely < 60


# ---- what it waits for ---------------------------------------------------------------------------


def ready() -> Desk:
    return Desk(gpu0=PoolLimits(kv_tokens=100_000))


def told(desk: Desk, name: str) -> float:
    seconds = desk.running[name].ttft_s
    assert seconds is not None
    return seconds


def test_of_a_prompt_that_is_being_read_only_the_rest_is_waited_for() -> None:
    desk = ready()
    desk.ask("long", 10_000)
    desk.ask("at once", 1_000)
    both = told(desk, "at once")
    alone = told(desk, "long")
    desk.wait(0.9 * alone)
    desk.ask("late", 1_000)
    # 10,000 and 1,000 tokens were sent before it; nine tenths of the first are read.
    assert told(desk, "late") == pytest.approx(both + both - 0.9 * alone - alone)
    assert told(desk, "late") < 0.4 * alone
    desk.first_token("long", "at once", "late")
    desk.ask("after all", 1_000)
    assert told(desk, "after all") < both - alone + STEP_S


def test_what_should_long_be_read_is_not_waited_for() -> None:
    desk = ready()
    desk.ask("alone", 1_000)
    alone = told(desk, "alone")
    desk.wait(3 * alone)
    desk.ask("next", 1_000)
    assert told(desk, "next") == pytest.approx(alone)


@pytest.mark.parametrize(
    ("since", "rest"), [(0.0, STEP_S), (0.02, 0.03), (0.051, STEP_S / 2), (3.0, STEP_S / 2)]
)
def test_a_step_in_progress_is_waited_for(since: float, rest: float) -> None:
    """From when the server was last heard; where that is longer ago than a step takes, half of one."""
    desk = ready()
    desk.ask("alone", 1_000)
    alone = told(desk, "alone")
    desk.wait(0.2)
    desk.first_token("alone")
    desk.wait(since)
    book = desk.core.books.pools[GPU0].ttft
    expected = book.predict(1_000, 1_000, 0.0, rest).likely
    desk.ask("beside", 1_000)
    assert told(desk, "beside") == pytest.approx(expected)
    assert expected != book.predict(1_000, 1_000, 0.0, 0.0).likely
    assert alone > 0


def test_an_end_and_a_piece_of_an_answer_are_ends_of_steps_too() -> None:
    desk = ready()
    desk.ask("one", 1_000)
    desk.ask("two", 1_000)
    desk.first_token("one", "two")
    pool = desk.core.books.pools[GPU0]
    desk.wait(1.0)
    desk.finish("one")
    assert pool.heard == desk.now
    demand = desk.running["two"].demand
    assert pool.predict(demand, 10, desk.now).timely, "who starts at that moment"
    assert not pool.predict(demand, 10, desk.now + 0.01).timely
    desk.wait(1.0)
    desk.core.books.heard(GPU0, desk.now - 0.01)
    desk.core.books.heard(GPU0, desk.now - 0.5)
    assert pool.heard == desk.now - 0.01, "the later of two counts"


def test_who_left_or_failed_says_nothing_of_steps() -> None:
    desk = ready()
    desk.ask("left", 1_000)
    pool = desk.core.books.pools[GPU0]
    before = pool.heard
    desk.wait(1.0)
    desk.take(desk.core.settle(rid("left"), Outcome.FAILED, desk.now))
    assert pool.heard == before


def test_an_idle_server_has_no_step_in_progress() -> None:
    desk = ready()
    desk.ask("one", 1_000)
    alone = told(desk, "one")
    desk.wait(alone)
    desk.first_token("one")
    desk.finish("one")
    book = desk.core.books.pools[GPU0].ttft
    desk.ask("two", 1_000)
    assert told(desk, "two") == pytest.approx(book.predict(1_000, 1_000, 0.0, 0.0).likely)


# ---- what is not waited for ----------------------------------------------------------------------


def test_prompts_whose_clients_have_left_are_not_waited_for() -> None:
    """One client that sends long prompts and hangs up would have others refused for their deadlines."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=500_000))
    desk.ask("being read", 1_000)
    for number in range(20):
        desk.ask(f"gone {number}", 50_000, client="hostile")
        desk.take(desk.core.settle(rid(f"gone {number}"), Outcome.CANCELLED, desk.now))
    desk.ask("late", 1_000, client="honest")
    assert told(desk, "late") == pytest.approx(2 * told(desk, "being read"))


def test_a_prompt_that_was_read_sooner_than_predicted_is_waited_for_no_longer() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=500_000))
    desk.ask("in a cache nobody knew of", 100_000)
    desk.ask("next", 1_000)
    desk.wait(0.2)
    desk.first_token("in a cache nobody knew of")
    pool = desk.core.books.pools[GPU0]
    assert pool.read_by - desk.now < 2.0
    desk.first_token("next")
    assert pool.read_by <= desk.now, "nothing is being read"


def test_a_prompt_that_should_be_read_is_waited_for_no_longer() -> None:
    """Of an answer in one piece no first token is seen: it is taken to be read after its time."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=500_000))
    pool = desk.core.books.pools[GPU0]
    pool.prefill_rate = 100_000.0
    desk.ask("in one piece", 100_000, streamed=False)
    desk.ask("streamed", 1_000)
    assert pool.read_by - desk.now > 50.0, "as nobody has seen a first token yet"
    desk.wait(1.1)
    assert pool.read_by - desk.now < 2.0


def test_what_a_dead_server_was_reading_its_next_start_does_not() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=500_000))
    desk.ask("long", 100_000)
    desk.take(desk.core.void(GPU0, desk.now))
    desk.ask("one", 1_000)
    desk.ask("two", 1_000)
    assert told(desk, "two") < 3 * told(desk, "one")


def test_what_is_waited_for_is_no_more_than_what_is_left_to_read() -> None:
    """However little of the sum is looked at: it is all of it, or it does not matter."""
    pool = Pool(PoolLedger(GPU0, PoolLimits(10_000)))
    demand = Demand(cap=1, kv=401, prefill=300, slots=1)
    alone_s = 0.0
    for name in ("a", "b", "c"):
        told = pool.reads(demand, 300, 0.0)
        hold = Hold("anyone", demand, 300, 0.0, streamed=True, prediction=told, uncached=300)
        pool.ledger.reserve(rid(name), hold)
        alone_s = pool.ttft.alone_s(told)
    for before, after in ((4.0, 3.0), (3.5, 3.0), (2.5, 2.5), (1.5, 1.5), (-1.0, -1.0)):
        pool.read_by = 10.0 + before * alone_s
        pool.reads_less(10.0)
        assert pool.read_by == pytest.approx(10.0 + after * alone_s), before
