"""NFC equals Python's own, in time that marks cannot blow up, and its growth is bounded."""

import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens import nfc

MARKS = [chr(c) for c in range(0x300, 0x370)] + ["\u0f73", "\u0344", "\u3099", "\U0001d165"]
DECOMPOSING = [chr(c) for c in range(0xC0, 0x3000) if unicodedata.decomposition(chr(c))]
HANGUL = [*map(chr, range(0xAC00, 0xAC80)), *map(chr, range(0x1100, 0x1200))]
texts = st.lists(
    st.sampled_from(MARKS)
    | st.sampled_from(DECOMPOSING)
    | st.sampled_from(HANGUL)
    | st.characters()
).map("".join)


@given(texts)
def test_equals_python(text):
    expected = unicodedata.normalize("NFC", text)
    assert nfc.nfc(text) == expected
    if nfc.is_clean(text):
        assert text == expected


@given(texts)
def test_the_bound_holds_before_and_after(text):
    bound = nfc.bytes_bound(text)
    assert bound >= len(text.encode("utf-8", "surrogatepass"))
    assert bound >= len(unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass"))


def test_clean_text_is_bounded_by_its_own_bytes():
    assert nfc.bytes_bound("模型的词表 한국어") == len("模型的词表 한국어".encode())


def test_long_runs_of_marks_are_put_in_order_first():
    marks = random.Random(3).choices(MARKS, k=3_000)
    text = "e" + "".join(marks) + "é"
    assert nfc.nfc(text) == unicodedata.normalize("NFC", text)


def test_chunks_are_cut_where_nfc_cannot_reach_across():
    for shift in range(-3, 3):
        text = "x" * (nfc._CHUNK + shift) + "e\u0323\u0301\u0302한\u1161\u11a8" * 3
        assert nfc.nfc(text) == unicodedata.normalize("NFC", text)


@pytest.mark.timeout(10)
def test_a_run_that_would_take_minutes_does_not():
    # Unsorted: Python alone takes more than 25 s for this.
    text = ("e" + "\u0301\u0316" * 30_000 + "x") * 6
    normal = nfc.nfc(text)
    assert normal.startswith("\u00e9\u0316\u0316")
    assert len(normal) == len(text) - 6


def test_an_endless_run_is_refused():
    with pytest.raises(nfc.EndlessRun):
        nfc.nfc("e" + "\u0301" * 300_000)
