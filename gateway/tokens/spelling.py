"""From token ids back to their text: what a server answered, read with the model's own vocabulary.

A byte-level token is spelled with one character a byte, an added token with its own text. Bytes of
neighbours make characters only together, so a run of tokens between two added ones is decoded as a
whole.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson

from gateway.tokens.vocabulary import byte_alphabet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Unspelled(Exception):
    """Ids that the vocabulary cannot turn into text."""


class Spelling:
    """Texts of the ids of one tokenizer.json. Holds every token: meant to be let go after start."""

    def __init__(self, content: bytes) -> None:
        """Any JSON will do: where it is no byte-level vocabulary, nothing is spelled."""
        tokenizer: dict[str, Any] = orjson.loads(content)
        vocab = (tokenizer.get("model") or {}).get("vocab") or {}
        listed = vocab.items() if isinstance(vocab, dict) else ()
        self._texts: dict[int, str] = {number: text for text, number in listed}
        self._added: dict[int, str] = {
            token["id"]: token["content"] for token in tokenizer.get("added_tokens") or ()
        }
        self._bytes = byte_alphabet()

    def parts(self, ids: Iterable[int]) -> Iterator[tuple[str, bool]]:
        """Each added token, and each text between two of them; which it is. Unspelled."""
        for is_added, run in groupby(ids, self._added.__contains__):
            if is_added:
                yield from ((self._added[number], True) for number in run)
            else:
                yield self._text(run), False

    def _text(self, run: Iterable[int]) -> str:
        try:
            spelled = "".join(self._texts[number] for number in run)
            return bytes(self._bytes[char] for char in spelled).decode()
        except (KeyError, UnicodeDecodeError):
            raise Unspelled from None
