"""Tokens per window: charged by what was used, whatever was expected."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model import ClientRule, Code, Outcome, PoolLimits, Quota, QuotaView, Release
from tests.core.desk import GPU0, Desk, rid

HOUR = ClientRule("a", quota=Quota(1000, 3600.0))


def desk(**limits: Any) -> Desk:
    return Desk(gpu0=PoolLimits(kv_tokens=100_000, useful_floor=1, **limits))


def end(one: Desk, name: str, generated: int, outcome: Outcome = Outcome.COMPLETED) -> None:
    one.core.true_up(rid(name), generated)
    one.take(one.core.settle(rid(name), outcome, one.now))


def test_what_was_used_is_charged_and_the_refusal_names_the_end_of_the_window() -> None:
    one = desk()
    one.now = 100.0
    one.ask("r1", 400, 500, client=HOUR)
    end(one, "r1", 200)
    assert one.core.meters.used("a") == 600
    one.now = 1000.0
    one.ask("r2", 300, 50, client=HOUR)
    end(one, "r2", 100)
    one.now = 1900.0
    one.ask("r3", 1, 1, client=HOUR)
    refusal = one.refused["r3"]
    assert refusal.code is Code.QUOTA_EXCEEDED
    assert (refusal.available, refusal.retry_after_s) == (0, 3600.0 - 1800.0)
    assert "1000 tokens used of your quota of 1000" in refusal.message
    one.now = 3700.0
    one.ask("r4", 1, 1, client=HOUR)
    assert "r4" in one.running
    assert one.core.meters.used("a") == 0


def test_what_is_under_way_counts_as_it_is_held_and_no_time_is_named() -> None:
    one = desk(slots=1)
    one.ask("r1", 400, 300, client=HOUR)
    one.ask("r2", 200, 150, client=HOUR)  # waits: 701 + 351 are promised
    one.ask("r3", 1, 1, client=HOUR)
    assert one.refused["r3"].code is Code.QUOTA_EXCEEDED
    assert one.refused["r3"].retry_after_s is None
    assert "under way" in one.refused["r3"].message
    end(one, "r1", 10)
    end(one, "r2", 10)
    one.ask("r4", 1, 1, client=HOUR)
    assert "r4" in one.running, "they took 620 and not 1,052"


def test_how_a_client_stands_is_told_without_opening_a_window() -> None:
    one = desk(slots=1)
    rules = [HOUR, ClientRule("b"), ClientRule("c", quota=Quota(50, 9.0))]
    fresh = [QuotaView("a", 0, 0, 1000, 3600.0, None), QuotaView("c", 0, 0, 50, 9.0, None)]
    assert one.core.quotas(rules, 5.0) == fresh
    one.now = 100.0
    one.ask("r1", 400, 300, client=HOUR)
    one.ask("r2", 100, 50, client=HOUR)  # waits
    assert one.core.quotas(rules, 100.0)[0] == QuotaView("a", 0, 701 + 151, 1000, 3600.0, 3600.0)
    end(one, "r1", 20)
    end(one, "r2", 0)
    assert one.core.quotas([HOUR], 700.0) == [QuotaView("a", 520, 0, 1000, 3600.0, 3000.0)]
    assert one.core.quotas([HOUR], 3700.0) == fresh[:1], "over; the next request opens another"
    one.now = 4000.0
    one.ask("r3", 1, 1, client=HOUR)
    assert one.core.quotas([HOUR], 4000.0)[0].left_s == 3600.0


def test_others_and_clients_without_a_quota_are_not_concerned() -> None:
    one = desk()
    one.ask("r1", 5000, 1, client=HOUR)  # larger than the quota: once a window, not never
    assert "r1" in one.running
    for index, client in enumerate([ClientRule("b"), ClientRule("c", quota=Quota(1, 9.0))]):
        one.ask(f"o{index}", 5000, 1, client=client)
        assert f"o{index}" in one.running


def test_what_never_reached_the_engine_or_died_with_it_costs_nothing() -> None:
    one = desk()
    one.ask("unsent", 400, 1, client=HOUR)
    one.take(one.core.settle(rid("unsent"), Outcome.CANCELLED, one.now, Release.UNSENT))
    one.ask("failed", 400, 1, client=HOUR)
    end(one, "failed", 0, Outcome.FAILED)
    one.ask("pushed", 400, 1, client=HOUR)
    one.take(one.core.requeue(rid("pushed"), one.now, 0.0))
    one.ask("died", 100, 1, client=HOUR)
    one.take(one.core.void(GPU0, one.now))
    assert one.core.meters.used("a") == 0


def test_who_hangs_up_pays_for_what_was_generated() -> None:
    one = desk()
    one.ask("r1", 400, 500, client=HOUR)
    one.core.true_up(rid("r1"), 250)
    one.take(one.core.abandon(rid("r1"), Outcome.CANCELLED, one.now, 15.0))
    one.take(one.core.confirm(rid("r1"), one.now))
    assert one.core.meters.used("a") == 650


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400), st.booleans()), max_size=60),
    st.integers(1, 3000),
)
def test_a_quota_is_passed_by_less_than_one_request(asks, tokens: int) -> None:
    """Where whole caps are promised: nothing comes out longer than expected."""
    one, rule = desk(), ClientRule("a", quota=Quota(tokens, 1e9))
    largest, generated = 0, {}
    for index, (prompt, cap, now) in enumerate(asks):
        name = f"r{index}"
        one.ask(name, prompt, cap, client=rule)
        if name in one.running:
            largest = max(largest, prompt + cap + 1)
            generated[name] = cap // 2
        if now:
            for earlier in list(one.running):
                end(one, earlier, generated[earlier])
    for earlier in list(one.running):
        end(one, earlier, generated[earlier])
    assert one.core.meters.used("a") < tokens + largest


def test_a_client_s_own_caps_narrow_those_of_the_pool() -> None:
    one = desk(default_output=50, max_output=300)
    for name, client, cap, got in [
        ("default", ClientRule("a", default_output=20), None, 20),
        ("pool", ClientRule("b", max_output=200), None, 50),
        ("max", ClientRule("c", max_output=200), 1000, 200),
        ("never wider", ClientRule("d", max_output=999), 1000, 300),
        ("default within max", ClientRule("e", default_output=400), None, 300),
    ]:
        one.ask(name, 10, cap, client=client)
        grant = one.running[name]
        assert grant.demand.cap == got, name
        assert grant.clamped_from == (cap if cap and cap > got else None)
