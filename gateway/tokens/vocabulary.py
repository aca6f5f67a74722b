"""A tokenizer.json as ranks for tiktoken, with a proof that both count alike.

Hugging Face merges the adjacent pair that stands first in its list of merges; tiktoken merges the
pair whose *concatenation* has the lowest rank. With ranks given in merge order both pick the same
pair, unless bytes come together as a token through a pair that is not in the list. The
certificate rules that out. A boundary between tokens never reappears once a merge removed it, so
inside any text a token is formed exactly as from its own bytes alone: it is enough to run each
token by itself and see that its last merge is a listed one. A token that cannot be formed from its
bytes is only ever produced by Hugging Face where `ignore_merges` looks words up whole; tiktoken
always does, so such tokens stay or go by that flag.

The proof runs at every load: 0.6 s for 128,000 tokens, 1.6 s for 200,000. Keeping its result on
disk would save less than that and make a file on disk part of the proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.tokens.pretokenizer import Unsupported, pattern_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class Unencodable(Exception):
    """A text that cannot be encoded in bounded time. No real text is known to be one."""


class OutOfTime(Exception):
    """Counting came to the moment at which it had to stop."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is cut out of the text before anything else. Order of cutting: see `segments`."""

    content: str
    normalized: bool


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What tiktoken needs, plus what surrounds it.

    `unformable` are tokens in `ranks` that only a look-up of whole pieces finds: their own bytes
    do not merge into them.
    """

    ranks: dict[bytes, int]
    pattern: str
    nfc: bool
    unformable: frozenset[bytes] = frozenset()


def byte_alphabet() -> dict[str, int]:
    """Characters by which byte-level vocabularies spell bytes (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    printable += range(ord("®"), ord("ÿ") + 1)
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(256 + index): byte for index, byte in enumerate(others)}


def added_tokens(tokenizer: Mapping[str, Any]) -> tuple[AddedToken, ...]:
    """The added tokens of a parsed tokenizer.json; Unsupported where they take spaces along."""
    found = []
    for token in tokenizer.get("added_tokens") or ():
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
            raise Unsupported("added token that strips spaces or wants word borders")
        if token["content"]:
            found.append(AddedToken(token["content"], bool(token.get("normalized"))))
    return tuple(found)


def read_vocabulary(tokenizer: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a parsed tokenizer.json. Takes seconds.

    Unsupported where the file is not byte-level BPE of this form, or the proof fails.
    """
    model = tokenizer["model"]
    if model.get("type") != "BPE" or any(
        model.get(name)
        for name in ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix")
    ):
        raise Unsupported("not plain BPE")
    nfc = _applies_nfc(tokenizer.get("normalizer"))
    added = added_tokens(tokenizer)
    if nfc and any(token.normalized for token in added):
        raise Unsupported("added tokens that are matched after NFC")
    pattern = pattern_of(tokenizer.get("pre_tokenizer"))
    ranks, lefts = _ranks(model, {token.content for token in added})
    unformable = _unformable(ranks, lefts)
    if model.get("ignore_merges"):
        return Vocabulary(ranks, pattern, nfc, frozenset(unformable))
    for token in unformable:
        del ranks[token]
    return Vocabulary(ranks, pattern, nfc)


def _applies_nfc(normalizer: Mapping[str, Any] | None) -> bool:
    if normalizer is None:
        return False
    if normalizer["type"] == "Sequence":
        steps = [_applies_nfc(step) for step in normalizer["normalizers"]]
        return any(steps)
    if normalizer["type"] == "NFC":
        return True
    raise Unsupported("normalizer other than NFC")


def _ranks(
    model: Mapping[str, Any], added: set[str]
) -> tuple[dict[bytes, int], dict[bytes, set[bytes]]]:
    """(rank of each token, left halves of the merges that may form it)."""
    alphabet = byte_alphabet()
    try:
        listed = {
            bytes(map(alphabet.__getitem__, text)) for text in model["vocab"] if text not in added
        }
    except KeyError:
        raise Unsupported("vocabulary is not spelled in bytes") from None
    ranks = {bytes([byte]): byte for byte in range(256)}
    if not listed.issuperset(ranks):
        raise Unsupported("a byte without a token")
    lefts: dict[bytes, set[bytes]] = {}
    previous = b""
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        left = bytes(map(alphabet.__getitem__, left))
        token = left + bytes(map(alphabet.__getitem__, right))
        if token not in listed:
            raise Unsupported("a merge into no token")
        if token not in ranks:
            ranks[token] = len(ranks)
            lefts[token] = {left}
        elif token == previous:
            lefts[token].add(left)
        # A second merge into the same token further down the list has a later turn than its rank
        # says. It is not a listed way to form it: the proof fails where it would be taken.
        previous = token
    for token in listed.difference(ranks):
        ranks[token] = len(ranks)
    return ranks, lefts


def _unformable(ranks: Mapping[bytes, int], lefts: Mapping[bytes, set[bytes]]) -> list[bytes]:
    """The tokens that their own bytes do not form; Unsupported where one is formed unlisted."""
    found = []
    for token in ranks:
        if len(token) == 1:
            continue
        left = last_left(token, ranks)
        if left is None:
            found.append(token)
        elif left not in lefts.get(token, ()):
            raise Unsupported("merge order and rank order differ")
    return found


def last_left(token: bytes, ranks: Mapping[bytes, int]) -> bytes | None:
    """The left half of the merge that completes `token` from its bytes, None if none does."""
    parts = [token[at : at + 1] for at in range(len(token))]
    absent = len(ranks)
    costs = [ranks.get(token[at : at + 2], absent) for at in range(len(token) - 1)]
    while len(parts) > 2:  # noqa: PLR2004 - the last merge is the answer
        best = min(costs)
        if best == absent:
            return None
        at = costs.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del costs[at]
        if at < len(costs):
            costs[at] = ranks.get(parts[at] + parts[at + 1], absent)
        if at > 0:
            costs[at - 1] = ranks.get(parts[at - 1] + parts[at], absent)
    return parts[0]
