"""Adapters: no more of them at once than the server runs together, and none waits for ever."""

from __future__ import annotations

from gateway.core.model import Code, Outcome, PoolLimits, QueueRule
from tests.core.desk import GPU0, GPU1, Desk, rid

LIMITS = PoolLimits(1000, kinds=2)


def test_a_third_kind_waits_until_one_of_two_is_gone() -> None:
    desk = Desk(gpu0=LIMITS)
    desk.ask("base")
    desk.ask("poems", adapter="poems")
    desk.ask("sql", adapter="sql")
    desk.ask("more", adapter="poems")
    assert desk.waiting == ["sql"], "what runs already may be asked for again"
    desk.finish("poems")
    assert desk.waiting == ["sql"]
    desk.finish("more")
    assert "sql" in desk.running


def test_one_that_lingers_still_runs() -> None:
    desk = Desk(gpu0=LIMITS)
    desk.ask("base")
    desk.ask("poems", adapter="poems")
    desk.take(desk.core.abandon(rid("poems"), Outcome.CANCELLED, desk.now, 30.0))
    desk.ask("sql", adapter="sql")
    assert desk.waiting == ["sql"]
    desk.take(desk.core.confirm(rid("poems"), desk.now))
    assert "sql" in desk.running


def test_another_server_may_have_a_place() -> None:
    desk = Desk(gpu0=LIMITS, gpu1=LIMITS)
    for name in ("", "poems", "sql", "tests"):
        desk.ask(f"r{name}", adapter=name, to=(GPU0, GPU1))
    assert not desk.waiting


def test_two_that_never_end_do_not_keep_a_third_out_for_ever() -> None:
    """Each is passed by one pool-full of tokens, and then the pool is kept for it."""
    desk = Desk(QueueRule(max_wait_s=1e6), gpu0=LIMITS)
    desk.ask("base0", 90, 10, client="a")
    desk.ask("poems0", 90, 10, client="b", adapter="poems")
    desk.ask("sql", 90, 10, client="c", adapter="sql")
    for turn in range(1, 40):
        desk.ask(f"base{turn}", 90, 10, client="a")
        desk.ask(f"poems{turn}", 90, 10, client="b", adapter="poems")
        for name in (f"base{turn - 1}", f"poems{turn - 1}"):
            if name in desk.running:
                desk.finish(name)
    assert "sql" in desk.started
    assert desk.order.index("sql") < 16


def test_a_server_that_died_runs_none() -> None:
    desk = Desk(gpu0=LIMITS)
    desk.ask("base")
    desk.ask("poems", adapter="poems")
    desk.take(desk.core.void(GPU0, desk.now))
    desk.ask("sql", adapter="sql")
    assert "sql" in desk.running


def test_who_waits_for_a_place_is_told_so() -> None:
    desk = Desk(QueueRule(max_wait_s=5.0), gpu0=LIMITS)
    desk.ask("base")
    desk.ask("poems", adapter="poems")
    desk.ask("sql", adapter="sql")
    desk.wait(6.0)
    assert desk.refused["sql"].code is Code.QUEUE_TIMEOUT
    assert "adapter" in desk.refused["sql"].message


def test_who_lacks_a_place_does_not_keep_the_next_prefill() -> None:
    """It would not start when the prompts in prefill are in, so others may go meanwhile."""
    desk = Desk(gpu0=PoolLimits(1000, prefill_tokens=100, kinds=1))
    desk.ask("base", 90, client="a")
    desk.ask("sql", 90, client="b", adapter="sql")
    desk.ask("small", 10, client="c")
    assert desk.waiting == ["sql"]
