"""Retry-After: a measured rate, whole seconds, spread, and always a number."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.drainrate import MOST_ETA_S, DrainRate, retry_after_s


def drained(every_s: float, tokens: int, seconds: float) -> DrainRate:
    rate = DrainRate(started=0.0)
    rate.busy(0.0, is_busy=True)
    for i in range(1, int(seconds / every_s) + 1):
        rate.released(tokens, i * every_s)
    return rate


@pytest.mark.parametrize("every_s", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("seconds", [20.0, 300.0])
def test_a_constant_drain_is_measured(every_s, seconds) -> None:
    rate = drained(every_s, int(1_000 * every_s), seconds)
    # just after a release the estimate is high by at most half a period's worth of decay
    assert rate.per_second(seconds) == pytest.approx(1_000, rel=0.01 + every_s / 30)


def test_the_rate_follows_a_changed_load_within_a_minute() -> None:
    rate = drained(1.0, 1_000, 300.0)
    for second in range(301, 361):
        rate.released(100, float(second))
    assert 100 < rate.per_second(360.0) < 1_000 * 0.25 + 100


def test_nothing_released_yet_is_unknown_not_zero() -> None:
    rate = DrainRate(started=0.0)
    rate.busy(0.0, is_busy=True)
    assert rate.eta_s(100, 10.0) is None
    assert retry_after_s(None, lambda: 0.0) == 5


def test_a_stalled_server_is_seen_to_be_slow() -> None:
    rate = drained(1.0, 1_000, 60.0)
    assert rate.per_second(120.0) < 600


def test_idle_time_does_not_make_a_server_slow() -> None:
    rate = drained(1.0, 1_000, 60.0)
    before = rate.per_second(60.0)
    rate.busy(60.0, is_busy=False)
    rate.busy(36_000.0, is_busy=True)
    assert rate.per_second(36_000.0) == pytest.approx(before)


def test_eta_is_tokens_over_rate() -> None:
    rate = drained(0.1, 100, 300.0)
    assert rate.eta_s(20_000, 300.0) == pytest.approx(20, rel=0.05)
    assert rate.eta_s(0, 300.0) == 0
    assert rate.eta_s(-5, 300.0) == 0, "what fits now drains in no time"


@given(stalled=st.floats(0, 1e6), tokens=st.integers(-10, 10**9))
def test_a_vanishing_rate_still_gives_a_number(stalled, tokens) -> None:
    rate = drained(1.0, 1_000, 10.0)
    eta = rate.eta_s(tokens, 10.0 + stalled)
    assert eta is None or 0 <= eta <= MOST_ETA_S
    assert 1 <= retry_after_s(eta, lambda: 0.99) <= 59


def test_who_comes_early_again_and_again_is_told_so_many_times_the_time() -> None:
    assert [retry_after_s(4.0, lambda: 0.0, times) for times in (1.0, 2.0, 8.0, 64.0)] == [
        4,
        8,
        32,
        59,
    ]
    assert [retry_after_s(0.0, lambda: 0.0, times) for times in (1.0, 2.0, 4.0)] == [1, 2, 4]


@given(eta=st.one_of(st.none(), st.floats(0, MOST_ETA_S)), jitter=st.floats(0, 1, exclude_max=True))
def test_retry_after_is_whole_seconds_from_1_to_59(eta, jitter) -> None:
    """O01, O03: SDKs obey below 60 s and misbehave from there on; the header is an integer."""
    told = retry_after_s(eta, lambda: jitter)
    assert told == int(told)
    assert 1 <= told <= 59
    if eta is not None and 1 <= eta <= 48:
        assert eta <= told <= math.ceil(eta * 1.25), "never before it can start, never far after"


def test_jitter_spreads_the_refused() -> None:
    told = {retry_after_s(20.0, lambda j=j: j / 10) for j in range(10)}
    assert told == {20, 21, 22, 23, 24, 25}
