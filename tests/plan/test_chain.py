"""The budget chain: incident B, calibration, and what must hold for any card."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.plan.chain import (
    GIB,
    SLACK,
    Chain,
    ChainError,
    Measured,
    calibrate,
    context_for,
)

INCIDENT_B = Chain(available_gib=23.2, weights_gib=17.67, state_gib=0.70, cell_bytes=32768)

MEASURED_B = (
    # fraction, pool, headroom GiB, context: as told; 0.92 was told by its context alone
    (0.95, 120_079, 0.65, 119_000),
    (0.93, 105_256, 1.09, 102_400),
    (0.92, None, 1.35, 95_000),
)


@pytest.mark.parametrize(("fraction", "pool", "headroom", "context"), MEASURED_B)
def test_incident_b_within_a_hundredth(fraction, pool, headroom, context):
    row = INCIDENT_B.row(fraction)
    if pool is not None:
        assert row.pool_tokens == pytest.approx(pool, rel=0.01)
    assert row.headroom_gib == pytest.approx(headroom, abs=0.015)  # told to 0.01
    assert row.context_tokens == pytest.approx(context, rel=0.01)
    assert row.context_tokens % 1024 == 0


def test_two_points_predict_the_third():
    points = [Measured(0.95, 120_079, 0.65), Measured(0.93, 105_256, 1.09)]
    fitted = calibrate(INCIDENT_B, points)
    for point in points:
        assert fitted.pool(point.fraction) == pytest.approx(point.pool_tokens, abs=1)
    assert fitted.pool(0.92) == pytest.approx(97_844, abs=2)
    assert fitted.headroom(0.92) == pytest.approx(1.35, abs=0.04)
    assert fitted.state_gib == 0.70
    assert fitted.cell_bytes == 32768


def test_what_a_chain_was_made_of_is_found_again():
    truth = Chain(available_gib=22.1, weights_gib=14.3, state_gib=0.0, cell_bytes=65536)
    points = [
        Measured(f, truth.pool(f), truth.headroom(f) + 0.2) for f in (0.80, 0.85, 0.90)
    ]  # 0.2: its overhead is smaller than the default
    wrong = Chain(available_gib=1, weights_gib=0, state_gib=0, cell_bytes=65536)
    fitted = calibrate(wrong, points)
    assert fitted.available_gib == pytest.approx(22.1, rel=1e-3)
    assert fitted.weights_gib == pytest.approx(14.3, rel=1e-3)
    assert fitted.overhead_gib == pytest.approx(truth.overhead_gib - 0.2, abs=0.01)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([Measured(0.9, 100)], "twice"),
        ([Measured(0.9, 100), Measured(0.9, 120)], "share one fraction"),
        ([Measured(0.9, 100), Measured(0.8, 120)], "do not grow"),
        ([Measured(0.9, 50_000), Measured(0.91, 50_100)], "less than nothing"),
    ],
)
def test_points_that_make_no_line(points, said):
    with pytest.raises(ChainError, match=said):
        calibrate(INCIDENT_B, points)


@pytest.mark.parametrize(
    "links",
    [
        {"available_gib": 0},
        {"available_gib": float("nan")},
        {"cell_bytes": 0},
        {"cell_bytes": float("inf")},
        {"weights_gib": -1},
        {"state_gib": float("nan")},
        {"page": 0},
    ],
)
def test_links_that_cannot_be(links):
    good = {"available_gib": 23.2, "weights_gib": 17, "state_gib": 0, "cell_bytes": 32768}
    with pytest.raises(ChainError, match="must be"):
        Chain(**(good | links))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 93, float("nan")])
def test_fractions_that_are_none(fraction):
    with pytest.raises(ChainError, match="fraction"):
        INCIDENT_B.row(fraction)


def test_weights_that_leave_nothing():
    row = Chain(available_gib=23.2, weights_gib=30, state_gib=0, cell_bytes=32768).row(0.9)
    assert (row.pool_tokens, row.context_tokens) == (0, 0)


chains = st.builds(
    Chain,
    available_gib=st.floats(4, 200),
    weights_gib=st.floats(0, 100),
    state_gib=st.floats(0, 4),
    cell_bytes=st.floats(2_000, 400_000),
    page=st.sampled_from([1, 16, 64]),
)


@given(chains, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_more_fraction_more_pool_less_headroom(chain, one, other):
    low, high = chain.row(min(one, other)), chain.row(max(one, other))
    assert low.pool_tokens <= high.pool_tokens
    assert low.headroom_gib >= high.headroom_gib
    for row in (low, high):
        assert row.pool_tokens % chain.page == 0
        assert row.pool_tokens * chain.cell_bytes <= chain.available_gib * row.fraction * GIB
        assert row.context_tokens % 1024 == 0
        assert row.context_tokens <= row.pool_tokens * (1 - SLACK)


@given(chains, st.integers(1, 200).map(lambda n: n * 1024))
def test_the_fraction_for_a_context_holds_it(chain, context):
    fraction = chain.fraction_for(context)
    if fraction < 1:
        assert chain.context(min(fraction + 1e-9, 0.999999)) >= context


@given(st.integers(0, 2_000_000), st.sampled_from([1, 16, 64]))
def test_a_context_fits_beside_the_slack_the_gate_keeps(pool, page):
    context = context_for(pool, page)
    assert 0 <= context <= max(0, pool - page - pool * SLACK)
