"""Six real vocabularies, 20,000 texts each, against `tokenizers`: not one differs. Slow. Five are counted by
tiktoken, and Gemma's, which is none of that kind, by `tokenizers` itself.

Every code point of the blocks in which scripts live, in five contexts; sentences in 16 languages;
the standard library's code and prose; decomposed accents; whole and cut special tokens; white
space; long runs; random characters, unassigned ones included. See `texts`.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest
import tokenizers

from gateway.tokens.encoder import TextCounter, load_text_counter
from tests.tokens import fetch_tokenizers
from tests.tokens.texts import library, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEXTS = 20_000
LEAST = 1_500_000  # tokens: a suite that compares less has lost its texts
BLOCKS = (
    (0x20, 0x3400), (0x4DB0, 0x5200), (0x9FA0, 0xAE00), (0xD7A0, 0xD800), (0xE000, 0xE010),
    (0xF8F0, 0x11000), (0x11000, 0x13000), (0x16000, 0x17000), (0x1B000, 0x1B200),
    (0x1D000, 0x20010), (0x2F800, 0x2FA20), (0xE0000, 0xE0200), (0x10FFF0, 0x110000),
)  # fmt: skip


@pytest.fixture(scope="module", params=fetch_tokenizers.FAMILIES)
def family(
    request: pytest.FixtureRequest,
) -> tuple[str, TextCounter, tokenizers.Tokenizer, list[str]]:
    directory = fetch_tokenizers.folder() / request.param
    if not directory.is_dir() and fetch_tokenizers.main():
        pytest.skip("the tokenizers are not here: python -m tests.tokens.fetch_tokenizers")
    content = (directory / "tokenizer.json").read_bytes()
    config = json.loads((directory / "tokenizer_config.json").read_bytes())
    counter, reason = load_text_counter(content, config)
    assert (reason is None) is (request.param != "gemma3"), reason
    specials = [token["content"] for token in json.loads(content)["added_tokens"]]
    return request.param, counter, tokenizers.Tokenizer.from_buffer(content), specials


def code_points() -> Iterator[str]:
    for low, high in BLOCKS:
        for start in range(low, high, 8):
            chars = [chr(c) for c in range(start, min(start + 8, high)) if not 0xD800 <= c < 0xE000]
            yield "".join(f"a{c}b {c} {c}{c}1{c}\n{c}.{c}e\u0301 一{c}ァ" for c in chars)


def test_texts(family: tuple[str, TextCounter, tokenizers.Tokenizer, list[str]]) -> None:
    name, counter, reference, specials = family
    points = list(code_points())
    generated = itertools.islice(texts(2026, specials), TEXTS - len(points) - 1)
    everything = [*points, library(), *generated]
    compared, total = 0, 0
    for start in range(0, len(everything), 500):
        batch = everything[start : start + 500]
        expected = reference.encode_batch_fast(batch, add_special_tokens=False)
        for text, encoding in zip(batch, expected, strict=True):
            assert counter.count(text) == len(encoding), (name, text[:200])
            compared, total = compared + 1, total + len(encoding)
    assert compared == TEXTS
    assert total > LEAST


def test_texts_around_special_tokens_of_plain_encoding(
    family: tuple[str, TextCounter, tokenizers.Tokenizer, list[str]],
) -> None:
    name, counter, reference, _ = family
    if name == "deepseek_v3":
        pytest.skip("its tokenizer class adds the token, not the file")
    assert counter.prefix == len(reference.encode("x")) - len(
        reference.encode("x", add_special_tokens=False)
    )
