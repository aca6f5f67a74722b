"""Advice that holds: the gate's own sum is done over it again."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.caps import kv_demand
from gateway.core.model import Ask, PoolLimits
from gateway.plan.advice import TOP, Wish, advise
from gateway.plan.chain import Chain
from gateway.plan.risk import Risk, risk
from tests.plan.test_chain import INCIDENT_B, chains

CHUNK = 0.28


def test_the_choice_of_incident_b():
    got = advise(INCIDENT_B, CHUNK, Wish())
    assert got is not None
    assert (got.row.fraction, got.risk, got.reached) == (0.93, Risk.LOW, True)


@pytest.mark.parametrize(
    ("headroom", "level"), [(0.65, Risk.HIGH), (1.09, Risk.LOW), (0.9, Risk.SOME)]
)
def test_what_died_and_what_lived(headroom, level):
    assert risk(headroom, CHUNK) is level


def test_a_wanted_context_takes_the_least_fraction():
    got = advise(INCIDENT_B, CHUNK, Wish(context=100_000, prompt=19_000, requests=3))
    assert got is not None
    assert got.context_length == 100_352  # 98 x 1,024
    assert got.row.fraction == 0.93
    assert INCIDENT_B.context(0.925) < 100_352
    assert got.reached
    assert 3 * (19_000 + got.max_output + 1) <= got.row.pool_tokens


def test_what_cannot_be_reached_is_said():
    far = advise(INCIDENT_B, CHUNK, Wish(context=300_000))
    assert far is not None
    assert (far.reached, far.row.fraction) == (False, TOP)
    assert "300,032" in far.why
    bold = advise(INCIDENT_B, CHUNK, Wish(context=119_000))
    assert bold is not None
    assert (bold.reached, bold.risk) == (False, Risk.HIGH)
    assert "kill" in bold.why
    crowd = advise(INCIDENT_B, CHUNK, Wish(context=100_000, prompt=60_000, requests=3))
    assert crowd is not None
    assert not crowd.reached
    assert "fewer" in crowd.why


def test_no_pool_no_advice():
    heavy = Chain(available_gib=23.2, weights_gib=40, state_gib=0, cell_bytes=32768)
    assert advise(heavy, CHUNK, Wish()) is None
    assert advise(heavy, CHUNK, Wish(context=1024)) is None


@given(
    chains,
    st.floats(0, 3),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(1, 60_000)),
    st.one_of(st.none(), st.integers(1, 200_000)),
)
def test_advised_requests_fit_the_pool_together(chain, chunk, requests, prompt, context):
    got = advise(chain, chunk, Wish(context, prompt, requests))
    assume(got is not None and got.reached)
    limits = PoolLimits(kv_tokens=got.row.pool_tokens, page=chain.page)
    demand = kv_demand(Ask((got.prompt,)), got.max_output, limits)
    assert requests * demand <= got.row.pool_tokens * 0.99
    assert got.prompt + got.max_output < got.context_length <= got.row.context_tokens
    assert got.context_length % 1024 == 0
    assert got.max_running >= requests
    assert 0 < got.default_output <= got.max_output
    if context:
        assert got.context_length >= context
