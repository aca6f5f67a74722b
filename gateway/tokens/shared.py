"""One vocabulary, and one memory of pieces, for all servers with the same tokenizer.json.

Eight servers of one model would be eight vocabularies of 110 MB (Qwen3's) that are read one after the other, and a
prompt would be cut and remembered eight times. What a server puts around texts is found out from itself, and its own.
"""

from __future__ import annotations

from copy import copy
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from gateway.tokens.encoder import load_text_counter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.tokens.encoder import TextCounter

_PREFIXED: Final = ("tokenizer_class", "add_bos_token", "add_eos_token")
"""What is read of tokenizer_config.json besides: see `special_prefix`."""


class Vocabulary:
    """What was read once. It goes with the last that uses it."""

    def __init__(self, text: TextCounter, notes: tuple[str, ...]) -> None:
        self.text, self.notes = text, notes


_known: Final[WeakValueDictionary[tuple[object, ...], Vocabulary]] = WeakValueDictionary()
_reading: Final = Lock()
"""One at a time, in threads: who comes with the same files meanwhile finds them read."""


def text_counter(
    content: bytes, config: Mapping[str, Any], *, fast: bool = False
) -> tuple[TextCounter, tuple[str, ...]]:
    """(counter, notes for people) of a tokenizer.json and its config; with `fast` as `TextCounter.use_fast`.

    Takes seconds for the first of a kind. Raises as `load_text_counter`.
    """
    key = (sha256(content).digest(), fast, *(str(config.get(name)) for name in _PREFIXED))
    with _reading:
        if (vocabulary := _known.get(key)) is None:
            vocabulary = _known[key] = _read(content, config, fast=fast)
    counter = copy(vocabulary.text)
    counter.shared = vocabulary
    return counter, vocabulary.notes


def _read(content: bytes, config: Mapping[str, Any], *, fast: bool) -> Vocabulary:
    text, reason = load_text_counter(content, config)
    notes = [] if reason is None else [f"Counting with `tokenizers`, not tiktoken: {reason}."]
    if fast:
        notes.append(text.use_fast(content))
    return Vocabulary(text, tuple(notes))
