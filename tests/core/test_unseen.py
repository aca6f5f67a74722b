"""Prompts whose first token nobody sees: when they are taken to be read, and what that is learned from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model import PoolLimits
from gateway.core.pools import PREFILL_RATE
from gateway.core.unseen import COUNTED_TOKENS, Look
from tests.core.desk import GPU0, GPU1, Desk, rid

ROOM = PoolLimits(kv_tokens=1_000_000, prefill_tokens=8_192)


def desk_with(*plain: int, cap: int = 10, n: int = 1) -> Desk:
    """One that has sent such prompts, each asked for in one piece."""
    desk = Desk(gpu0=ROOM)
    for number, prompt in enumerate(plain):
        desk.ask(f"plain {number}", prompt, cap, streamed=False, n=n)
    return desk


def look(desk: Desk, running: int, waiting: int = 0, *, ago: float = 0.0, **more: float) -> None:
    """The engine says what it holds."""
    said = Look(desk.now - ago, running, waiting, **more)  # type: ignore[arg-type]
    desk.take(desk.core.looked(GPU0, said, desk.now))


def rate(desk: Desk) -> float:
    return desk.core.books.pools[GPU0].prefill_rate


def guessed(desk: Desk, prompt: int) -> float:
    """Seconds for which a prompt sent now to an idle server is taken to be read."""
    return desk.core.books.pools[GPU0].ttft.predict(prompt, prompt, 0.0, 0.0).likely


def test_what_an_engine_runs_it_has_read() -> None:
    desk = desk_with(4_000, 4_000)
    desk.ask("next", 4_000, 10, streamed=False)
    assert desk.waiting == ["next"]
    desk.now = 0.4
    look(desk, running=2)
    assert "next" in desk.running, "eight seconds before it was taken to be read"
    assert desk.prefill() == 4_000


@pytest.mark.parametrize(
    ("running", "waiting", "more", "why"),
    [
        (1, 0, {}, "one has not reached it, or is in the middle of being read"),
        (2, 1, {}, "one waits within it"),
        (2, 0, {"unread": 300}, "a part of one is left"),
        (2, 0, {"ago": 0.5}, "it says so of a moment before they were sent"),
    ],
)
def test_what_it_does_not_say_is_no_proof(running, waiting, more, why) -> None:
    desk = Desk(gpu0=ROOM)
    desk.now = 1.0
    desk.ask("a", 4_000, 10, streamed=False)
    desk.ask("b", 4_000, 10, streamed=False)
    desk.now = 1.4
    look(desk, running, waiting, **more)
    assert desk.prefill() == 8_000, why
    assert rate(desk) == PREFILL_RATE


def test_sequences_are_counted_and_not_requests() -> None:
    desk = desk_with(2_000, n=2)
    desk.now = 0.4
    look(desk, running=1)
    assert desk.prefill() > 0
    look(desk, running=2)
    assert desk.prefill() == 0


def test_streams_tell_themselves() -> None:
    desk = desk_with(2_000)
    desk.ask("stream", 2_000, 10)
    desk.now = 0.4
    look(desk, running=2)
    assert desk.prefill() == 2_000, "the stream's, whose first token will be seen"


def test_the_speed_is_what_was_read_since_it_was_sent() -> None:
    desk = desk_with(3_000)
    desk.now = 0.1
    desk.ask("later", 3_000, 10, streamed=False)
    desk.now = 0.6
    look(desk, running=2)
    # Both within 0.6 s, one of them within 0.5 s: at least 10,000 tokens a second.
    assert rate(desk) == pytest.approx(10_000)
    assert guessed(desk, 5_000) == pytest.approx(0.55)
    desk.ask("slow", 5_000, 10, streamed=False)
    desk.wait(0.4)
    assert desk.prefill() == 5_000
    desk.wait(0.1)
    assert desk.prefill() == 0, "and so long it is taken to be read"


def test_a_bound_says_never_slower() -> None:
    desk = desk_with(3_000)
    desk.now = 0.1
    look(desk, running=1)
    assert rate(desk) == pytest.approx(30_000)
    desk.ask("other", 3_000, 10, streamed=False)
    desk.now += 0.09
    desk.finish("plain 0")
    look(desk, running=0)  # it is not even there yet
    desk.now += 5.0
    look(desk, running=1)
    assert rate(desk) == pytest.approx(30_000)


def test_a_bound_leaves_what_is_predicted_where_it_is_faster() -> None:
    desk = desk_with()
    place = desk.core.books.pools[GPU0]
    place.reads_at(3_000, 0.1, desk.now)
    place.reads_at(3_000, 2.0, desk.now)
    assert guessed(desk, 3_000) == pytest.approx(0.15)
    place.reads_at(3_000, 2.0, desk.now, slower=True)
    assert guessed(desk, 3_000) == pytest.approx(2.05)


def test_what_others_take_to_be_read_comes_before() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=1_000_000))
    place = desk.core.books.pools[GPU0]
    place.prefill_rate = 10_000.0
    desk.ask("before", 4_000, 10)  # a stream: 4.05 s are predicted
    desk.ask("plain", 1_000, 10, streamed=False)
    hold = place.ledger.holds[rid("plain")]
    assert hold.prefilled_by == pytest.approx(4.05 + 0.1)


def test_what_is_read_is_waited_for_no_longer() -> None:
    desk = desk_with(8_000)
    place = desk.core.books.pools[GPU0]
    assert place.read_by > 8.0
    desk.now = 0.4
    look(desk, running=1)
    assert place.read_by <= desk.now


def test_a_time_in_which_nobody_looked_tells_nothing() -> None:
    desk = desk_with(4_000)
    desk.core.stood_still(0.2)
    desk.now = 0.4
    look(desk, running=1)
    assert desk.prefill() == 0, "it is read"
    assert rate(desk) == PREFILL_RATE, "but in what time?"


def test_a_whole_answer_shows_that_its_prompt_was_read() -> None:
    desk = desk_with(4_000)
    desk.now = 0.5
    desk.finish("plain 0")
    assert rate(desk) == pytest.approx(8_000)
    assert guessed(desk, 4_000) == pytest.approx(0.55)


def test_scores_take_longer_than_reading() -> None:
    desk = Desk(gpu0=ROOM)
    for number in range(10):
        desk.ask(f"score {number}", 1_000, 0, streamed=False, scores=True)
        desk.now += 0.5
        desk.finish(f"score {number}")
    assert not desk.core.books.pools[GPU0].ttft.tested(desk.now)
    assert guessed(desk, 1_000) == pytest.approx(0.55), "a bound, no sample"


def test_where_nothing_is_generated_the_answer_is_the_first_token() -> None:
    desk = Desk(gpu0=ROOM)
    for number in range(60):
        tokens = 1_000 + 100 * (number % 30)
        desk.ask(f"vector {number}", tokens, 0, streamed=False)
        desk.now += 0.02 + tokens / 4_000
        desk.finish(f"vector {number}")
    place = desk.core.books.pools[GPU0]
    assert place.ttft.tested(desk.now)
    assert guessed(desk, 2_000) == pytest.approx(0.52, rel=0.02)


def test_the_counters_of_an_engine_say_it_exactly_and_slower_too() -> None:
    desk = desk_with()
    look(desk, 0, read=100_000, read_s=50.0)
    assert rate(desk) == PREFILL_RATE, "of one look nothing follows"
    look(desk, 0, read=140_000, read_s=52.0)
    assert rate(desk) == pytest.approx(20_000)
    assert guessed(desk, 10_000) == pytest.approx(0.55)
    look(desk, 0, read=140_000 + COUNTED_TOKENS - 1, read_s=60.0)
    assert rate(desk) == pytest.approx(20_000), "of few tokens most of the time is no reading"
    look(desk, 0, read=140_000 + 40_000, read_s=62.0)
    assert rate(desk) == pytest.approx(4_000)


def test_where_an_engine_counts_nothing_else_says_how_fast_it_is() -> None:
    """What lies in a cache that nobody here knows of is read in no time; its own count has it left out."""
    desk = desk_with(4_000, 4_000)
    look(desk, 0, read=0, read_s=0.1)
    desk.now = 0.01
    look(desk, 2, read=0, read_s=0.1)
    assert desk.prefill() == 0
    desk.ask("answered", 4_000, 10, streamed=False)
    desk.finish("answered")
    assert rate(desk) == PREFILL_RATE


@pytest.mark.parametrize("dies", [True, False])
def test_counters_that_begin_anew_are_another_engine_s(dies) -> None:
    desk = desk_with()
    look(desk, 0, read=100_000, read_s=50.0)
    if dies:
        desk.take(desk.core.void(GPU0, desk.now))
    look(desk, 0, read=90_000 if not dies else 300_000, read_s=49.0 if not dies else 50.1)
    assert rate(desk) == PREFILL_RATE


def test_first_tokens_that_are_seen_alone_tell_how_fast_it_is() -> None:
    desk = Desk(gpu0=ROOM)
    for number in range(10):
        desk.ask(f"s{number}", 1_000, 10)
        desk.now += 0.5
        desk.first_token(f"s{number}")
        desk.finish(f"s{number}")
    before = rate(desk), guessed(desk, 1_000)
    look(desk, 0, read=0, read_s=0.1)
    look(desk, 0, read=100_000, read_s=0.2)
    desk.ask("plain", 1_000, 10, streamed=False)
    desk.now += 0.01
    look(desk, 1, read=100_000, read_s=0.2)
    assert (rate(desk), guessed(desk, 1_000)) == before
    assert desk.prefill() == 0, "but what is read is given back"


def test_a_pool_that_is_another_one_s_is_left_alone() -> None:
    desk = Desk(gpu0=ROOM, gpu1=ROOM)
    desk.ask("here", 4_000, 10, streamed=False, to=(GPU0,))
    desk.take(desk.core.looked(GPU1, Look(desk.now, 1, 0), desk.now))
    assert desk.prefill() == 4_000


@given(
    st.lists(st.tuples(st.integers(1, 4_000), st.floats(0.0, 0.3)), min_size=1, max_size=8),
    st.integers(5_000, 50_000),
)
def test_no_bound_says_faster_than_the_engine_is(prompts, speed) -> None:
    """One after the other at its speed, however they were sent."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=1_000_000))
    free = 0.0
    for number, (tokens, pause) in enumerate(prompts):
        desk.now += pause
        desk.ask(f"p{number}", tokens, 10, streamed=False)
        free = max(free, desk.now) + tokens / speed
    # Those that were predicted to be read are no proof of anything.
    desk.now = free
    look(desk, running=len(prompts))
    assert rate(desk) <= speed * 1.001
