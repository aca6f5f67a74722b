"""Stories: what arrives, who runs, who waits, who goes, and with what numbers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from gateway.core.model import (
    ClientRule,
    Code,
    Ended,
    Granted,
    Lingering,
    Outcome,
    PoolLimits,
    Queued,
    QueueRule,
    Refused,
    Release,
    Released,
    Resized,
)
from gateway.core.sums import LedgerError
from tests.core.desk import GPU0, GPU1, Desk, rid

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = PoolLimits(kv_tokens=1_000)


# ---- the stories -------------------------------------------------------------------------------


def test_three_agents_do_not_kill_the_card() -> None:
    """A: 3 × 19,000 without a cap on 67,375 tokens. Two fit with 8,192 each; the third when one
    turned out short, long before its cap."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=67_375, context=69_632, max_output=16_384))
    for name in ("one", "two", "three"):
        desk.ask(name, 19_000, None)
    assert list(desk.running) == ["one", "two"]
    assert desk.waiting == ["three"]
    grant = desk.running["one"]
    assert (grant.demand.cap, grant.demand.kv, grant.injected) == (8_192, 27_193, True)
    assert desk.kv() == 2 * 27_193 <= 67_375
    desk.now = 30.0
    desk.finish("two")
    assert desk.started["three"] == 30.0
    assert desk.running["three"].queued_s == 30.0


def test_the_fix_of_that_box_still_does_not_fit_three() -> None:
    """3 × 16,384 < 67,375 forgets the prompts: 3 × 35,385 is 106,155."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=67_375, context=69_632))
    for name in ("one", "two", "three"):
        desk.ask(name, 19_000, 16_384)
    assert list(desk.running) == ["one"]
    assert desk.running["one"].clamped_from is None


def test_four_chats_that_fit_alone_run_one_by_one() -> None:
    """D03: each fits, the sum does not."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=16_384))
    for i in range(4):
        desk.ask(f"r{i}", 2_000, 8_000)
    for i in range(4):
        assert list(desk.running) == [f"r{i}"]
        desk.finish(f"r{i}")
    assert desk.at_rest()


def test_long_prompts_prefill_one_after_another() -> None:
    """C01: room for all three in the pool; each starts at the first token of the one before."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=200_000, prefill_tokens=32_768))
    for i in range(3):
        desk.ask(f"r{i}", 30_000, 1_000)
    assert list(desk.running) == ["r0"]
    desk.first_token("r0")
    assert list(desk.running) == ["r0", "r1"]
    desk.first_token("r0")  # said twice changes nothing
    assert list(desk.running) == ["r0", "r1"]
    desk.first_token("r1")
    assert desk.kv() == 3 * 31_001


def test_a_shared_prefix_is_reserved_in_full_each_time() -> None:
    """C06: no discount for a hoped-for cache hit, in the pool or in prefill."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=200_000, prefill_tokens=20_000))
    desk.ask("first", 13_647, 100)
    desk.first_token("first")
    for i in range(3):
        desk.ask(f"r{i}", 13_648, 100)
    assert (desk.kv(), desk.prefill()) == (13_748 + 13_749, 13_648)
    desk.finish("r0")  # ended before any token was seen: its prefill share comes back too
    assert desk.prefill() == 13_648
    assert "r1" in desk.running


def test_small_ones_pass_a_large_one_and_it_still_starts() -> None:
    """B04: ten small ones start at once; the trickle passes it by one pool-full, no more."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000))
    desk.ask("running", 49_000, 999, client="a")
    desk.ask("large", 59_000, 999, client="b")
    for i in range(10):
        desk.ask(f"s{i}", 1_900, 99, client="c")
    assert len(desk.running) == 11
    passed = 10 * 2_000
    i = 10
    while "large" in desk.waiting and i < 500:
        desk.ask(f"s{i}", 1_900, 99, client="c")
        passed += 2_000 if f"s{i}" in desk.running else 0
        desk.finish(next(n for n in desk.running if n[0] == "s"))
        i += 1
        if desk.core.books.pools[GPU0].fence is not None:
            break
    assert desk.core.books.pools[GPU0].fence == rid("large")
    assert 100_000 <= passed <= 102_000
    desk.ask("late", 1, 1, client="d")
    assert "late" in desk.waiting, "behind a fence even what fits waits"
    desk.finish("running")
    assert "large" in desk.running
    assert "late" in desk.running, "the fence is gone with its request"


def test_a_hundred_arrivals_in_one_tick() -> None:
    """N01: five run, eight wait, eighty-seven are told when to come back."""
    desk = Desk(QueueRule(max_requests=8), gpu0=PoolLimits(kv_tokens=5 * 1_000))
    for i in range(100):
        desk.ask(f"r{i}", 899, 100, client=f"c{i}")
    assert (len(desk.running), len(desk.waiting), len(desk.refused)) == (5, 8, 87)
    assert desk.waiting == [f"r{i}" for i in range(5, 13)]
    for refusal in desk.refused.values():
        assert refusal.code is Code.QUEUE_FULL
        assert (refusal.needed, refusal.available, refusal.position) == (1_000, 0, 9)
        assert refusal.retry_after_s is not None
        assert 1 <= refusal.retry_after_s <= 60
        assert "8 requests with 8000 tokens" in refusal.message
    desk.finish(*list(desk.running))
    assert list(desk.running) == [f"r{i}" for i in range(5, 10)]


def test_the_slots_of_a_server_bound_its_requests() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000, slots=10))
    for i in range(200):
        desk.ask(f"r{i}", 10, 10)
    assert len(desk.running) == 10


def test_page_rounding_over_a_big_batch() -> None:
    """D07: 65 tokens take two pages of 64, and each request one page more."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=6_400, page=64))
    for i in range(60):
        desk.ask(f"r{i}", 64, 1)
    assert len(desk.running) == 6_400 // (64 * 3)


# ---- the queue ---------------------------------------------------------------------------------


def test_what_can_never_fit_is_told_at_once_and_does_not_wait() -> None:
    """B06, and B01 without a queue in between."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=800))
    for i in range(5):
        desk.ask(f"r{i}", 1_002, 10)
    assert {r.code for r in desk.refused.values()} == {Code.CONTEXT_LENGTH_EXCEEDED}
    refusal = desk.refused["r0"]
    assert refusal.message == "needs 1008 tokens; the KV pool here is 800"
    assert (refusal.needed, refusal.available, refusal.retry_after_s) == (1_008, 800, None)
    assert desk.at_rest()


@pytest.mark.parametrize(
    ("rule", "waits"),
    [
        (QueueRule(max_requests=10), 10),
        (QueueRule(max_tokens=10_000), 10),
        (QueueRule(max_bytes=10_000_000), 10),  # G12
    ],
)
def test_each_bound_of_the_queue_sheds(rule, waits) -> None:
    desk = Desk(rule, gpu0=SMALL)
    desk.ask("running", 998, 1)
    for i in range(30):
        desk.ask(f"r{i}", 998, 1, body=1_000_000)
    assert len(desk.waiting) == waits
    assert {r.code for r in desk.refused.values()} == {Code.QUEUE_FULL}
    queue = desk.core.view(desk.now).queue
    assert (queue.requests, queue.tokens, queue.bytes) == (10, 10_000, 10_000_000)
    while desk.running:
        desk.finish(*list(desk.running))
    assert desk.at_rest()


def test_the_longest_line_gives_way_its_newest_first() -> None:
    desk = Desk(QueueRule(max_requests=4), gpu0=SMALL)
    desk.ask("running", 998, 1, client="a")
    for i in range(4):
        desk.ask(f"a{i}", 998, 1, client="a")
    desk.ask("b0", 998, 1, client="b")
    assert set(desk.refused) == {"a3"}
    assert desk.waiting == ["a0", "a1", "a2", "b0"]
    desk.ask("b1", 998, 1, client="b")
    assert set(desk.refused) == {"a3", "a2"}
    desk.ask("b2", 998, 1, client="b")
    assert set(desk.refused) == {"a3", "a2", "b2"}, "among equals the newcomer"


def test_one_who_was_shed_had_waited_and_one_who_was_refused_had_not() -> None:
    desk = Desk(QueueRule(max_requests=1), gpu0=SMALL)
    desk.ask("running", 998, 1, client="a")
    desk.ask("a0", 998, 1, client=ClientRule("a", weight=0.5))
    desk.now = 3.0
    shed, queued = desk.ask("b0", 998, 1, client="b")
    assert isinstance(shed, Refused)
    assert (shed.id, shed.queued_s) == ("a0", 3.0)
    assert queued == Queued(rid("b0"), 1, 1_000)
    (refused,) = desk.ask("b1", 998, 1, client="b")
    assert isinstance(refused, Refused)
    assert refused.queued_s is None


def test_a_client_may_have_only_so_many_waiting() -> None:
    rule = ClientRule("a", max_waiting=2)
    desk = Desk(gpu0=SMALL)
    for i in range(5):
        desk.ask(f"r{i}", 998, 1, client=rule)
    assert set(desk.refused) == {"r3", "r4"}
    assert desk.refused["r3"].code is Code.CLIENT_LIMIT
    assert desk.refused["r3"].message == "client 'a' has 2 requests waiting, its limit"


def test_an_id_at_the_gate_cannot_come_twice() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("running", 998, 1)
    desk.ask("waiting", 998, 1)
    for name in ("running", "waiting"):
        with pytest.raises(LedgerError, match="at the gate already"):
            desk.ask(name)
    desk.finish("running", "waiting")
    desk.ask("running")
    assert "running" in desk.running


def test_leaving_the_queue_lets_the_next_one_in() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("running", 498, 1, client="a")
    desk.ask("large", 998, 1, client="b")
    got = desk.take(desk.core.cancel(rid("large"), desk.now))
    assert got == [Ended(rid("large"), Outcome.CANCELLED)]
    assert desk.take(desk.core.cancel(rid("large"), desk.now)) == []
    assert desk.take(desk.core.cancel(rid("running"), desk.now)) == []
    assert "running" in desk.running


# ---- ends --------------------------------------------------------------------------------------


def test_a_request_ends_once() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("r")
    got = desk.take(desk.core.settle(rid("r"), Outcome.COMPLETED, desk.now))
    assert [type(t) for t in got] == [Released, Ended]
    for again in (
        lambda: desk.core.settle(rid("r"), Outcome.FAILED, desk.now),
        lambda: desk.core.abandon(rid("r"), Outcome.FAILED, desk.now, 1.0),
        lambda: desk.core.requeue(rid("r"), desk.now, 1.0),
    ):
        with pytest.raises(LedgerError, match="holds nothing to"):
            again()
    assert desk.at_rest()


@pytest.mark.parametrize("confirmed", [True, False])
def test_an_abandoned_request_holds_until_confirmed_or_its_grace_ended(confirmed) -> None:
    """C12: the client is gone, the engine may still be at it."""
    desk = Desk(gpu0=SMALL)
    desk.ask("gone", 998, 1)
    desk.ask("next", 998, 1)
    got = desk.take(desk.core.abandon(rid("gone"), Outcome.CANCELLED, desk.now, 4.0))
    assert got == [Ended(rid("gone"), Outcome.CANCELLED), Lingering(rid("gone"), GPU0, 4.0)]
    assert desk.core.view(desk.now).pools[0].lingering == 1_000
    desk.wait(3.9)
    assert "next" in desk.waiting
    if confirmed:
        desk.take(desk.core.confirm(rid("gone"), desk.now))
    else:
        assert desk.core.next_wakeup() == 4.0
        desk.wait(0.1)
    why = Release.CONFIRMED if confirmed else Release.GRACE
    assert desk.released == [("gone", why)]
    assert desk.started["next"] == pytest.approx(3.9 if confirmed else 4.0)
    assert desk.take(desk.core.confirm(rid("gone"), desk.now)) == []
    desk.finish("next")
    desk.wait(1_000)
    assert desk.at_rest()


def test_the_grace_of_an_earlier_life_does_not_end_a_later_one() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("r")
    desk.take(desk.core.abandon(rid("r"), Outcome.CANCELLED, desk.now, 4.0))
    desk.take(desk.core.confirm(rid("r"), desk.now))
    desk.ask("r")
    desk.wait(5.0)
    assert desk.kv() == 21


def test_when_a_server_dies_its_reservations_go_and_its_requests_end_once() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("one", 398, 1)
    desk.ask("two", 398, 1)
    desk.take(desk.core.abandon(rid("two"), Outcome.CANCELLED, desk.now, 9.0))
    desk.ask("next", 998, 1)
    desk.take(desk.core.set_open(GPU0, desk.now, is_open=False))
    got = desk.take(desk.core.void(GPU0, desk.now))
    assert [(t.id, t.why) for t in got if isinstance(t, Released)] == [
        ("one", Release.VOIDED),
        ("two", Release.VOIDED),
    ]
    assert desk.kv() == 0
    assert not desk.core.books.knows(rid("two")), "it had ended: nobody will ask for it again"
    assert "next" in desk.waiting, "nothing starts on a closed pool"
    got = desk.take(desk.core.settle(rid("one"), Outcome.FAILED, desk.now))
    assert got == [Ended(rid("one"), Outcome.FAILED)]
    desk.take(desk.core.set_open(GPU0, desk.now, is_open=True))
    assert "next" in desk.running
    desk.wait(20.0)  # the stale grace of "two" does nothing
    desk.finish("next")
    assert desk.at_rest()


def test_a_voided_request_may_be_tried_elsewhere() -> None:
    desk = Desk(gpu0=SMALL, gpu1=SMALL)
    desk.ask("r", 398, 1, to=(GPU0, GPU1))
    desk.take(desk.core.set_open(GPU0, desk.now, is_open=False))
    desk.take(desk.core.void(GPU0, desk.now))
    desk.take(desk.core.requeue(rid("r"), desk.now, 5.0))
    assert desk.running["r"].pool == GPU1
    assert desk.core.books.pools[GPU0].paused_until == 0.0, "a dead server did not push back"


# ---- push-back ---------------------------------------------------------------------------------


def test_a_request_the_engine_pushed_back_keeps_its_place() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("first", 598, 1)
    desk.ask("second", 598, 1)
    desk.ask("third", 598, 1)
    desk.now = 1.0
    desk.take(desk.core.requeue(rid("first"), desk.now, 2.0))
    assert desk.released == [("first", Release.REQUEUED)]
    assert desk.waiting == ["first", "second", "third"]
    assert desk.core.next_wakeup() == 3.0
    desk.wait(1.9)
    assert desk.running == {}, "told to be full, nothing starts there for a while"
    desk.wait(0.1)
    assert list(desk.running) == ["first"]
    assert desk.running["first"].queued_s == pytest.approx(3.0)


def test_pushing_back_for_ever_ends_at_the_patience_of_the_first_arrival() -> None:
    desk = Desk(QueueRule(max_wait_s=10.0), gpu0=SMALL)
    desk.ask("r", 598, 1)
    for _ in range(30):
        if "r" not in desk.running:
            break
        desk.take(desk.core.requeue(rid("r"), desk.now, 1.0))
        desk.wait(1.0)
    assert desk.refused["r"].code is Code.QUEUE_TIMEOUT
    assert desk.now == 10.0
    assert desk.at_rest()


def test_a_push_back_is_judged_by_the_limits_of_now() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("r", 798, 1)
    desk.pool("gpu0", PoolLimits(kv_tokens=500))
    desk.take(desk.core.requeue(rid("r"), desk.now, 1.0))
    assert desk.refused["r"].code is Code.CONTEXT_LENGTH_EXCEEDED
    desk.wait(1.0)
    assert desk.at_rest()


# ---- limits that change ------------------------------------------------------------------------


def test_a_smaller_pool_refuses_what_can_never_fit_and_lets_holders_finish() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("holder", 898, 1)
    desk.ask("large", 798, 1)
    desk.ask("small", 398, 1)
    before = desk.core.books.pools[GPU0].ledger.limits
    after = PoolLimits(kv_tokens=500)
    got = desk.take(desk.core.resize(GPU0, after, desk.now))
    assert got[0] == Resized(GPU0, before, after)
    assert desk.refused["large"].code is Code.CONTEXT_LENGTH_EXCEEDED
    assert desk.waiting == ["small"]
    assert "holder" in desk.running
    desk.finish("holder")
    assert list(desk.running) == ["small"]


def test_a_larger_pool_starts_who_waits_and_raises_what_they_may_generate() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("holder", 898, 1)
    desk.ask("r", 498, 2_000)
    desk.pool("gpu0", PoolLimits(kv_tokens=10_000))
    assert desk.running["r"].demand.cap == 2_000


def test_drain_refuses_who_waits_and_lets_who_runs_finish() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("one", 598, 1)
    desk.ask("two", 598, 1)
    desk.take(desk.core.drain(desk.now))
    desk.ask("three", 1, 1)
    assert {n: r.code for n, r in desk.refused.items()} == {
        "two": Code.DRAINING,
        "three": Code.DRAINING,
    }
    desk.take(desk.core.requeue(rid("one"), desk.now, 1.0))
    assert desk.refused["one"].code is Code.DRAINING
    for refusal in desk.refused.values():
        assert (refusal.position, refusal.available, refusal.eta_s) == (None, None, None)
        assert refusal.retry_after_s == 5
    assert desk.at_rest()


def test_no_server_is_not_the_fault_of_the_request() -> None:
    desk = Desk()
    desk.ask("unknown")
    desk.take(desk.core.resize(GPU0, SMALL, desk.now))
    desk.ask("closed")
    assert {r.code for r in desk.refused.values()} == {Code.NO_BACKEND}
    desk.ask("giant", 5_000, 1)
    assert desk.refused["giant"].code is Code.CONTEXT_LENGTH_EXCEEDED


# ---- several pools -----------------------------------------------------------------------------


def test_the_least_loaded_share_wins_and_a_full_pool_is_not_asked() -> None:
    """N04, N06, N12."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=1_000), gpu1=PoolLimits(kv_tokens=10_000))
    both = (GPU0, GPU1)
    desk.ask("a", 398, 1, to=both)
    desk.ask("b", 398, 1, to=both)
    desk.ask("c", 398, 1, to=both)
    assert [desk.running[n].pool for n in "abc"] == [GPU0, GPU1, GPU1]
    desk.take(desk.core.set_open(GPU1, desk.now, is_open=False))
    desk.ask("d", 398, 1, to=both)
    desk.ask("e", 398, 1, to=both)
    assert desk.running["d"].pool == GPU0
    assert desk.waiting == ["e"], "one place, one of the two"


def test_a_request_gets_the_cap_of_the_pool_it_runs_on() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=1_000), gpu1=PoolLimits(kv_tokens=2_000))
    desk.ask("z", 998, 1, to=(GPU0,))
    desk.ask("r", 500, 32_000, to=(GPU0, GPU1))
    grant = desk.running["r"]
    assert (grant.pool, grant.demand.cap, grant.clamped_from) == (GPU1, 1_499, 32_000)


# ---- time --------------------------------------------------------------------------------------


# 998 tokens of prompt take about 1.05 s where nothing was measured yet.
@pytest.mark.parametrize(("deadline", "ends"), [(None, 120.0), (30.0, 28.952), (500.0, 120.0)])
def test_waiting_ends_at_the_sooner_of_queue_and_deadline(deadline, ends) -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("running", 998, 1)
    desk.ask("r", 998, 1, deadline=deadline)
    assert desk.core.next_wakeup() == pytest.approx(ends)
    desk.wait(ends - 0.01)
    assert desk.waiting == ["r"]
    desk.wait(0.01)
    in_time = deadline is None or deadline > 120.0
    late = Code.QUEUE_TIMEOUT if in_time else Code.DEADLINE_UNREACHABLE
    assert desk.refused["r"].code is late
    assert desk.core.next_wakeup() is None


def test_a_prompt_whose_first_token_nobody_sees_is_prefilled_by_estimate() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000, prefill_tokens=4_000))
    desk.ask("plain", 3_000, 10, streamed=False)
    desk.ask("next", 3_000, 10)
    assert desk.core.next_wakeup() == 3.0, "3,000 tokens at the assumed 1,000 a second"
    desk.wait(2.9)
    assert desk.waiting == ["next"]
    desk.wait(0.1)
    assert "next" in desk.running


def test_a_stream_shows_that_plain_requests_before_it_are_prefilled_too() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000, prefill_tokens=10_000))
    desk.ask("plain", 3_000, 10, streamed=False)
    desk.now = 0.5
    desk.ask("stream", 3_000, 10)
    desk.ask("after", 3_000, 10, streamed=False)
    desk.now = 1.0
    desk.first_token("stream")
    assert desk.prefill() == 3_000, "'after' is still at it"


def test_the_prefill_rate_is_learnt_from_streams() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000))
    for i in range(40):
        desk.ask(f"s{i}", 1_000, 10)
        desk.now += 0.2
        desk.first_token(f"s{i}")
        desk.finish(f"s{i}")
    desk.ask("plain", 10_000, 10, streamed=False)
    wake = desk.core.next_wakeup()
    assert wake is not None
    assert wake - desk.now == pytest.approx(2.0, rel=0.01)


def test_a_timer_of_an_earlier_try_does_not_touch_the_next_one() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000))
    desk.ask("plain", 3_000, 10, streamed=False)  # estimate due at 3
    desk.now = 2.0
    desk.take(desk.core.requeue(rid("plain"), desk.now, 0.5))
    desk.wait(0.5)
    assert "plain" in desk.running
    desk.wait(1.0)  # past the first estimate
    assert desk.prefill() == 3_000
    desk.wait(2.0)  # 3 s after its second start
    assert desk.prefill() == 0


def test_a_grant_says_what_became_of_the_cap() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000, max_output=4_096, default_output=512))
    desk.ask("none", 10, None)
    desk.ask("much", 10, 32_000)
    desk.ask("little", 10, 100)
    told = {n: (g.demand.cap, g.clamped_from, g.injected) for n, g in desk.running.items()}
    assert told == {
        "none": (512, None, True),
        "much": (4_096, 32_000, False),
        "little": (100, None, False),
    }


def test_progress_is_what_the_view_calls_used() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("r", 100, 500)
    desk.core.true_up(rid("r"), 7)
    assert desk.core.view(0.0).pools[0].kv.used == 0
    desk.first_token("r")
    desk.core.true_up(rid("r"), 50)
    desk.core.true_up(rid("r"), 20)  # never backwards
    kv = desk.core.view(0.0).pools[0].kv
    assert (kv.limit, kv.reserved, kv.used) == (1_000, 601, 150)
    desk.core.true_up(rid("gone"), 1)


def test_a_view_counts_clients_and_the_oldest() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("a", 998, 1, client="a")
    desk.now = 5.0
    desk.ask("b", 998, 1, client="b")
    desk.now = 9.0
    view = desk.core.view(desk.now)
    assert [(c.name, c.held_tokens, c.inflight, c.waiting) for c in view.clients] == [
        ("a", 1_000, 1, 0),
        ("b", 0, 0, 1),
    ]
    assert view.queue.oldest_s == 4.0


def test_a_grant_is_in_the_ledger_before_it_is_told() -> None:
    desk = Desk(gpu0=SMALL)
    (granted,) = desk.ask("r")
    assert isinstance(granted, Granted)
    hold = desk.core.books.pools[GPU0].ledger.holds[rid("r")]
    assert hold.demand is granted.grant.demand


def test_a_quota_caps_a_single_request_and_refuses_what_it_can_never_hold() -> None:
    rule = ClientRule("a", max_held_tokens=600)
    desk = Desk(gpu0=SMALL)
    desk.ask("fits", 100, 32_000, client=rule)
    assert desk.running["fits"].demand.kv == 600
    desk.ask("never", 700, 100, client=rule)
    assert desk.refused["never"].code is Code.CONTEXT_LENGTH_EXCEEDED
    assert "client's share of the KV pool" in desk.refused["never"].message


def test_a_pool_is_forgotten_only_when_no_request_names_it() -> None:
    """Holding there, waiting for it, or running elsewhere and able to be put back."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=1000), gpu1=PoolLimits(kv_tokens=1000))
    both = (GPU0, GPU1)

    def gone() -> bool:
        return desk.core.remove([GPU1])

    desk.ask("there", 100, 100, to=(GPU1,))
    assert not gone()
    desk.take(desk.core.set_open(GPU1, desk.now, is_open=False))
    desk.finish("there")
    desk.ask("waits", 900, 50, to=both)  # starts on the other
    desk.ask("waits too", 900, 50, to=both)
    assert desk.waiting == ["waits too"]
    desk.finish("waits")
    assert desk.waiting == []
    assert not gone(), "pushed back it could be waited for again"
    desk.finish("waits too")
    desk.take(desk.core.set_open(GPU0, desk.now, is_open=True))
    desk.ask("only there", 100, 100, to=(GPU1,))
    assert desk.refused["only there"].code is Code.NO_BACKEND
    desk.take(desk.core.set_open(GPU1, desk.now, is_open=True))
    desk.ask("first", 900, 50, to=(GPU1,))
    desk.ask("second", 900, 50, to=(GPU1,))
    desk.take(desk.core.void(GPU1, desk.now))
    assert not gone()
    desk.finish("first", "second")
    assert gone()
    assert gone(), "twice is once"
    assert set(desk.core.books.pools) == {GPU0}
    desk.ask("late", 10, 10, to=both)
    assert desk.running["late"].pool == GPU0
    desk.finish("late")
    assert desk.at_rest()


def test_of_two_pools_none_is_forgotten_while_one_is_needed() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=1000), gpu1=PoolLimits(kv_tokens=1000))
    desk.ask("there", 100, 100, to=(GPU1,))
    desk.ask("waits", 900, 90, to=(GPU1,))
    assert not desk.core.remove([GPU0, GPU1])
    assert set(desk.core.books.pools) == {GPU0, GPU1}
    desk.take(desk.core.set_open(GPU1, desk.now, is_open=False))
    desk.finish("there")
    assert desk.waiting == ["waits"]
    assert not desk.core.remove([GPU1]), "somebody waits for it"


# ---- long queues -------------------------------------------------------------------------------


def calls_of(step: Callable[[], object]) -> int:
    """How many functions of Python's a step calls: what it costs, on any machine."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("clients", [1, 7])
def test_limits_that_change_look_once_at_each_that_waits(clients: int) -> None:
    """8,000 that waited held the loop for 7 s of processor time at each reload and each start of a server."""

    def calls(many: int) -> int:
        desk = Desk(QueueRule(max_requests=many), gpu0=SMALL)
        for number in range(many):
            desk.ask(str(number), 300, 300, client=f"c{number % clients}")
        assert desk.core.view(desk.now).queue.requests >= many - 2
        return calls_of(lambda: desk.core.resize(GPU0, SMALL, desk.now))

    assert calls(800) < 6 * calls(200)
