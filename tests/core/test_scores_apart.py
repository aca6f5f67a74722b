"""Scores and words on a server that ends where it runs both: never in one moment, and nobody waits for ever."""

from __future__ import annotations

from gateway.core.model import Code, Outcome, PoolLimits, QueueRule
from tests.core.desk import GPU0, GPU1, Desk, rid

APART = PoolLimits(1000, scores_apart=True)


def test_words_wait_for_the_scores_that_run() -> None:
    desk = Desk(gpu0=APART)
    desk.ask("score", scores=True)
    desk.ask("more", scores=True)
    desk.ask("chat")
    assert desk.waiting == ["chat"]
    desk.finish("score")
    assert desk.waiting == ["chat"]
    desk.finish("more")
    assert "chat" in desk.running


def test_scores_wait_for_words() -> None:
    desk = Desk(gpu0=APART)
    desk.ask("chat")
    desk.ask("score", scores=True)
    assert desk.waiting == ["score"]
    desk.finish("chat")
    assert "score" in desk.running


def test_what_lingers_still_runs() -> None:
    desk = Desk(gpu0=APART)
    desk.ask("score", scores=True)
    desk.take(desk.core.abandon(rid("score"), Outcome.CANCELLED, desk.now, 30.0))
    desk.ask("chat")
    assert desk.waiting == ["chat"]
    desk.take(desk.core.confirm(rid("score"), desk.now))
    assert "chat" in desk.running


def test_another_server_takes_the_other_sort() -> None:
    desk = Desk(gpu0=APART, gpu1=APART)
    desk.ask("score", scores=True, to=(GPU0, GPU1))
    desk.ask("chat", to=(GPU0, GPU1))
    assert not desk.waiting


def test_where_both_run_together_nobody_waits() -> None:
    desk = Desk(gpu0=PoolLimits(1000))
    desk.ask("score", scores=True)
    desk.ask("chat")
    assert not desk.waiting


def test_scores_that_never_end_do_not_keep_words_out_for_ever() -> None:
    """They pass by one pool-full of tokens, and then the pool is kept for who waits."""
    desk = Desk(QueueRule(max_wait_s=1e6), gpu0=APART)
    desk.ask("score0", 90, 10, client="a", scores=True)
    desk.ask("chat", 90, 10, client="b")
    for turn in range(1, 40):
        desk.ask(f"score{turn}", 90, 10, client="a", scores=True)
        if f"score{turn - 1}" in desk.running:
            desk.finish(f"score{turn - 1}")
    assert "chat" in desk.started
    assert desk.order.index("chat") < 16


def test_a_server_that_died_runs_nothing() -> None:
    desk = Desk(gpu0=APART)
    desk.ask("score", scores=True)
    desk.take(desk.core.void(GPU0, desk.now))
    desk.ask("chat")
    assert "chat" in desk.running


def test_who_waits_for_the_other_sort_is_told_so() -> None:
    desk = Desk(QueueRule(max_wait_s=5.0), gpu0=APART)
    desk.ask("score", scores=True)
    desk.ask("chat")
    desk.wait(6.0)
    assert desk.refused["chat"].code is Code.QUEUE_TIMEOUT
    assert "scores or words" in desk.refused["chat"].message
