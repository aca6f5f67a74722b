"""What is learned from answers, finished or under way."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.lengths import BUCKETS, EDGES, MEMORY, PRIORS, LengthBook, Lengths, bucket


@given(st.integers(0, 400_000))
def test_a_length_lies_in_its_bucket(tokens: int) -> None:
    at = bucket(tokens)
    assert EDGES[at] <= tokens
    assert tokens < EDGES[at + 1] or at == BUCKETS - 1


def answer(of: Lengths, tokens: int) -> None:
    of.entered(-1, bucket(tokens))
    of.ended(bucket(tokens))


@pytest.mark.parametrize(
    ("kind", "tokens", "share"),
    [(kind, *point) for kind, points in PRIORS.items() for point in points],
)
def test_a_newcomer_is_taken_for_one_of_its_kind(kind, tokens, share) -> None:
    assert LengthBook().of("new", kind).survival(0, tokens) == pytest.approx(share, rel=1e-3)


def test_an_unknown_kind_counts_as_chat() -> None:
    book = LengthBook()
    assert book.of("a", "never heard of") is book.of("a", "chat")


def test_own_answers_replace_what_was_assumed() -> None:
    book = LengthBook()
    of = book.of("a", "reasoning")
    for _ in range(400):
        answer(of, 100)
    assert of.survival(0, 128) < 0.05, "the prior says 0.99"
    assert book.of("stranger", "reasoning").survival(0, 128) < 0.05, "others lean on everybody"
    assert book.of("stranger", "chat").survival(0, 128) == pytest.approx(0.62, rel=1e-3)


@given(seed=st.integers(0, 100), mean=st.integers(50, 3000))
def test_the_curve_is_that_of_the_lengths_seen(seed, mean) -> None:
    draw = random.Random(seed)
    of = LengthBook().of("a", "chat")
    seen = [max(1, int(draw.expovariate(1 / mean))) for _ in range(600)]
    for tokens in seen:
        answer(of, tokens)
    recent = seen[-int(MEMORY) :]
    for tokens in (mean // 2, mean, 2 * mean):
        whole = EDGES[bucket(tokens)]
        share = sum(length >= whole for length in recent) / len(recent)
        assert of.survival(0, whole) == pytest.approx(share, abs=0.1)


def test_answers_under_way_count_as_long_as_they_are() -> None:
    """Right after a start only short ones have finished: the curve must not believe in short."""
    of = LengthBook().of("a", "chat")
    for _ in range(50):
        of.entered(-1, bucket(4_000))  # still going
        answer(of, 100)
    assert of.survival(0, 3_000) == pytest.approx(0.5, abs=0.06)


def test_a_cut_answer_says_nothing_of_where_it_would_have_ended() -> None:
    of, cut = LengthBook().of("a", "chat"), LengthBook().of("b", "chat")
    for _ in range(100):
        answer(of, 1_000)
        cut.entered(-1, bucket(1_000))  # ended by its cap: censored
    assert of.survival(900, 400) < 0.2
    assert cut.survival(900, 400) > 0.5


def test_a_doubling_is_believed() -> None:
    of = LengthBook().of("a", "chat")
    for _ in range(1_000):
        answer(of, 400)
    for _ in range(int(MEMORY)):
        answer(of, 800)
    assert of.survival(0, 700) > 0.6


@given(st.lists(st.integers(1, 100_000), max_size=60), st.integers(0, 5_000))
def test_survival_is_a_probability_and_falls(lengths, have) -> None:
    of = LengthBook().of("a", "tools")
    for tokens in lengths:
        answer(of, tokens)
    shares = [of.survival(have, more) for more in (0, 10, 100, 1_000, 10_000, 200_000)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert all(0.0 <= share <= 1.0 for share in shares)


def test_mean_and_quantile_of_equal_answers() -> None:
    of = LengthBook().of("a", "chat")
    for _ in range(2_000):
        answer(of, 500)
    assert of.mean(32_000) == pytest.approx(500, rel=0.15)
    assert of.mean(100) == pytest.approx(100, rel=0.05)
    assert 400 <= of.quantile(0.5) <= 640


def test_only_so_many_clients_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr("gateway.core.lengths.MOST_CLASSES", 3)
    book = LengthBook()
    first = book.of("0", "chat")
    for name in "1203":
        book.of(name, "chat")
    assert book.of("0", "chat") is first, "asked for again, so not the oldest"
    assert len(book._classes) == 3
