"""Cuts a text at its added tokens, and remembers how many tokens each piece between them has.

An added token is cut out before anything else happens to the text, so the pieces between are
normalised, split and merged each by itself: a text has as many tokens as its pieces and cuts
together. A conversation that grows by a turn keeps its old pieces, and only the new ones cost
encoding. Remembered are a keyed hash and a number, never text: the key is random per process, so
nobody can prepare two texts that collide, nor test a dump for a guessed one.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.tokens.vocabulary import AddedToken

_DIGEST: Final = 16  # bytes: 2^64 pieces before a collision is likely, with a key nobody knows

_STEP: Final = 1 << 16  # characters hashed at once: encoding holds the GIL, some 0.05 ms

# Memory of an entry, bytes: digest object 49, integer 28, table and links of an OrderedDict 155.
# Measured with tracemalloc over 200,000 entries.
ENTRY_BYTES: Final = 232


class Splitter:
    """Finds added tokens as Hugging Face does: leftmost, longest, those not normalised first."""

    def __init__(self, added: Iterable[AddedToken]) -> None:
        tokens = list(added)
        raw = [token.content for token in tokens if not token.normalized]
        rest = [token.content for token in tokens if token.normalized]
        self._patterns = [re.compile(f"({_alternation(words)})") for words in (raw, rest) if words]

    def split(self, text: str) -> tuple[list[str], int]:
        """(the pieces between added tokens, empty ones left out; how many added tokens)."""
        pieces, cuts = [text], 0
        for pattern in self._patterns:
            finer: list[str] = []
            for piece in pieces:
                parts = pattern.split(piece)
                finer += parts[::2]
                cuts += len(parts) >> 1
            pieces = finer
        return [piece for piece in pieces if piece], cuts

    def parts(self, text: str) -> list[tuple[str, bool]]:
        """Every part of `text` in order, and whether it is an added token."""
        parts = [(text, False)]
        for pattern in self._patterns:
            finer: list[tuple[str, bool]] = []
            for part, is_added in parts:
                if is_added:
                    finer.append((part, True))
                else:
                    split = pattern.split(part)
                    finer += [(piece, bool(at & 1)) for at, piece in enumerate(split) if piece]
            parts = finer
        return parts


def _alternation(words: Iterable[str]) -> str:
    """A pattern for any of `words`, the longest that fits, as a trie.

    A plain alternation of DeepSeek's 818 tokens tries each at every position (0.4 s a MB); a trie
    leaves at the first character that none of them continues with (8 ms).
    """
    root: dict[str, dict[str, object]] = {}
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, {})  # type: ignore[assignment]
        node[""] = {}
    return _trie_pattern(root)


def _trie_pattern(node: dict[str, dict[str, object]]) -> str:
    branches: dict[str, list[str]] = {}
    for char, child in node.items():
        if char:
            branches.setdefault(_trie_pattern(child), []).append(re.escape(char))  # type: ignore[arg-type]
    options = [
        (chars[0] if len(chars) == 1 else f"[{''.join(chars)}]") + tail
        for tail, chars in branches.items()
    ]
    if not options:
        return ""
    whole = "|".join(options)
    if "" in node:
        return f"(?:{whole})?"
    return whole if len(options) == 1 else f"(?:{whole})"


class SegmentCache:
    """Token counts by keyed hash of the text; least recently used go first. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        """Hold at most `max_bytes` of memory, counted at ENTRY_BYTES an entry."""
        self._most = max(1, max_bytes // ENTRY_BYTES)
        # The key fills SHA-256's first block, so that it is mixed in once and for all. Processors
        # compute SHA-256 themselves: 0.6 ms a MB here, BLAKE2b 1.3.
        self._keyed = sha256(secrets.token_bytes(64))
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._lock = Lock()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._counts)

    def key_of(self, text: str) -> bytes:
        """The keyed hash under which a piece is remembered."""
        keyed = self._keyed.copy()
        for at in range(0, len(text), _STEP):
            keyed.update(text[at : at + _STEP].encode("utf-8", "surrogatepass"))
        return keyed.digest()[:_DIGEST]

    def get(self, key: bytes) -> int | None:
        """The count remembered under `key`."""
        with self._lock:
            count = self._counts.get(key)
            if count is None:
                self.misses += 1
                return None
            self.hits += 1
            self._counts.move_to_end(key)
            return count

    def put(self, key: bytes, count: int) -> None:
        """Remember `count`, and forget the least recently used above the limit."""
        with self._lock:
            self._counts[key] = count
            self._counts.move_to_end(key)
            if len(self._counts) > self._most:
                self._counts.popitem(last=False)
