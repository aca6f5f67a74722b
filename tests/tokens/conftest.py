"""Tokenizers small enough to train in a moment, of the forms that the big ones have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from gateway.tokens import nfc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^XX\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[XX]*|\s*[XX]+|\s+(?!\S)|\s+""".replace(
        "XX", "\r\n"
    ),
)

CORPUS = (
    "The quick brown fox jumps over the lazy dog. It isn't here, they're there; 12345 67 2026!",
    "def count(self, text: str) -> int:\n    return len(self.encode(text))  # exact\n\n",
    "词表与分词，日本語のテストです、한국어 시험。模型的上下文长度是有限的。カタカナ・テスト",
    "naïve café e\u0301te\u0301 Ünïcödé العربية اللُّغَةُ हिन्दी ไทย 👩🏽\u200d🚀🚀",
    '{"name": "weather", "arguments": {"city": "Zürich", "days": 3, "raw": null}}',
    "    \t\t\n\n   indented     spaces \r\n\r\n and <tags> </tags> <|half| |im_end>",
) * 4

SPECIALS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|im_end|>x",
    "<|end|>",
    "<think>",
    "</think>",
    "<tool_call>",
]

CHATML = """
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif %}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}{{ message.content }}{% else %}
        {%- for part in message.content %}{{ part.text or '<' + part.type + '>' }}{% endfor %}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
    {%- if reasoning_effort is defined %}{{ 'effort ' + (reasoning_effort or 'none') }}{% endif %}
{%- endif %}"""


def train(
    patterns: tuple[str, ...] = (WORDS,), *, use_nfc: bool = True, ignore_merges: bool = False
) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer of 700 tokens that splits by `patterns`."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if use_nfc:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in patterns]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, level])
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def with_start_token(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same, with <|im_start|> put before plain text."""
    start = tokenizer.token_to_id("<|im_start|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)]
    )
    return tokenizer


def parsed(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    return json.loads(tokenizer.to_str())


@pytest.fixture(scope="session", autouse=True)
def _warm() -> None:
    nfc.warm()  # or the first example of a property would be late


@pytest.fixture(scope="session")
def qwen_like() -> tokenizers.Tokenizer:
    return train()


@pytest.fixture(scope="session")
def model_dir(qwen_like: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory: tokenizer.json, settings and a ChatML template."""
    return write_model(tmp_path_factory.mktemp("model"), qwen_like)


def write_model(directory: Path, tokenizer: tokenizers.Tokenizer, template: str = CHATML) -> Path:
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": None, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def hf_count(qwen_like: tokenizers.Tokenizer) -> Callable[[str], int]:
    """What `tokenizers` itself says."""
    return lambda text: len(qwen_like.encode(text, add_special_tokens=False))
