"""Han text is counted mostly by look-up, and counts the same: by property, and with real words."""

import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from gateway.tokens.encoder import TiktokenEncoder, load_text_counter
from gateway.tokens.han import FIRST, LAST, LEAST, uniform
from gateway.tokens.pretokenizer import _fused_deepseek
from gateway.tokens.vocabulary import Vocabulary
from tests.tokens.conftest import DEEPSEEK, O200K, WORDS

# Words of few characters, so that tokens of two and three come about, and nearly all neighbours
# have been seen together somewhere.
CHARACTERS = "模型的上下文长度是有限词表与分度文中国人民大学生活动力一丁七万丈三上下不与"
BESIDE = "，。、 \n的aBé0ーあア가\u0301\u3000'’「䷿鿦〇𠀀豈\ud800<"


def chinese(rng: random.Random, pieces: int) -> str:
    words = ["".join(rng.choices(CHARACTERS, k=rng.randrange(1, 4))) for _ in range(30)]
    return "".join(
        rng.choice(words) if rng.random() < 0.8 else rng.choice("，。、 \n") for _ in range(pieces)
    )


def trained(patterns: tuple[str, ...], *, ignore_merges: bool) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    splits = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in patterns]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, level])
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(3)
    tokenizer.train_from_iterator([chinese(rng, 60) for _ in range(60)], trainer)
    return tokenizer


@pytest.fixture(scope="module", params=["words", "o200k", "deepseek"])
def pair(request):
    patterns = {"words": (WORDS,), "o200k": (O200K,), "deepseek": DEEPSEEK}[request.param]
    tokenizer = trained(patterns, ignore_merges=request.param == "o200k")
    counter, reason = load_text_counter(tokenizer.to_str().encode(), {})
    assert reason is None
    return tokenizer, counter


def han_of(counter):
    han = counter._encoder._han
    assert han is not None
    return han


clauses = st.lists(
    st.one_of(
        st.text(st.sampled_from(CHARACTERS), min_size=1, max_size=9),
        st.text(st.characters(min_codepoint=FIRST, max_codepoint=LAST), min_size=1, max_size=3),
        st.text(st.sampled_from(BESIDE.replace("\ud800", "")), min_size=1, max_size=3),
    ),
    max_size=25,
).map("".join)


@given(text=clauses)
@settings(max_examples=150)
def test_counts_equal_tokenizers(pair, text):
    tokenizer, counter = pair
    text = text + CHARACTERS * 2  # above the size from which look-ups are made
    assert counter.count(text) == len(tokenizer.encode(text, add_special_tokens=False))


def test_most_of_a_chinese_text_is_looked_up(pair):
    _, counter = pair
    rng = random.Random(4)
    text = "".join(chr(rng.randrange(FIRST, LAST + 1)) for _ in range(2_000))
    rest, known = han_of(counter).reduce(text)
    assert len(rest) < len(text) / 10
    assert known > 0


def test_little_han_is_left_to_the_encoder(pair):
    _, counter = pair
    text = "文" * (LEAST - 1) + "abc"
    assert han_of(counter).reduce(text) == (text, 0)


def test_a_place_to_cut_is_one_that_no_token_crosses(pair):
    tokenizer, counter = pair
    rng = random.Random(5)
    for _ in range(50):
        text = chinese(rng, 40)
        at = han_of(counter).border(text)
        halves = (text[:at], text[at:])
        assert sum(len(tokenizer.encode(half).ids) for half in halves) == len(
            tokenizer.encode(text).ids
        )


@pytest.mark.parametrize("pattern", [WORDS, O200K, _fused_deepseek()])
def test_known_patterns_treat_han_alike(pattern):
    assert uniform(pattern)


@pytest.mark.parametrize("pattern", [r"\p{L}{1,4}|.", "的|[^的]+", r"(?<=x)\p{L}+|.", r"(.)\1|."])
def test_patterns_that_may_tell_han_apart_go_without(pattern):
    assert not uniform(pattern)


def test_a_character_that_is_a_token_only_as_a_whole_piece_is_not_looked_up():
    # Three bytes that nothing merges, listed as a token: with ignore_merges it is one token where
    # it stands alone and three inside a clause.
    ranks = {bytes([byte]): byte for byte in range(256)} | {"丁".encode(): 256}
    encoder = TiktokenEncoder(Vocabulary(ranks, WORDS, False, frozenset({"丁".encode()})))
    assert encoder.count("丁") == 1
    assert encoder.count("七丁" * LEAST) == 6 * LEAST


@pytest.mark.parametrize(
    "tokens",
    [
        [b"\x81\xe4", b"\xb8\x83", b"\x81\xe4\xb8\x83"],  # the end of 丁 with all of 七
        [b"\xb8\x81", b"\xe4\xb8\x81", b"\xe4\xb8\x81\xe4"],  # all of 丁 with a beginning
        [b"\x81\xe4"],  # an end with a beginning
        [b"\xe4\xb8", b"\xe4\xb8\x81", b"\x8c\xe4\xb8\x81"],  # the end of ， with all of 丁
        [b"\xe4\xb8", b"\xe4\xb8\x81", b" \xe4\xb8\x81"],  # a space with all of 丁
    ],
)
def test_tokens_of_parts_of_characters(tokens):
    ranks = {token: rank for rank, token in enumerate([*(bytes([b]) for b in range(256)), *tokens])}
    encoder = TiktokenEncoder(Vocabulary(ranks, WORDS, False))
    rng = random.Random(6)
    for _ in range(200):
        text = "".join(rng.choices("丁七万且， a", k=4 * LEAST))
        assert encoder.count(text) == encoder._encode(text)
