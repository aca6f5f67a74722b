"""Ways to be forgotten: each test is one way a waiting request could wait for ever, or a pool idle.

Virtual time, deterministic. "Service" is KV tokens of requests that started after the one that
waits. Whoever fits the limits of an open pool starts after a bounded amount of it.
"""

from __future__ import annotations

from gateway.core.model import ClientRule, Outcome, PoolLimits, QueueRule, Refusal
from tests.core.desk import GPU0, GPU1, Desk, rid

LONG = QueueRule(max_requests=10_000, max_wait_s=1e9)


def test_a_request_blocked_on_one_pool_does_not_hide_one_blocked_on_another() -> None:
    """Only the first blocked request would be counted; the second would starve on its own pool."""
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000), gpu1=PoolLimits(kv_tokens=1_000))
    desk.ask("long", 898, 1, client="a", to=(GPU0,))
    desk.ask("stuck", 798, 1, client="b", to=(GPU0,))
    desk.ask("c", 98, 1, client="c", to=(GPU1,))
    desk.ask("big", 948, 1, client="d", to=(GPU1,))
    assert desk.waiting == ["stuck", "big"]
    last, served = "c", 0
    while "big" not in desk.started and served < 5_000:
        # the next one comes before the last one ends: the pool is never empty
        desk.ask(f"c{served}", 98, 1, client="c", to=(GPU1,))
        desk.finish(last)
        last, served = f"c{served}", served + 100
        if last not in desk.running:
            break
    desk.finish(*[name for name in desk.running if name.startswith("c")])
    assert "big" in desk.started
    assert served <= 1_000 + 200
    assert "stuck" in desk.waiting


def test_a_clients_own_small_requests_do_not_starve_its_big_one_under_the_share() -> None:
    """b's big one is over its share while b holds anything, and b's small ones go on for ever."""
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("other", 8, 1, client="a")
    desk.ask("b", 48, 1, client="b")
    desk.ask("big", 698, 1, client="b")
    assert desk.waiting == ["big"]
    desk.ask("bx", 48, 1, client="b")
    desk.finish("b")
    for i in range(60):
        desk.ask(f"b{i}", 48, 1, client="b")
        running = [name for name in desk.running if name not in {"other", f"b{i}"}]
        desk.finish(*running)
        if "big" in desk.started:
            break
    assert "big" in desk.started
    assert desk.order.index("big") <= 2 + 1_000 // 50 + 2


def test_a_clients_own_small_requests_do_not_starve_its_big_one_under_its_quota() -> None:
    rule = ClientRule("b", max_held_tokens=600)
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=10_000))
    desk.ask("b", 48, 1, client=rule)
    desk.ask("big", 578, 1, client=rule)
    assert desk.waiting == ["big"]
    last = "b"
    for i in range(400):
        desk.ask(f"b{i}", 48, 1, client=rule)
        if last in desk.running:
            desk.finish(last)
        last = f"b{i}"
        if "big" in desk.started:
            break
    assert "big" in desk.started
    assert desk.order.index("big") <= 2 + 600 // 50 + 2, (
        "one quota-full of service, not a pool-full"
    )


def test_a_fence_beyond_the_look_ahead_does_not_idle_the_pool() -> None:
    """Requests the engine pushed back go before the fenced one in its line: it must stay in sight."""
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    rule = ClientRule("a", weight=10)
    desk.ask("held", 498, 1, client="z")
    desk.ask("other", 88, 1, client="y")
    for i in range(70):
        desk.ask(f"s{i}", 1, 1, client=rule)
    desk.ask("big", 598, 1, client=rule)
    for i in range(120):
        desk.ask(f"t{i}", 8, 1, client="y")
        if f"t{i}" in desk.running:
            desk.finish(f"t{i}")
    assert desk.core.books.pools[GPU0].fence == rid("big")
    for i in range(70):
        desk.take(desk.core.requeue(rid(f"s{i}"), desk.now, 1.0))
    desk.finish("held", "other")
    desk.wait(2.0)
    assert desk.kv() > 0, "an empty pool with 71 requests waiting for it"


def test_one_request_fences_one_pool() -> None:
    """A request runs on one pool: emptying two for it would idle half of the box."""
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000), gpu1=PoolLimits(kv_tokens=1_000))
    both = (GPU0, GPU1)
    desk.ask("k0", 298, 1, client="z", to=(GPU0,))
    desk.ask("k1", 298, 1, client="z", to=(GPU1,))
    desk.ask("big", 898, 1, client="a", to=both)
    for i in range(60):
        desk.ask(f"t{i}", 98, 1, client="c", to=both)
        if f"t{i}" in desk.running:
            desk.finish(f"t{i}")
    fenced = [p for p in both if desk.core.books.pools[p].fence == rid("big")]
    assert len(fenced) == 1
    desk.finish("k1" if fenced == [GPU1] else "k0")
    assert "big" in desk.started


def test_what_a_refused_arrival_finds_due_starts_whoever_fits() -> None:
    """The timer is consumed by the arrival; nobody would come back for the room it made."""
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("gone", 898, 1)
    desk.ask("next", 898, 1)
    desk.take(desk.core.abandon(rid("gone"), Outcome.CANCELLED, desk.now, 5.0))
    desk.now = 5.0
    desk.ask("never", 5_000, 1)
    assert "never" in desk.refused
    assert "next" in desk.started


def test_a_cancel_that_comes_too_late_still_starts_whoever_fits() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("gone", 898, 1)
    desk.ask("next", 898, 1)
    desk.take(desk.core.abandon(rid("gone"), Outcome.CANCELLED, desk.now, 5.0))
    desk.now = 5.0
    desk.take(desk.core.cancel(rid("unknown"), desk.now))
    assert "next" in desk.started


def test_a_client_that_may_not_wait_still_runs_where_there_is_room() -> None:
    rule = ClientRule("a", max_waiting=0)
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("one", 398, 1, client=rule)
    desk.ask("two", 398, 1, client=rule)
    assert set(desk.running) == {"one", "two"}
    desk.ask("three", 398, 1, client=rule)
    assert desk.refused["three"].code == "client_limit"
    desk.finish("one", "two")
    assert desk.at_rest()


def test_a_client_that_may_not_wait_never_waits() -> None:
    rule = ClientRule("b", max_waiting=0)
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("one", 898, 1, client="a")
    desk.ask("two", 398, 1, client=rule)
    assert desk.refused["two"].code == "client_limit"
    assert desk.waiting == []


def test_alone_on_a_pool_means_all_of_it_whoever_works_elsewhere() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000), gpu1=PoolLimits(kv_tokens=1_000))
    desk.ask("far", 98, 1, client="a", to=(GPU0,))
    for i in range(9):
        desk.ask(f"b{i}", 98, 1, client="b", to=(GPU1,))
    assert desk.waiting == []
    assert desk.kv(GPU1) == 900


def test_an_arrival_that_can_never_wait_here_sheds_nobody_else() -> None:
    """A body over the whole bound would push out every longer line, then go itself."""
    desk = Desk(QueueRule(max_bytes=1_000), gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("run", 898, 1)
    for i in range(4):
        desk.ask(f"w{i}", 898, 1, client="a", body=100)
    desk.ask("giant", 898, 1, client="b", body=1_001)
    assert set(desk.refused) == {"giant"}


def test_a_refusal_after_a_night_of_silence_has_a_number() -> None:
    """The decayed rate goes to nothing: its reciprocal must not."""
    bad = []
    for hours in [x / 10 for x in range(1, 120)]:
        desk = Desk(QueueRule(max_requests=1), gpu0=PoolLimits(kv_tokens=100_000))
        desk.ask("one", 98, 1)
        desk.finish("one")
        desk.now = hours * 3_600
        desk.ask("run", 99_998, 0)
        desk.ask("wait", 9_998, 1)
        desk.ask("shed", 9_998, 1)
        refusal: Refusal = desk.refused["shed"]
        assert refusal.retry_after_s is not None
        if not 1 <= refusal.retry_after_s <= 60 or (refusal.eta_s or 0) > 1e6:
            bad.append((hours, refusal.retry_after_s, refusal.eta_s))
    assert not bad


def test_the_newest_rule_of_a_client_holds_when_an_old_request_comes_back() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("old", 98, 1, client=ClientRule("a", weight=1))
    desk.ask("new", 98, 1, client=ClientRule("a", weight=5))
    desk.take(desk.core.requeue(rid("old"), desk.now, 1.0))
    assert desk.core.books.flows["a"].rule.weight == 5


def fenced(rule: ClientRule) -> Desk:
    """gpu0 fenced for "big" of 900 tokens behind "held" of 500; gpu1 empty."""
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000), gpu1=PoolLimits(kv_tokens=1_000))
    desk.ask("held", 498, 1, client="z", to=(GPU0,))
    desk.ask("big", 898, 1, client=rule, to=(GPU0,))
    for i in range(11):
        desk.ask(f"t{i}", 98, 1, client="c", to=(GPU0,))
        if f"t{i}" in desk.running:
            desk.finish(f"t{i}")
    assert desk.core.books.pools[GPU0].fence == rid("big")
    return desk


def test_a_fence_for_one_whom_its_own_client_holds_back_is_lifted() -> None:
    desk = fenced(ClientRule("a", max_inflight=1))
    desk.ask("elsewhere", 98, 1, client=ClientRule("a", max_inflight=1), to=(GPU1,))
    assert "elsewhere" in desk.running
    desk.ask("other", 98, 1, client="c", to=(GPU0,))
    assert "other" in desk.running
    assert desk.core.books.pools[GPU0].fence is None


def test_a_fence_does_not_break_a_pause() -> None:
    desk = fenced(ClientRule("a"))
    desk.take(desk.core.requeue(rid("held"), desk.now, 2.0))
    assert "big" not in desk.running
    desk.wait(2.0)
    assert "big" in desk.running


def test_siblings_on_another_server_do_not_use_up_the_quota_of_one_for_ever() -> None:
    rule = ClientRule("b", max_held_tokens=600)
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000), gpu1=PoolLimits(kv_tokens=1_000))
    desk.ask("b", 48, 1, client=rule, to=(GPU1,))
    desk.ask("big", 578, 1, client=rule, to=(GPU0,))
    assert desk.waiting == ["big"]
    last = "b"
    for i in range(30):
        desk.ask(f"b{i}", 48, 1, client=rule, to=(GPU1,))
        if last in desk.running:
            desk.finish(last)
        last = f"b{i}"
    assert "big" in desk.started


def test_closing_a_pool_lifts_its_fence() -> None:
    """Its owner may wait for a server that never comes back; the mark must not outlive the wait."""
    desk = fenced(ClientRule("a"))
    desk.take(desk.core.set_open(GPU0, desk.now, is_open=False))
    assert desk.core.books.pools[GPU0].fence is None


def test_a_line_for_a_closed_server_does_not_hide_work_for_an_open_one() -> None:
    desk = Desk(LONG, gpu0=PoolLimits(kv_tokens=1_000), gpu1=PoolLimits(kv_tokens=1_000))
    desk.ask("full", 998, 1, to=(GPU1,))
    for i in range(64):
        desk.ask(f"r{i}", 998, 1, to=(GPU1,))
    desk.ask("free", 98, 1, to=(GPU0,))
    assert "free" in desk.running
