"""Servers of one model: one vocabulary is read, one of them counts, and what each puts around texts is its own."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import pytest

from gateway.edge import counting
from gateway.tokens import Counter, Kind, Method, Unavailable, build_counter, shared
from gateway.tokens.files import read_files
from gateway.tokens.shared import text_counter
from tests.tokens.conftest import train, with_start_token, write_model

CHAT = {"messages": [{"role": "user", "content": "the quick brown fox " * 40}]}
SIZE = 900


async def counter_of(directory, *, lifts: int = 0, version="0.5.17", prefix: int = 0) -> Counter:
    """Its server counts `lifts` tokens more in chats than the files say, and puts `prefix` around texts."""
    plain = await build_counter(tokenizer_dir=directory, engine_version=version, remote=None)

    async def remote(body) -> int:
        if "prompt" in body:
            counted = await plain.count(Kind.COMPLETION, body, 100)
            return counted.total + prefix
        counted = await plain.count(Kind.CHAT, body, 100)
        return counted.total + lifts

    return await build_counter(tokenizer_dir=directory, engine_version=version, remote=remote)


def test_the_same_files_are_read_once(model_dir, monkeypatch) -> None:
    read = []
    once = shared.load_text_counter
    monkeypatch.setattr(
        shared, "load_text_counter", lambda *args: read.append(1) or once(*args), raising=True
    )
    found = []
    content = (model_dir / "tokenizer.json").read_bytes() + b"\n"  # another test's stays its own
    threads = [
        threading.Thread(target=lambda: found.append(text_counter(content, {}))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first, _), *others = found
    assert len(read) == 1
    assert all(other.cache is first.cache for other, _ in others)
    first.count("not seen before")
    misses = first.cache.misses
    others[0][0].count("not seen before")
    assert first.cache.misses == misses, "and what one has counted all have"
    first.prefix = 5
    assert [other.prefix for other, _ in others] == [0, 0, 0], "each server's own"
    found.clear()
    del first, others
    gc.collect()
    text_counter(content, {})
    assert len(read) == 2, "nobody used it any more"


def test_what_decides_the_tokens_around_texts_makes_another_kind(model_dir) -> None:
    content = (model_dir / "tokenizer.json").read_bytes()
    plain, _ = text_counter(content, {})
    llama, _ = text_counter(content, {"tokenizer_class": "LlamaTokenizerFast"})
    assert (plain.prefix, llama.prefix) == (0, 1)


def test_what_is_to_be_said_of_a_vocabulary_is_said_for_each(model_dir) -> None:
    notes = [read_files(model_dir, fast=True).notes for _ in range(2)]
    assert notes[0] == notes[1]
    assert notes[0], "that the optional engine is there, or is not"
    slow, fast = (read_files(model_dir, fast=fast).text for fast in (False, True))
    assert slow is not None
    assert fast is not None
    assert slow.cache is not fast.cache, "who asks for it has one of their own"


async def test_counters_that_count_alike_are_kin(model_dir, tmp_path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    one, two = await counter_of(model_dir), await counter_of(model_dir)
    assert one.kin == two.kin
    assert hash(one.kin) == hash(two.kin)
    others = [
        await counter_of(model_dir, version="0.5.6"),
        await counter_of(model_dir, prefix=1),
        await counter_of(write_model(tmp_path / "a", train(), template="{{ messages }}")),
        await counter_of(write_model(tmp_path / "b", with_start_token(train()))),
        await counter_of(model_dir, lifts=1),
        Counter(),
    ]
    kins = [one.kin, *(other.kin for other in others)]
    assert len(set(kins)) == len(kins)


async def test_one_that_erred_is_asked_itself_until_it_is_right_again(model_dir) -> None:
    one, two = await counter_of(model_dir), await counter_of(model_dir)
    counted = await one.count(Kind.CHAT, CHAT, SIZE)
    two.observe(counted, counted.total + 7)
    assert one.kin != two.kin
    for _ in range(64):
        two.observe(counted, counted.total)
    assert one.kin == two.kin


async def test_of_those_that_are_alike_only_the_first_counts(model_dir, monkeypatch) -> None:
    """What each believes of it is its own."""
    one, two = await counter_of(model_dir), await counter_of(model_dir, lifts=2)
    first = await one.count(Kind.CHAT, CHAT, SIZE)
    two.observe(first, first.total + 30)
    known = {}
    first = await one.count(Kind.CHAT, CHAT, SIZE, known=known)

    async def not_again(*_):
        raise AssertionError("counted twice")

    monkeypatch.setattr(two._local, "count", not_again)
    second = await two.count(Kind.CHAT, CHAT, SIZE, known=known)
    assert (first.method, second.method) == (Method.EXACT, Method.ESTIMATE)
    assert second.raw == first.raw
    assert second.lead == first.lead
    assert first.lead.tokens, "where conversations go on"
    assert second.total >= first.total + 30


async def test_each_of_several_servers_is_asked_of_the_one_count(model_dir, monkeypatch) -> None:
    """As the way of a request asks them: one errs, and is asked itself what it believes of the same count."""
    one, two = await counter_of(model_dir), await counter_of(model_dir)
    first = await one.count(Kind.CHAT, CHAT, SIZE)
    two.observe(first, first.total + 30)
    counts = []
    usual = type(one._local).count

    async def noted(local, *args):
        counts.append(local)
        return await usual(local, *args)

    monkeypatch.setattr(type(one._local), "count", noted)
    servers = [SimpleNamespace(ready=True, counter=counter) for counter in (one, one, two)]
    counted = await counting.count(servers, Kind.CHAT, CHAT, SIZE, "anyone")
    assert counts == [one._local]
    assert counted.total >= first.total + 30


async def test_what_one_could_not_count_none_of_them_tries(model_dir, monkeypatch) -> None:
    one, two = await counter_of(model_dir), await counter_of(model_dir)
    tried = []

    async def late(*_):
        tried.append(1)
        raise Unavailable("timeout")

    for counter in (one, two):
        monkeypatch.setattr(counter._local, "count", late)
        monkeypatch.setattr(counter, "_remote", None)
    known = {}
    found = [await counter.count(Kind.CHAT, CHAT, SIZE, known=known) for counter in (one, two)]
    assert len(tried) == 1
    assert [(one.method, one.total) for one in found] == [(found[0].method, found[0].total)] * 2
    assert two.fallbacks == {"timeout": 1}


@pytest.mark.parametrize("told", [("a", "0.5.17"), None])
async def test_servers_that_say_the_same_of_themselves_are_kin_without_files(told) -> None:
    async def remote(_body) -> int:
        return 7

    made = [
        await build_counter(tokenizer_dir=None, engine_version="0.5.17", remote=remote, told=told)
        for _ in range(2)
    ]
    assert (made[0].kin == made[1].kin) is (told is not None)
