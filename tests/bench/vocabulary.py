"""A tokenizer to count with: a real one where `tests.tokens.fetch_tokenizers` has fetched it (Qwen3,
152,000 tokens), else one that is trained here in a moment and does the same work on a small table.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.tokens import fetch_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

REAL = "qwen3"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = (
    "You are a helpful assistant. Where did the river begin? It began in the hills.",
    "so tell me more of it, and count from 0123456789 to the end of the line.",
)


def folder(scratch: Path) -> Path:
    """A folder with tokenizer.json and tokenizer_config.json."""
    real = fetch_tokenizers.folder() / REAL
    return real if (real / "tokenizer.json").is_file() else _trained(scratch / "tokenizer")


def name() -> str:
    """For the report."""
    there = (fetch_tokenizers.folder() / REAL / "tokenizer.json").is_file()
    return "Qwen3's" if there else "a small one made for the run"


def _trained(home: Path) -> Path:
    home.mkdir(exist_ok=True)
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    specials = ["<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXT * 4, trainer)
    made.save(str(home / "tokenizer.json"))
    (home / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return home
