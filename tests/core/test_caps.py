"""What cap, what demand: tables at the edges, and properties against the engine's own rules."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import caps
from gateway.core.caps import Misfit
from gateway.core.model import Ask, Code, Demand, PoolLimits

CLIP = 4_096
"""SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION: the most output the engine charges a candidate."""


def limits(kv: int, **more: int | None) -> PoolLimits:
    return PoolLimits(kv_tokens=kv, **more)


def granted(verdict: Demand | Misfit) -> Demand:
    assert isinstance(verdict, Demand), verdict
    return verdict


def refused(verdict: Demand | Misfit) -> Misfit:
    assert isinstance(verdict, Misfit), verdict
    return verdict


# ---- demand ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "n", "cap", "page", "spec", "kv"),
    [
        ((100,), 1, 50, 1, 0, 151),  # prompt + cap + one page
        ((16,), 1, 17, 16, 0, 16 + 32 + 16),  # A06: the last token opens a page of its own
        ((17,), 1, 16, 16, 0, 32 + 16 + 16),
        ((100,), 4, 50, 1, 0, 4 * 151),  # B07: n sequences, each with its whole prompt
        ((100, 37), 2, 50, 16, 0, 2 * (112 + 64 + 16 + 48 + 64 + 16)),
        ((64,), 1, 60, 64, 4, 64 + 64 + 64),  # speculative tokens share the last page
        ((64,), 1, 61, 64, 4, 64 + 128 + 64),  # ... or need one more
        ((0,), 1, 1, 64, 0, 128),
    ],
)
def test_demand_counts_whole_pages_for_each_sequence(prompts, n, cap, page, spec, kv) -> None:
    of = limits(10_000, page=page, speculative=spec)
    assert caps.kv_demand(Ask(prompts, n, cap), cap, of) == kv


def test_a_decision_carries_prefill_slots_and_the_demand_of_its_cap() -> None:
    ask = Ask((100, 37), 2, 50)
    demand = granted(caps.decide(ask, limits(10_000, page=16)))
    kv = caps.kv_demand(ask, 50, limits(10_000, page=16))
    assert demand == Demand(cap=50, kv=kv, prefill=274, slots=4)


def test_demand_grows_with_cap_prompt_n_and_page() -> None:
    """Monotone where it must be: a larger ask is never charged less."""

    @given(
        prompt=st.integers(0, 5_000),
        cap=st.integers(0, 5_000),
        n=st.integers(1, 5),
        page=st.sampled_from([1, 16, 64]),
        more=st.integers(1, 200),
    )
    def grows(prompt, cap, n, page, more) -> None:
        of = limits(1, page=page)
        base = caps.kv_demand(Ask((prompt,), n), cap, of)
        assert caps.kv_demand(Ask((prompt,), n), cap + more, of) >= base
        assert caps.kv_demand(Ask((prompt + more,), n), cap, of) >= base
        assert caps.kv_demand(Ask((prompt,), n + more), cap, of) > base
        assert caps.kv_demand(Ask((prompt, more), n), cap, of) > base
        assert base >= n * (prompt + cap + page)
        assert base <= n * (prompt + cap + 3 * page)

    grows()


# ---- edges -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "cap"), [(4_077, 16), (4_078, 16), (4_079, 15), (4_080, 14), (4_081, 13)]
)
def test_at_the_end_of_the_context_the_cap_is_what_the_engine_will_give(prompt, cap) -> None:
    """A13: the engine clips to context - 2 - prompt; promising that number keeps us truthful."""
    of = limits(1_000_000, context=4_096, max_input=4_090)
    assert granted(caps.decide(Ask((prompt,), 1, 16), of)).cap == cap


@pytest.mark.parametrize(("prompt", "fits"), [(4_086, True), (4_087, False), (4_089, False)])
def test_less_than_half_of_a_small_wish_is_a_refusal(prompt, fits) -> None:
    of = limits(1_000_000, context=4_096, max_input=4_090)
    verdict = caps.decide(Ask((prompt,), 1, 16), of)
    if fits:
        assert granted(verdict).cap == 8
    else:
        # prompt + half the wish + the two tokens at the edge, against the context
        assert refused(verdict) == Misfit(
            Code.CONTEXT_LENGTH_EXCEEDED, prompt + 8 + 2, 4_096, "context"
        )


def test_the_engine_refuses_a_prompt_of_exactly_its_longest_input() -> None:
    of = limits(1_000_000, context=5_000, max_input=4_090)
    assert granted(caps.decide(Ask((4_089,), 1, 16), of)).cap == 16
    misfit = refused(caps.decide(Ask((4_090,), 1, 16), of))
    assert (misfit.needed, misfit.available, misfit.what) == (4_090, 4_089, "longest input")


def test_opencode_near_the_end_of_the_window() -> None:
    """A03: always 32,000 of output; clamped to the rest of the window, refused beyond it."""
    of = limits(200_000, context=32_768, max_input=32_762)
    assert granted(caps.decide(Ask((30_000,), 1, 32_000), of)).cap == 32_768 - 30_000 - 2
    assert refused(caps.decide(Ask((33_000,), 1, 32_000), of)).needed == 33_000


def test_policy_limits_the_prompt_and_the_output() -> None:
    of = limits(100_000, max_prompt=16_000, max_output=8_192)
    assert granted(caps.decide(Ask((16_000,), 1, 32_000), of)).cap == 8_192
    assert granted(caps.decide(Ask((16_000,), 1, 100), of)).cap == 100
    misfit = refused(caps.decide(Ask((16_001,), 1, 100), of))
    assert (misfit.available, misfit.what) == (16_000, "longest prompt allowed")


def test_a_prompt_with_images_has_a_limit_of_its_own() -> None:
    of = limits(100_000, max_prompt=16_000, max_image_prompt=9_000)
    assert isinstance(caps.decide(Ask((16_000,), 1, 100), of), Demand)
    assert isinstance(caps.decide(Ask((9_000,), 1, 100, images=True), of), Demand)
    misfit = refused(caps.decide(Ask((9_001,), 1, 100, images=True), of))
    assert (misfit.available, misfit.what) == (9_000, "longest prompt allowed with images in it")
    assert caps.longest_prompt(Ask((1,), 1, 100, images=True), of) == 9_000


def test_default_output_stays_under_policy_and_room() -> None:
    assert granted(caps.decide(Ask((1_000,)), limits(100_000, default_output=4_096))).cap == 4_096
    low = limits(100_000, default_output=4_096, max_output=1_000)
    assert granted(caps.decide(Ask((1_000,)), low)).cap == 1_000
    tight = limits(100_000, default_output=4_096, context=2_000)
    assert granted(caps.decide(Ask((1_000,)), tight)).cap == 998


@pytest.mark.parametrize(
    ("cap", "room", "verdict"),
    [
        (None, 256, 256),  # the useful floor, exactly
        (None, 255, "refused"),
        (32_000, 256, 256),
        (32_000, 255, "refused"),
        (300, 150, 150),  # half of what was asked is enough
        (300, 149, "refused"),
        (1, 1, 1),
        (1, 0, "refused"),
        (0, 0, 0),  # scoring a prompt generates nothing
        (0, -1, "refused"),
    ],
)
def test_the_floor_refuses_stubs(cap, room, verdict) -> None:
    prompt = 500
    of = limits(prompt + room + 1, default_output=4_096)
    got = caps.decide(Ask((prompt,), 1, cap), of)
    assert (got.cap if isinstance(got, Demand) else "refused") == verdict


def test_a_floor_of_one_lets_anything_start() -> None:
    assert granted(caps.decide(Ask((500,)), limits(502, useful_floor=1))).cap == 1


def test_a_client_with_a_quota_is_capped_by_it_and_told_so() -> None:
    of = limits(100_000)
    assert granted(caps.decide(Ask((1_000,), 1, 32_000), of, 5_000)).cap == 5_000 - 1_000 - 1
    misfit = refused(caps.decide(Ask((5_000,), 1, 32_000), of, 5_000))
    assert misfit == Misfit(
        Code.CONTEXT_LENGTH_EXCEEDED, 5_000 + 256 + 1, 5_000, "client's share of the KV pool"
    )
    wide = granted(caps.decide(Ask((1_000,), 1, 32_000), of, 900_000))
    assert wide.cap == 32_000, "a quota above the pool changes nothing"


def test_more_sequences_than_the_server_runs_are_refused_whatever_their_size() -> None:
    """B07: n over the batch limit makes an engine loop for ever."""
    misfit = refused(caps.decide(Ask((1,), 64, 1), limits(1_000_000, slots=16)))
    assert misfit == Misfit(Code.INVALID_REQUEST, 64, 16, "running requests")
    assert granted(caps.decide(Ask((1,), 16, 1), limits(1_000_000, slots=16))).slots == 16
    refused(caps.decide(Ask((1, 1, 1), 6, 1), limits(1_000_000, slots=16)))


@pytest.mark.parametrize(
    ("pool", "prompt"),
    [
        (100_000, 120_000),  # B01: under the context, over the pool
        (106_496 - 8_192, 100_000),  # B03: in the gap of one page
        (800, 1_002),  # B06
    ],
)
def test_a_prompt_over_the_pool_never_waits(pool, prompt) -> None:
    misfit = refused(caps.decide(Ask((prompt,), 1, 100), limits(pool, context=200_000)))
    assert misfit.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert misfit.available == pool < misfit.needed
    assert misfit.what == "KV pool"


def test_a_reservation_is_never_clipped_below_the_forwarded_cap() -> None:
    """D04: 90,000 + 20,000 into 100,000: the cap gives way, not the arithmetic."""
    demand = granted(
        caps.decide(Ask((90_000,), 1, 20_000), limits(100_000, context=131_072, max_output=32_768))
    )
    assert demand.cap == 9_999
    assert demand.kv == 90_000 + 9_999 + 1


def test_closest_names_the_pool_where_least_was_missing() -> None:
    far = Misfit(Code.CONTEXT_LENGTH_EXCEEDED, 1_000, 100, "KV pool")
    near = Misfit(Code.CONTEXT_LENGTH_EXCEEDED, 1_000, 990, "context")
    assert caps.closest([far, near]) is near
    assert caps.closest([]) is None


# ---- the default -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "prompt", "cap", "at_once"),
    [
        # the test model's pool: no stubs, four small ones at once
        (2_048, 50, 461, 4),
        (2_048, 400, 256, 3),
        (2_048, 1_500, 256, 1),
        # a 24 GB card with a 27B model
        (67_375, 50, 16_384, 4),
        (67_375, 5_000, 11_842, 4),
        (67_375, 19_000, 8_192, 2),
        (67_375, 50_000, 8_192, 1),
        # the other card of that box
        (105_256, 50, 16_384, 6),
        (105_256, 19_000, 8_192, 3),
        (105_256, 90_000, 8_192, 1),
        # an A100 with a small model
        (430_000, 50, 16_384, 26),
        (430_000, 19_000, 16_384, 12),
        (430_000, 90_000, 16_384, 4),
    ],
)
def test_the_default_lets_several_run_and_never_makes_a_stub(pool, prompt, cap, at_once) -> None:
    demand = granted(caps.decide(Ask((prompt,)), limits(pool)))
    assert demand.cap == cap
    assert pool // demand.kv == at_once


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("pool", [8_192, 67_375, 105_256, 430_000])
def test_a_quarter_of_the_pool_means_that_four_run(pool, n, page) -> None:
    """The page and the rounding belong to the quarter: else the fourth misses by one page."""
    of = limits(pool, page=page)
    demand = granted(caps.decide(Ask((100,), n), of))
    assert 4 * demand.kv <= pool


# ---- properties --------------------------------------------------------------------------------

asks = st.builds(
    Ask,
    prompts=st.lists(st.integers(0, 6_000), min_size=1, max_size=4).map(tuple),
    n=st.sampled_from([1, 1, 1, 2, 4, 16]),
    cap=st.one_of(st.none(), st.integers(0, 12_000)),
)


@st.composite
def servers(draw) -> tuple[PoolLimits, int]:
    """Limits as discovery makes them from what one server reports, and its pool."""
    total = draw(st.integers(200, 40_000))
    page = draw(st.sampled_from([1, 16, 64]))
    context = draw(st.integers(100, 16_000))
    max_req_len = min(context, total) - 1
    return PoolLimits(
        kv_tokens=total - page,
        page=page,
        context=context,
        max_input=max_req_len - 5,
        max_prompt=draw(st.one_of(st.none(), st.integers(50, 8_000))),
        max_image_prompt=draw(st.one_of(st.none(), st.integers(50, 8_000))),
        default_output=draw(st.one_of(st.none(), st.integers(1, 8_000))),
        max_output=draw(st.one_of(st.none(), st.integers(1, 8_000))),
        useful_floor=draw(st.sampled_from([1, 64, 256])),
        slots=draw(st.sampled_from([1, 4, 64])),
        speculative=draw(st.sampled_from([0, 4])),
    ), total


@given(ask=asks, server=servers(), quota=st.one_of(st.none(), st.integers(50, 20_000)))
def test_what_is_decided_the_engine_takes_unclipped(ask, server, quota) -> None:
    of, total = server
    verdict = caps.decide(ask, of, quota)
    if isinstance(verdict, Misfit):
        return
    assert verdict.kv == caps.kv_demand(ask, verdict.cap, of)
    assert verdict.kv <= of.kv_tokens
    assert quota is None or verdict.kv <= quota
    assert verdict.slots == len(ask.prompts) * ask.n <= of.slots
    assert verdict.prefill == sum(ask.prompts) * ask.n
    assert ask.cap is None or verdict.cap <= ask.cap
    assert of.max_output is None or verdict.cap <= of.max_output
    max_req_len = min(of.context, total) - 1
    for prompt in ask.prompts:
        assert prompt < of.max_input, "else 400 from the engine"
        assert verdict.cap <= max_req_len - prompt - 1, "else clipped by the context"
        ceil = -(-prompt // of.page) * of.page
        assert verdict.cap <= total - ceil - of.page - 1, "else clipped by the pool (0.5.12 on)"
        assert prompt + min(verdict.cap, CLIP) + of.page < total, "else it waits in the engine"


@given(ask=asks, server=servers(), quota=st.one_of(st.none(), st.integers(50, 20_000)))
def test_a_misfit_means_that_no_useful_cap_would_fit(ask, server, quota) -> None:
    of, _ = server
    verdict = caps.decide(ask, of, quota)
    if isinstance(verdict, Demand):
        return
    assert verdict.needed > verdict.available, "the numbers told must show the problem"
    if verdict.code is Code.INVALID_REQUEST or verdict.what.startswith("longest"):
        return
    wish = caps.default_cap(ask, of) if ask.cap is None else ask.cap
    wish = min(wish, of.max_output) if of.max_output is not None else wish
    useful = min(of.useful_floor, wish if ask.cap is None else -(-wish // 2))
    too_much = caps.kv_demand(ask, useful, of) > min(of.kv_tokens, quota or of.kv_tokens)
    too_long = max(ask.prompts) + useful + of.speculative + caps.EDGE > of.context
    assert too_much or too_long
    if verdict.what == "context":
        assert verdict.needed == max(ask.prompts) + useful + of.speculative + caps.EDGE


@given(ask=asks, server=servers(), more=st.integers(1, 5_000))
def test_a_larger_pool_never_turns_a_fit_into_a_misfit(ask, server, more) -> None:
    of, _ = server
    larger = dataclasses.replace(of, kv_tokens=of.kv_tokens + more)
    before, after = caps.decide(ask, of), caps.decide(ask, larger)
    if isinstance(before, Demand) and ask.cap is not None:
        assert granted(after).cap >= before.cap
    # Without a cap the wish itself grows with the pool, and what counts as useful with it.


@given(ask=asks, server=servers(), less=st.integers(1, 3_000))
def test_a_shorter_prompt_never_gets_less_of_what_it_asked_for(ask, server, less) -> None:
    of, _ = server
    if ask.cap is None:
        return
    shorter = dataclasses.replace(ask, prompts=tuple(max(0, p - less) for p in ask.prompts))
    before = caps.decide(ask, of)
    if isinstance(before, Demand):
        assert granted(caps.decide(shorter, of)).cap >= before.cap


@given(ask=asks, server=servers(), quota=st.one_of(st.none(), st.integers(50, 20_000)))
def test_the_longest_prompt_fits_with_a_real_answer_and_one_token_more_does_not(
    ask, server, quota
) -> None:
    of, _ = server
    ask = dataclasses.replace(ask, prompts=(1,))
    longest = caps.longest_prompt(ask, of, quota)
    small = min(of.kv_tokens, of.context) // 8
    roomy = dataclasses.replace(of, useful_floor=max(of.useful_floor, min(2_048, small)))

    def decided(prompt: int) -> Demand | Misfit:
        return caps.decide(dataclasses.replace(ask, prompts=(prompt,)), roomy, quota)

    assert isinstance(decided(longest + 1), Misfit)
    if longest:
        most = min(m for m in (ask.cap, of.max_output, 1 << 40) if m is not None)
        cap = granted(decided(longest)).cap
        if ask.cap is not None:
            assert cap >= min(roomy.useful_floor, -(-most // 2))
        elif of.default_output is None:
            assert cap >= min(roomy.useful_floor, most, ask.usual or 1 << 40, small // ask.n)


def test_a_shortened_prompt_leaves_two_thousand_tokens_to_its_answer() -> None:
    """Not 256: a tool call fits into that and a file does not."""
    of = limits(100_000, context=32_768, max_input=32_762)
    assert caps.longest_prompt(Ask((99_000,), 1, 32_000), of) == 32_768 - 2_048 - caps.EDGE
    assert caps.longest_prompt(Ask((99_000,), 1, 100), of) == 32_768 - 50 - caps.EDGE
