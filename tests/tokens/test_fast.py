"""fastokens is used only where it is asked for, is there, and counts alike."""

import sys
import types

import pytest

from gateway.tokens import build_counter
from gateway.tokens.encoder import load_text_counter
from gateway.tokens.fast import PROBES, probes
from gateway.tokens.vocabulary import Unencodable


class Panic(BaseException):
    """As a Rust panic arrives: no Exception."""


@pytest.fixture
def engine(monkeypatch, qwen_like):
    """A module `fastokens` that counts right, until `off_by` is set or `refuses` raises."""

    class Tokenizer:
        off_by = 0
        refuses: BaseException | None = None
        asked = 0

        @classmethod
        def from_json_str(cls, text):
            assert text == qwen_like.to_str()
            return cls()

        def encode_batch_flat(self, texts):
            Tokenizer.asked += 1
            if self.refuses:
                raise self.refuses
            (text,) = texts
            count = len(qwen_like.encode(text, add_special_tokens=False)) + self.off_by
            return bytes(4 * count), b""

    module = types.ModuleType("fastokens")
    module.Tokenizer = Tokenizer
    monkeypatch.setitem(sys.modules, "fastokens", module)
    monkeypatch.setattr("gateway.tokens.fast.PROBES", 40)
    return Tokenizer


def fast_and_note(tokenizer):
    content = tokenizer.to_str().encode()
    counter, _ = load_text_counter(content, {})
    return counter, counter.use_fast(content)


def test_used_where_it_counts_alike(engine, qwen_like, hf_count):
    counter, note = fast_and_note(qwen_like)
    assert note == "Counting with fastokens: equal on all of 40 texts tried."
    before = engine.asked
    text = "a text <|im_end|> in two pieces"
    assert counter.count(text) == hf_count(text)
    assert engine.asked == before + 2


def test_not_used_where_one_count_differs(engine, qwen_like, hf_count):
    engine.off_by = 1
    counter, note = fast_and_note(qwen_like)
    assert note == "fastokens counts 40 of 40 texts differently: not used."
    assert counter.count("some text") == hf_count("some text")


def test_not_used_where_it_cannot_load(engine, qwen_like, hf_count, monkeypatch):
    def from_json_str(text):
        raise Panic

    monkeypatch.setattr(engine, "from_json_str", from_json_str)
    counter, note = fast_and_note(qwen_like)
    assert note == "fastokens cannot load this tokenizer (Panic): not used."
    assert counter.count("some text") == hf_count("some text")


def test_not_there(qwen_like, hf_count, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    counter, note = fast_and_note(qwen_like)
    assert "pip install" in note
    assert counter.count("some text") == hf_count("some text")


def test_what_it_refuses_is_counted_without_it(engine, qwen_like, hf_count):
    counter, _ = fast_and_note(qwen_like)
    for refused in (ValueError(), Panic()):
        engine.refuses = refused
        assert counter.count(f"text {refused!r}") == hf_count(f"text {refused!r}")
    engine.refuses = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        counter.count("more text")


def test_the_bounds_are_the_same(engine, qwen_like):
    counter, _ = fast_and_note(qwen_like)
    before = engine.asked
    with pytest.raises(Unencodable):
        counter.count("!" * 1_000_000)
    assert engine.asked == before


async def test_asked_for_through_build(engine, model_dir, monkeypatch):
    monkeypatch.setattr(
        engine, "from_json_str", classmethod(lambda cls, text: cls())
    )  # the file is saved with indents
    counter = await build_counter(
        tokenizer_dir=model_dir, engine_version=None, remote=None, fast=True
    )
    assert "Counting with fastokens: equal on all of 40 texts tried." in counter.notes
    without = await build_counter(tokenizer_dir=model_dir, engine_version=None, remote=None)
    assert not any("fastokens" in note for note in without.notes)


def test_probes_are_many_and_the_same_every_time():
    words = ["one", " two", "三"]
    first = list(probes(words))
    assert len(first) == PROBES == len(set(first))
    assert first == list(probes(words))
