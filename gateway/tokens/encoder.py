"""Counts the tokens of plain text: with tiktoken where it is proven equal, else with `tokenizers`.

Both release the GIL while they encode, so a thread can count without stopping the event loop. They
do not while they build lists of a hundred thousand Python integers; so tiktoken's numpy form and
tokenizers' batch form without offsets are used, which make none. Only the length is ever looked at.

fastokens (0.3.5) is four to ten times faster than tiktoken on text never seen, and is not used: it
keeps the words of what it encodes in a cache that nothing switches off. Words of a client's text
were found in the process's memory after 120,000 others had been encoded, where tiktoken left none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
import tiktoken
import tokenizers

from gateway.tokens.nfc import EndlessRun, nfc
from gateway.tokens.nfc import warm as warm_nfc
from gateway.tokens.pretokenizer import Unsupported
from gateway.tokens.segments import SegmentCache, Splitter
from gateway.tokens.vocabulary import Vocabulary, added_tokens, read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE_BYTES: Final = 32 << 20
"""Memory for remembered pieces: 144,000 of them, some hundreds of long conversations."""

_NOTHING: Final[frozenset[str]] = frozenset()

# tiktoken searches a text for special tokens even where none is allowed, with an expression made of
# all of them. Made of none it matches between any two bytes: 70 ms of 115 for 1 MB of English
# (0.14.0). Made of this one, of characters no text has in a row, it is a search for a literal.
_UNUSED_SPECIAL: Final = "\x1e\x1f\x1e\x1f"


class Unencodable(Exception):
    """A text that cannot be encoded in bounded time. No real text is known to be one."""


class Encoder(Protocol):
    """Counts a piece of text without added tokens in it. Thread-safe."""

    def count(self, text: str) -> int:
        """Tokens of `text`; Unencodable where that would take unbounded time."""


class TiktokenEncoder:
    """A proven byte-level vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._nfc = vocabulary.nfc
        self._encoding = tiktoken.Encoding(
            "served",
            pat_str=vocabulary.pattern,
            mergeable_ranks=vocabulary.ranks,
            special_tokens={_UNUSED_SPECIAL: max(vocabulary.ranks.values()) + 1},
        )
        if self._nfc:
            warm_nfc()

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        try:
            if self._nfc:
                text = nfc(text)
            tokens = self._encoding.encode_to_numpy(
                text, allowed_special=_NOTHING, disallowed_special=_NOTHING
            )
        except EndlessRun:
            raise Unencodable from None
        except ValueError:
            # The regular expression's own limit on backtracking: a million spaces in a row.
            raise Unencodable from None
        return int(tokens.size)


class HuggingFaceEncoder:
    """Any other tokenizer.json. About 15 times slower; no exactness to prove."""

    def __init__(self, content: bytes) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        """Tokens of `text`. The batch form alone releases the GIL while it works."""
        return len(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])


class TextCounter:
    """Counts whole texts: cut at added tokens, looked up, encoded where new. Thread-safe."""

    def __init__(
        self,
        encoder: Encoder,
        splitter: Splitter,
        *,
        prefix: int = 0,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """`prefix` is the number of special tokens that the tokenizer puts around plain text."""
        self._encoder = encoder
        self._splitter = splitter
        self.prefix = prefix
        self.cache = SegmentCache(cache_bytes)

    def count(self, text: str) -> int:
        """Tokens of `text`, added tokens in it included, without `prefix`. Raises Unencodable."""
        pieces, total = self._splitter.split(text)
        cache, encode = self.cache, self._encoder.count
        for piece in pieces:
            key = cache.key_of(piece)
            tokens = cache.get(key)
            if tokens is None:
                tokens = encode(piece)
                cache.put(key, tokens)
            total += tokens
        return total

    def segments(self, text: str) -> list[tuple[str, int]]:
        """(piece, tokens) in order, added tokens included: for people who ask where tokens go."""
        return [
            (piece, 1 if is_added else self._encoder.count(piece))
            for piece, is_added in self._splitter.parts(text)
        ]


def load_text_counter(content: bytes, config: Mapping[str, Any]) -> tuple[TextCounter, str | None]:
    """(counter, why tiktoken could not be used or None) from a tokenizer.json and its config.

    Takes seconds. Raises ValueError where the file is not a tokenizer at all.
    """
    tokenizer = orjson.loads(content)
    prefix = special_prefix(tokenizer, config)
    try:
        vocabulary = read_vocabulary(tokenizer)
        splitter = Splitter(added_tokens(tokenizer))
        return TextCounter(TiktokenEncoder(vocabulary), splitter, prefix=prefix), None
    except Unsupported as why:
        reason = str(why)
    return TextCounter(HuggingFaceEncoder(content), _splitter_for(tokenizer), prefix=prefix), reason


def _splitter_for(tokenizer: Mapping[str, Any]) -> Splitter:
    """The cuts that `tokenizers` itself would make; none where a cut would change what is around it.

    SentencePiece's Metaspace may treat the first piece of a text differently, and added tokens may
    take spaces with them: then the text goes in whole.
    """
    steps = tokenizer.get("pre_tokenizer") or {}
    if "Metaspace" in str(steps) or "Prepend" in str(tokenizer.get("normalizer")):
        return Splitter(())
    try:
        return Splitter(added_tokens(tokenizer))
    except Unsupported:
        return Splitter(())


def special_prefix(tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Special tokens put around plain text (a beginning-of-sequence, mostly).

    The file's post-processor says so. Llama's tokenizer class makes its own from `add_bos_token`
    and `add_eos_token` (DeepSeek V3's file has none, and gets its token that way).
    """
    if str(config.get("tokenizer_class", "")).startswith("LlamaTokenizer"):
        return bool(config.get("add_bos_token", True)) + bool(config.get("add_eos_token", False))
    return _specials_of(tokenizer.get("post_processor"))


def _specials_of(post: Mapping[str, Any] | None) -> int:
    if post is None:
        return 0
    match post.get("type"):
        case "Sequence":
            return sum(_specials_of(step) for step in post["processors"])
        case "TemplateProcessing":
            return sum("SpecialToken" in item for item in post["single"])
        case "BertProcessing" | "RobertaProcessing":
            return 2
        case _:
            return 0
