"""Counting text equals `tokenizers`, for every form of vocabulary, on anything anybody may write."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from gateway.tokens.blocks import BLOCK, LONGEST
from gateway.tokens.encoder import (
    _UNUSED_SPECIAL,
    HuggingFaceEncoder,
    TiktokenEncoder,
    Unencodable,
    load_text_counter,
    special_prefix,
)
from gateway.tokens.pretokenizer import Unsupported, pattern_of
from gateway.tokens.vocabulary import last_left, read_vocabulary
from tests.tokens.conftest import (
    CORPUS,
    DEEPSEEK,
    O200K,
    SPECIALS,
    parsed,
    train,
    with_start_token,
)

ALPHABET = "aAéßǅ 1٣\n\r\t\u00a0\u200b.,-/'s<|>\u0301\u0323\u3099一漢゙・ーァ한ไ🙂\x00\ufffdK;`"
pieces = st.one_of(
    st.text(st.sampled_from(ALPHABET), max_size=12),
    st.sampled_from(SPECIALS),
    st.sampled_from([special[:-2] for special in SPECIALS]),
    st.sampled_from([word for text in CORPUS[:6] for word in text.split(" ")]),
    st.text(max_size=6),
)
texts = st.lists(pieces, max_size=8).map("".join)

FORMS = {
    "qwen": train,
    "gpt2": lambda: train(()),
    "deepseek": lambda: train(DEEPSEEK, use_nfc=False),
    "o200k": lambda: train((O200K,), use_nfc=False, ignore_merges=True),
    "gaps": lambda: train((r"\p{L}+|\p{N}",), use_nfc=False),
}


def counter_for(tokenizer):
    counter, reason = load_text_counter(tokenizer.to_str().encode(), {})
    assert reason is None
    return counter


@pytest.fixture(scope="module", params=list(FORMS))
def pair(request):
    tokenizer = FORMS[request.param]()
    return tokenizer, counter_for(tokenizer)


@given(text=texts)
@settings(max_examples=150)
def test_counts_equal_tokenizers(pair, text):
    tokenizer, counter = pair
    assert counter.count(text) == len(tokenizer.encode(text, add_special_tokens=False))
    assert sum(tokens for _, tokens in counter.segments(text)) == counter.count(text)
    assert "".join(piece for piece, _ in counter.segments(text)) == text


def test_every_character_counts_alike(pair):
    tokenizer, counter = pair
    blocks = [
        range(0x20, 0x800),
        range(0x2000, 0x3400),
        range(0xA640, 0xAC10),
        range(0x1F300, 0x1F700),
    ]
    shown = [f"a{chr(c)}b {chr(c)}1{chr(c)}\n" for block in blocks for c in block]
    lines = ["".join(shown[at : at + 16]) for at in range(0, len(shown), 16)]
    expected = [len(e) for e in tokenizer.encode_batch_fast(lines, add_special_tokens=False)]
    assert [counter.count(line) for line in lines] == expected


def test_a_form_that_is_not_byte_level_bpe_goes_through_tokenizers():
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, show_progress=False, special_tokens=["<unk>", "<s>"]
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    counter, reason = load_text_counter(tokenizer.to_str().encode(), {})
    assert reason == "not plain BPE"
    for text in (*CORPUS, "a<s>b <s> c", ""):
        assert counter.count(text) == len(tokenizer.encode(text, add_special_tokens=False))


def changed(**changes):
    return {**parsed(train()), **changes}


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (changed(normalizer={"type": "NFKC"}), "normalizer"),
        (changed(pre_tokenizer=None), "no pre-tokenizer"),
        (changed(pre_tokenizer={"type": "Whitespace"}), "ByteLevel"),
        (
            changed(added_tokens=[{"content": "<s>", "lstrip": True, "normalized": False}]),
            "strips spaces",
        ),
        (changed(added_tokens=[{"content": "<s>", "normalized": True}]), "after NFC"),
        (changed(model={**parsed(train())["model"], "dropout": 0.1}), "plain BPE"),
    ],
)
def test_unknown_forms_are_not_guessed_at(tokenizer, reason):
    with pytest.raises(Unsupported, match=reason):
        read_vocabulary(tokenizer)


def test_a_vocabulary_whose_ranks_would_merge_otherwise_is_refused():
    tokenizer = parsed(train())
    # "abc" is listed as a+bc, but ab comes before bc: its bytes would form it as ab+c.
    for token in ("ab", "bc", "abc"):
        tokenizer["model"]["vocab"].setdefault(token, len(tokenizer["model"]["vocab"]))
    kept = [
        pair for pair in tokenizer["model"]["merges"] if "".join(pair) not in {"ab", "bc", "abc"}
    ]
    tokenizer["model"]["merges"] = [["a", "b"], ["b", "c"], ["a", "bc"], *kept]
    with pytest.raises(Unsupported, match="merge order"):
        read_vocabulary(tokenizer)


def test_a_merge_listed_again_later_is_not_taken_for_its_first_turn():
    tokenizer = parsed(train())
    for token in ("xq", "qz", "xqz"):
        tokenizer["model"]["vocab"].setdefault(token, len(tokenizer["model"]["vocab"]))
    rest = tokenizer["model"]["merges"]
    # xqz is first listed as x+qz; its bytes form it as xq+z, which is listed only later.
    tokenizer["model"]["merges"] = [["x", "q"], ["q", "z"], ["x", "qz"], *rest, ["xq", "z"]]
    with pytest.raises(Unsupported, match="merge order"):
        read_vocabulary(tokenizer)


def test_tokens_that_bytes_cannot_form_count_only_where_words_are_looked_up():
    for ignore_merges in (False, True):
        tokenizer = parsed(train(use_nfc=False))
        tokenizer["model"]["ignore_merges"] = ignore_merges
        tokenizer["model"]["vocab"]["zqxj"] = max(tokenizer["model"]["vocab"].values()) + 100
        reference = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
        counter = counter_for(reference)
        for text in ("zqxj", " zqxj", "zqxj zqxj1", "zqxjzqxj"):
            assert counter.count(text) == len(reference.encode(text, add_special_tokens=False))
        assert (counter.count("zqxj") == 1) is ignore_merges


def test_last_left_is_the_half_before_the_last_merge():
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"ab": 3, b"abc": 4}
    assert last_left(b"abc", ranks) == b"ab"
    assert last_left(b"cba", ranks) is None


def test_a_pattern_that_drops_gaps_stays_as_it_is():
    split = {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Removed", "invert": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    assert pattern_of({"type": "Sequence", "pretokenizers": [split, level]}) == "x+"
    with pytest.raises(Unsupported, match="behaviour"):
        pattern_of({"type": "Sequence", "pretokenizers": [{**split, "invert": False}, level]})


def test_special_tokens_around_plain_text():
    plain, started = parsed(train()), parsed(with_start_token(train()))
    assert special_prefix(plain, {}) == 0
    assert special_prefix(started, {}) == 1
    assert special_prefix(plain, {"tokenizer_class": "LlamaTokenizerFast"}) == 1
    assert special_prefix(plain, {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}) == 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "e" + "\u0316\u0301" * 200_000,
        "的" * 300_000,
        "\u0301" * 40_000,
        "<|" * 300_000,
    ],
    ids=["letters", "marks", "cjk", "one mark", "half specials"],
)
def test_adversarial_text_is_bounded(qwen_like, text):
    counter = counter_for(qwen_like)
    try:
        assert 0 < counter.count(text) <= len(text.encode())
    except Unencodable:
        assert len(text) > BLOCK + LONGEST  # a run too long to be a text


def test_a_million_spaces_are_not_encoded(qwen_like):
    encoder = TiktokenEncoder(read_vocabulary(parsed(qwen_like)))
    with pytest.raises(Unencodable):
        encoder.count(" " * 2_000_000)


def test_the_special_token_that_is_never_used_is_text_like_any_other(qwen_like):
    text = f"a{_UNUSED_SPECIAL}b {_UNUSED_SPECIAL * 3}"
    expected = len(qwen_like.encode(text, add_special_tokens=False))
    assert counter_for(qwen_like).count(text) == expected


def test_the_fallback_ignores_truncation_and_padding():
    tokenizer = train()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    assert HuggingFaceEncoder(tokenizer.to_str().encode()).count("a b c d e f g h") > 4
