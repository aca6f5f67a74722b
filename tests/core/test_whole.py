"""Answers in one piece: how fast they were written is known when they have come, and is all that is known where nobody
streams."""

from __future__ import annotations

import pytest

from gateway.core.model import Grammar, Outcome, PoolLimits, QueueRule
from gateway.core.pace import FEW, WINDOW_S, Pace
from gateway.core.rounds import LEAST_TOKENS, UNSEEN
from gateway.core.unseen import Look
from tests.core.desk import GPU0, Desk, rid

LONG = QueueRule(max_requests=10_000, max_tokens=10**9, max_wait_s=1e9)
WIDE = PoolLimits(kv_tokens=10**7, prefill_tokens=10**6, tpot_s=0.1, forecast=True)
TOKENS = 40


def desk(limits: PoolLimits = WIDE) -> Desk:
    return Desk(LONG, gpu0=limits)


def pace(of: Desk) -> Pace:
    return of.core.books.pools[GPU0].ledger.pace


def read_now(of: Desk) -> None:
    """The engine says that it has read all prompts."""
    running = len(of.running)
    of.take(of.core.looked(GPU0, Look(of.now, running, 0), of.now))


def crowd(of: Desk, size: int, each_s: float, *, tokens: int = TOKENS, turns: int = 1) -> None:
    """So many together, in one piece and at that speed; then the next so many."""
    for turn in range(turns):
        names = [f"t{of.now}-{turn}-{number}" for number in range(size)]
        for name in names:
            of.ask(name, 100, 1_000, streamed=False)
        read_now(of)
        of.wait(each_s * tokens)
        for name in names:
            if name in of.running:
                of.core.true_up(rid(name), tokens)
                of.finish(name)
        of.ask(f"{names[0]}-watch", 100, 1_000, streamed=False)
        of.wait(WINDOW_S)  # a window judges what has come
        of.finish(f"{names[0]}-watch")


def test_slow_answers_cut_the_slots_as_slow_streams_do() -> None:
    of = desk()
    crowd(of, 100, 0.3, turns=2)
    assert pace(of).slots <= 85
    assert pace(of).tokens_per_s < 15


def test_fast_answers_cut_nothing_and_are_believed() -> None:
    of = desk()
    crowd(of, 100, 0.01, turns=12)
    assert pace(of).slots == float("inf")
    assert pace(of).tokens_per_s > 80


def test_a_few_of_a_crowd_that_have_come_do_not_pass_for_a_server_with_few() -> None:
    """Else what it was in the crush would count as its best, and three times that as slow enough."""
    of = desk()
    for number in range(100):
        of.ask(f"long{number}", 100, 1_000, streamed=False)
    for number in range(3):
        of.ask(f"short{number}", 100, 1_000, streamed=False)
    read_now(of)
    of.wait(WINDOW_S - 0.1)
    for number in range(3):
        of.core.true_up(rid(f"short{number}"), LEAST_TOKENS)
        of.finish(f"short{number}")
    of.wait(1.0)
    assert pace(of)._best == float("inf")
    assert pace(of).slots < 100


def test_one_alone_shows_what_a_server_has_at_its_best() -> None:
    of = desk()
    crowd(of, 1, 0.2)
    assert pace(of)._best == pytest.approx(0.2)


def test_one_that_has_come_waits_for_another_to_be_judged_with() -> None:
    of = desk()
    pool = of.core.books.pools[GPU0]
    for number in range(2 * FEW):
        of.ask(f"r{number}", 100, 1_000, streamed=False)
    read_now(of)
    for number in range(2):
        of.wait(WINDOW_S - 0.1 - 0.1 * number)
        of.core.true_up(rid(f"r{number}"), LEAST_TOKENS)
        of.finish(f"r{number}")
        of.wait(0.2)
        assert len(pool.whole) == (1 if number == 0 else 0)


@pytest.mark.parametrize(
    "why", ["short", "stood still", "failed", "streamed", "never read", "compiled"]
)
def test_of_these_nothing_is_learned(why) -> None:
    of = desk()
    pool = of.core.books.pools[GPU0]
    grammar = Grammar(1, 2.0) if why == "compiled" else None  # in what of its time nobody knows
    prompt = 100 if why != "never read" else 900_000
    of.ask("one", prompt, 1_000, streamed=why == "streamed", grammar=grammar)
    if why == "streamed":
        of.first_token("one")
    elif why == "compiled":
        of.wait(2.2)
    elif why != "never read":
        read_now(of)
    of.now += 2.0
    if why == "stood still":
        of.core.stood_still(1.0)
    of.core.true_up(rid("one"), TOKENS if why != "short" else LEAST_TOKENS - 1)
    ends = Outcome.FAILED if why == "failed" else Outcome.COMPLETED
    of.take(of.core.settle(rid("one"), ends, of.now))
    assert pool.whole == []


def test_where_no_window_would_judge_them_none_are_kept() -> None:
    of = desk(PoolLimits(kv_tokens=10**7, prefill_tokens=10**6))
    crowd(of, 20, 0.05)
    assert of.core.books.pools[GPU0].whole == []


def test_what_runs_is_taken_to_grow_as_those_that_have_come_and_a_quarter_faster() -> None:
    """How much is in the pool decides what else goes there: at 60 tokens a second it was taken to be 20."""
    of = desk()
    crowd(of, 20, 1 / 60, turns=20)
    assert pace(of).tokens_per_s == pytest.approx(60, rel=0.1)
    of.ask("runs", 100, 5_000, streamed=False)
    read_now(of)
    of.wait(10 * WINDOW_S)
    hold = of.core.books.pools[GPU0].ledger.holds[rid("runs")]
    seconds = 10 * WINDOW_S
    assert hold.generated == pytest.approx(UNSEEN * 60 * seconds, rel=0.2)
