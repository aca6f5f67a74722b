"""Counts the tokens of plain text: with tiktoken where it is proven equal, else with `tokenizers`.

Both release the GIL while they encode, so a thread can count without stopping the event loop. They
do not while they build lists of a hundred thousand Python integers; so tiktoken's numpy form and
tokenizers' batch form without offsets are used, which make none. Only the length is ever looked at.

fastokens, faster still, has to be asked for, because it keeps words of the texts: see `fast`.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
import tiktoken
import tokenizers

from gateway.tokens.blocks import counted, has_borders
from gateway.tokens.fast import fast_encoder
from gateway.tokens.han import HanWords, uniform
from gateway.tokens.nfc import EndlessRun, nfc
from gateway.tokens.nfc import warm as warm_nfc
from gateway.tokens.pretokenizer import Unsupported
from gateway.tokens.segments import SegmentCache, Splitter
from gateway.tokens.vocabulary import (
    OutOfTime,
    Unencodable,
    Vocabulary,
    added_tokens,
    read_vocabulary,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

CACHE_BYTES: Final = 32 << 20
"""Memory for remembered pieces: 144,000 of them, some hundreds of long conversations."""

LONGEST_WHOLE: Final = 2 << 20
"""Characters that `tokenizers` gets, which cannot be stopped: about 1 s; half a million tokens."""

MOST_MARKS: Final = 1024
"""Marks of one prompt: some 500 messages. What follows is not known to have been read before."""

_NOTHING: Final[frozenset[str]] = frozenset()

# tiktoken searches a text for special tokens even where none is allowed, with an expression made of
# all of them. Made of none it matches between any two bytes: 70 ms of 115 for 1 MB of English
# (0.14.0). Made of this one, of characters no text has in a row, it is a search for a literal.
_UNUSED_SPECIAL: Final = "\x1e\x1f\x1e\x1f"


class Encoder(Protocol):
    """Counts a piece of text without added tokens in it. Thread-safe."""

    @property
    def cuts(self) -> bool:
        """Whether a text may be cut at borders (see `blocks`) and its blocks counted alone."""

    @property
    def nfc(self) -> bool:
        """Whether texts are normalised first."""

    def count(self, text: str, until: float = math.inf) -> int:
        """Tokens of `text`; Unencodable where that would take unbounded time.

        `until` is a moment of `time.monotonic`; OutOfTime some time after it.
        """


class TiktokenEncoder:
    """A proven byte-level vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.nfc = vocabulary.nfc
        self._encoding = tiktoken.Encoding(
            "served",
            pat_str=vocabulary.pattern,
            mergeable_ranks=vocabulary.ranks,
            special_tokens={_UNUSED_SPECIAL: max(vocabulary.ranks.values()) + 1},
        )
        if self.nfc:
            warm_nfc()
        self.cuts = has_borders(vocabulary.pattern)
        self._han: HanWords | None = None
        if uniform(vocabulary.pattern):
            with suppress(ValueError):  # no neutral character: then without this help
                self._han = HanWords(vocabulary.ranks, vocabulary.unformable, self._encode)
        # A cut inside a run of letters makes new pieces, which a look-up of whole pieces would see.
        self._other_border = None if vocabulary.unformable or not self._han else self._han.border

    def count(self, text: str, until: float = math.inf) -> int:
        """Tokens of `text`."""
        try:
            if self.nfc:
                text = nfc(text)
        except EndlessRun:
            raise Unencodable from None
        border = self._other_border
        return counted(text, self._block, until, cuts=self.cuts, other_border=border)

    def _block(self, text: str) -> int:
        rest, known = text, 0
        if self._han is not None and not text.isascii():
            rest, known = self._han.reduce(text)
        return known + self._encode(rest)

    def _encode(self, text: str) -> int:
        try:
            tokens = self._encoding.encode_to_numpy(
                text, allowed_special=_NOTHING, disallowed_special=_NOTHING
            )
        except ValueError:
            # The regular expression's own limit on backtracking: a million spaces in a row.
            raise Unencodable from None
        return int(tokens.size)


class HuggingFaceEncoder:
    """Any other tokenizer.json. About 15 times slower; no exactness to prove."""

    cuts = False  # its pre-tokenizer is not known
    nfc = False  # done inside

    def __init__(self, content: bytes) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str, until: float = math.inf) -> int:
        """Tokens of `text`. The batch form alone releases the GIL while it works."""
        if time.monotonic() > until:
            raise OutOfTime
        if len(text) > LONGEST_WHOLE:
            raise Unencodable
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
        ids: int | None = None,
    ) -> None:
        """`prefix` is the number of special tokens that the tokenizer puts around plain text, `ids`
        one more than its largest token id."""
        self.ids = ids
        self._encoder = encoder
        self._splitter = splitter
        self.prefix = prefix
        self.cache = SegmentCache(cache_bytes)
        self.shared: object = None
        """What it has in common with those of other servers, and what keeps that alive."""

    def count(
        self, text: str, until: float = math.inf, lead: list[tuple[int, int]] | None = None
    ) -> int:
        """Tokens of `text`, added tokens in it included, without `prefix`.

        `lead` gets a mark of all that came before the end of each piece, and the tokens up to there:
        two texts that begin alike begin with the same marks. Raises Unencodable, and OutOfTime some time after `until` (of `time.monotonic`).
        """
        pieces, tokens = self._splitter.split(text)
        return self.count_pieces(pieces, tokens, until, lead)

    def count_pieces(
        self,
        pieces: list[str],
        total: int,
        until: float = math.inf,
        lead: list[tuple[int, int]] | None = None,
    ) -> int:
        """The same of `pieces` with `total` added tokens between them; whatever they spell is text."""
        cache, encode = self.cache, self._encoder.count
        mark, before = lead[-1] if lead else (0, 0)
        for number, piece in enumerate(pieces, 1):
            key = cache.key_of(piece)
            tokens = cache.get(key)
            if tokens is None:
                tokens = encode(piece, until)
                cache.put(key, tokens)
            total += tokens
            before += tokens + 1  # the added token behind it
            if lead is not None and number <= MOST_MARKS:
                mark = hash((mark, key))
                lead.append((mark, before))
        return total

    @property
    def kin(self) -> Hashable:
        """The same for two that count alike: they have one vocabulary, see `shared`."""
        return self.cache, self.prefix

    def use_fast(self, content: bytes) -> str:
        """Count with fastokens from now on, if it counts alike; a note on what came of it."""
        vocab = orjson.loads(content)["model"]["vocab"]
        spelled = [entry if isinstance(entry, str) else entry[0] for entry in vocab]
        words = [word.replace("Ġ", " ").replace("▁", " ") for word in spelled]
        self._encoder, note = fast_encoder(content, self._encoder, words)
        return note

    def segments(self, text: str) -> list[tuple[str, int]]:
        """(piece, tokens) in order, added tokens included: for people who ask where tokens go."""
        return [
            (piece, 1 if is_added else self.plain(piece))
            for piece, is_added in self._splitter.parts(text)
        ]

    def plain(self, text: str) -> int:
        """Tokens of `text`, whose added tokens are text."""
        return self._encoder.count(text)


def load_text_counter(content: bytes, config: Mapping[str, Any]) -> tuple[TextCounter, str | None]:
    """(counter, why tiktoken could not be used or None) from a tokenizer.json and its config.

    Takes seconds. Raises ValueError where the file is not a tokenizer at all.
    """
    tokenizer = orjson.loads(content)
    prefix, ids = special_prefix(tokenizer, config), _ids_of(tokenizer)
    try:
        vocabulary = read_vocabulary(tokenizer)
        splitter = Splitter(added_tokens(tokenizer))
        return TextCounter(TiktokenEncoder(vocabulary), splitter, prefix=prefix, ids=ids), None
    except Unsupported as why:
        reason = str(why)
    encoder, splitter = HuggingFaceEncoder(content), _splitter_for(tokenizer)
    return TextCounter(encoder, splitter, prefix=prefix, ids=ids), reason


def _ids_of(tokenizer: Mapping[str, Any]) -> int | None:
    """One more than the largest token id of a parsed tokenizer.json."""
    vocab = (tokenizer.get("model") or {}).get("vocab") or {}
    known = [token.get("id", -1) for token in tokenizer.get("added_tokens") or ()]
    known.append(max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1)
    return max(known) + 1 if max(known) >= 0 else None


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
