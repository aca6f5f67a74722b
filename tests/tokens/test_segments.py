"""Cutting at added tokens and the cache of counts: exact, bounded, and without any text in it."""

import gc
import types

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.encoder import load_text_counter
from gateway.tokens.segments import ENTRY_BYTES, SegmentCache, Splitter
from gateway.tokens.vocabulary import AddedToken

words = st.lists(st.text("ab<|>", min_size=1, max_size=4), min_size=1, max_size=5, unique=True)


@given(words, words, st.text("ab<|> ", max_size=30))
def test_cuts_where_tokenizers_cuts(raw, normalized, text):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"u": 0}, unk_token="u"))
    added = [(word, False) for word in raw] + [(w, True) for w in normalized if w not in raw]
    tokenizer.add_tokens([tokenizers.AddedToken(w, normalized=n) for w, n in added])
    splitter = Splitter(AddedToken(word, normalized) for word, normalized in added)
    known = {word for word, _ in added}
    expected = [t for t in tokenizer.encode(text).tokens if t in known]
    parts = splitter.parts(text)
    assert [part for part, is_added in parts if is_added] == expected
    pieces, cuts = splitter.split(text)
    assert cuts == len(expected)
    assert pieces == [part for part, is_added in parts if not is_added]


def test_a_growing_conversation_costs_its_new_part(qwen_like):
    counter, _ = load_text_counter(qwen_like.to_str().encode(), {})
    text = ""
    for turn in range(50):
        text += f"<|im_start|>user\nmessage {turn}<|im_end|>"
        before = counter.cache.misses
        assert counter.count(text) == len(qwen_like.encode(text, add_special_tokens=False))
        assert counter.cache.misses - before == 1


def test_least_recently_used_goes_first_and_memory_is_bounded():
    cache = SegmentCache(3 * ENTRY_BYTES)
    keys = [cache.key_of(text) for text in "abcd"]
    for key in keys[:3]:
        cache.put(key, 7)
    assert cache.get(keys[0]) == 7
    cache.put(keys[3], 7)
    assert len(cache) == 3
    assert cache.get(keys[1]) is None
    assert cache.get(keys[0]) == 7


def test_the_stated_bytes_of_an_entry_are_enough():
    import tracemalloc

    cache = SegmentCache(1 << 30)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(20_000):
        cache.put(cache.key_of(str(number)), 1_000 + number)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used / 20_000 <= ENTRY_BYTES


def everything_in(root):
    """All text and bytes reachable from an object, as a memory dump would show them."""
    seen, stack, found = set(), [root], []
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(item))
        if isinstance(item, str | bytes):
            found.append(item if isinstance(item, bytes) else item.encode())
        stack.extend(gc.get_referents(item))
    return found


def test_no_text_is_kept(qwen_like):
    counter, _ = load_text_counter(qwen_like.to_str().encode(), {})
    secret = "hunter2-is-my-password"
    counter.count(f"<|im_start|>{secret}<|im_end|>short")
    assert len(counter.cache) == 2
    dump = everything_in(counter)
    assert sum(len(data) == 16 for data in dump) >= 2  # the hashes are found, so text would be
    for text in (secret, "hunter2", "short"):
        assert not any(text.encode() in data for data in dump)


def test_keys_are_different_in_every_process():
    assert SegmentCache(1000).key_of("guessed text") != SegmentCache(1000).key_of("guessed text")
