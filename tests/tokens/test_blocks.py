"""Long texts are cut at borders that change no count, and counting stops in time."""

import math

import pytest

from gateway.tokens import blocks as module
from gateway.tokens.blocks import blocks, has_borders
from gateway.tokens.encoder import load_text_counter
from gateway.tokens.pretokenizer import _GPT2, _fused_deepseek
from gateway.tokens.vocabulary import OutOfTime, Unencodable
from tests.tokens.conftest import DEEPSEEK, O200K, WORDS, train
from tests.tokens.texts import texts

FORMS = {"words": (WORDS,), "o200k": (O200K,), "deepseek": DEEPSEEK, "gpt2": ()}


@pytest.fixture
def small(monkeypatch):
    """Blocks of a few characters, so that every text has many."""
    monkeypatch.setattr(module, "BLOCK", 8)
    monkeypatch.setattr(module, "LONGEST", 4_000)


@pytest.mark.parametrize("form", list(FORMS))
def test_blocks_count_to_the_same(form, small):
    tokenizer = train(FORMS[form], use_nfc=False)
    counter, reason = load_text_counter(tokenizer.to_str().encode(), {})
    assert reason is None
    assert counter._encoder.cuts
    some, cut = texts(7, ["<|im_end|>"]), 0
    for _ in range(20):
        text = " ".join(next(some) for _ in range(60))
        cut += len(list(blocks(text))) - 1
        assert counter.count(text) == len(tokenizer.encode(text, add_special_tokens=False))
    assert cut > 400


def test_blocks_are_the_text(small):
    text = "one, two. 三四，五 six7 " * 400
    assert "".join(blocks(text)) == text
    assert max(map(len, blocks(text[:-300]))) < 4_300


def test_a_text_without_a_border_is_not_begun(small):
    with pytest.raises(Unencodable):
        list(blocks("!" * 5_000))
    assert list(blocks("!" * 4_000)) == ["!" * 4_000]
    assert len(list(blocks("!" * 5_000, lambda text: 3))) > 90


@pytest.mark.parametrize("pattern", [WORDS, O200K, _GPT2, _fused_deepseek(), r"\p{L}+|[\s\S]"])
def test_patterns_with_borders(pattern):
    assert has_borders(pattern)


@pytest.mark.parametrize("pattern", [r"\p{L}+[ ,.]?|[\s\S]", r"\w+|[\s\S]", r"\S+|\s+"])
def test_patterns_that_reach_across(pattern):
    assert not has_borders(pattern)


def test_counting_stops_between_blocks(qwen_like, small, monkeypatch):
    counter, _ = load_text_counter(qwen_like.to_str().encode(), {})
    moments = iter(range(1_000_000))
    monkeypatch.setattr("gateway.tokens.encoder.time.monotonic", lambda: float(next(moments)))
    text = "some words and more of them, " * 200
    with pytest.raises(OutOfTime):
        counter.count(text, 20.0)
    assert next(moments) < 30
    assert counter.count(text, math.inf) > 0
