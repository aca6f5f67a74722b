"""A store in which somebody else has written, or whose clock went back: the board goes on, and heals."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import structlog

from gateway.core.others import CLIENTS, MARKS, Others, Strikes, Use, Words
from gateway.edge import common
from gateway.lease.redis import RedisStore
from gateway.lease.store import LONGEST_DOCUMENT, LONGEST_S, Heard, Said, StoreError
from gateway.lease.words import FORM, MOST_TOKENS, decode, encode
from tests.lease.server import RedisServer, needs_server

HOUR_MS = 3_600_000


@needs_server
@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"of:x", b"9" * 400 + b" " + b"9" * 400 + b" {}"),  # no number of its own language
        (b"of:x", b"1 " + b"9" * 16 + b" {}"),  # for ever
        (b"of:x", b"1 " + b"9" * 13 + b" {}"),  # for longer than anything hangs there
        (b"of:x", b"soon"),
        (b"of:x", b""),
        (b"x", b"%(now)d %(later)d {}"),  # nobody's name
        (b"of:x", b"%(now)d %(later)d " + b"x" * (LONGEST_DOCUMENT + 1)),
    ],
)
async def test_what_is_none_of_ours_goes_and_the_others_are_heard(tmp_path, name, value) -> None:
    now = int(time.time() * 1000)
    with RedisServer(tmp_path) as server:
        store, other = RedisStore(server.url), RedisStore(server.url)
        await store.post("a", b"s", b"one", 60.0)
        if b"%(" in value:
            value = value % {b"now": now, b"later": now + HOUR_MS}
        await store._client.hset("kvgate:~board", name, value)
        assert list((await other.post("b", b"s", b"two", 60.0)).of) == ["a"]
        assert not await store._client.hexists("kvgate:~board", name)
        await store.close()
        await other.close()


@needs_server
async def test_a_board_that_is_no_board_is_an_error_that_is_told(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url)
        await store._client.set("kvgate:~board", "x")
        with pytest.raises(StoreError, match="answers with an error"):
            await store.post("a", b"s", b"one", 60.0)
        await store.close()


@needs_server
async def test_what_was_written_later_than_now_was_written_now(tmp_path) -> None:
    """The store's clock went back by an hour: who ended before that must not seem to speak until it is
    an hour later, nor hang there for an hour more."""
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url)
        now = int(time.time() * 1000)
        written = b"%d %d gone" % (now + HOUR_MS, now + HOUR_MS + 60_000)
        await store.post("b", b"s", b"two", 60.0)
        await store._client.hset("kvgate:~board", b"of:a", written)
        assert (await store.post("b", b"s", b"two", 60.0)).of == {"a": Said(0.0, b"gone")}
        await asyncio.sleep(0.03)
        assert (await store.post("b", b"s", b"two", 60.0)).of["a"].age_s >= 0.03
        at, till, document = (await store._client.hget("kvgate:~board", b"of:a")).split()
        assert (int(till) - int(at), document) == (60_000, b"gone")
        await store.close()


@pytest.mark.parametrize("answer", [[], [b"s", b"a"], [b"s", b"a", b"-inf", b"x"], None, 7, [7]])
async def test_an_answer_that_is_none_is_an_error_of_the_store(monkeypatch, answer) -> None:
    """Else nothing would be asked any more, by a gate that goes on."""
    store = RedisStore("redis://127.0.0.1:1")

    async def answers(*_: object) -> object:
        return answer

    monkeypatch.setattr(store._client, "eval", answers)
    with pytest.raises(StoreError, match="nothing of ours"):
        await store.post("a", b"s", b"one", 60.0)
    await store.close()


def document(**parts: object) -> Said:
    empty = {"form": FORM, "lasts": 1.0, "clients": {}, "strikes": {}, "served": {}}
    return Said(0.0, orjson.dumps(empty | parts))


def test_numbers_that_pages_and_records_cannot_hold_are_refused() -> None:
    most = MOST_TOKENS
    assert decode(document(clients={"a": [most, 1.0, most, most]}), 0.0).clients["a"].used == most
    for row in ([most + 1, 1.0, 0, 0], [0, None, most + 1, 0], [0, None, 0, 2**64 - 1]):
        with pytest.raises(StoreError):
            decode(document(clients={"a": row}), 0.0)


def test_nothing_is_heard_for_longer_than_it_may_hang_there() -> None:
    assert decode(document(lasts=1e300), 5.0).until == 5.0 + LONGEST_S


def test_more_than_anybody_says_is_not_read() -> None:
    with pytest.raises(StoreError, match="too long"):
        decode(document(form="x" * LONGEST_DOCUMENT), 0.0)
    most = Words(
        0.0,
        LONGEST_S,
        {f"{n:03}" + "client" * 10: Use(10**12, -1.0, 10**12, 10**12) for n in range(CLIENTS)},
        {n.to_bytes(16): Strikes(2, -1 / 3, "server" * 10 + "0" * 64) for n in range(MARKS)},
        {n.to_bytes(16): -1 / 3 for n in range(MARKS)},
    )
    assert len(encode(most, 0.0)) < LONGEST_DOCUMENT / 2


async def test_what_was_read_before_is_not_read_anew(monkeypatch) -> None:
    """Of many that have ended, who said much, all of it each second took 0.1 s of everybody's time."""
    read: list[bytes] = []

    def decoded(said: Said, now: float) -> Words:
        read.append(said.document)
        return decode(said, now)

    monkeypatch.setattr(common, "decode", decoded)
    now, others = 1000.0, Others()
    gate: Any = SimpleNamespace(now=lambda: now, core=SimpleNamespace(others=others))
    deaths: Any = SimpleNamespace(marks=SimpleNamespace(take=lambda _: False))
    this: Any = None
    of = common.Common(this, gate, deaths, list, structlog.get_logger())
    ended = document(clients={"a": [5, 1.0, 0, 0]}, lasts=3600.0).document
    lives = document(
        clients={"a": [0, None, 0, 7]}, lasts=9.0
    ).document  # no age in it: the same each time
    for age_s in (0.2, 1.2, 2.3):
        heard = {"ended": Said(age_s, ended), "lives": Said(0.1, lives), "odd": Said(age_s, b"odd")}
        of._heard(Heard(b"s", heard))
        assert others.fresh(now) == 2
        now += 1.0
    assert (read.count(ended), read.count(lives), read.count(b"odd")) == (1, 3, 1)
    others.look(now)
    assert others.use("a", 3600.0, now).used == 5
    assert others.held == {"a": 7}
    assert len(of._read) == 3
    assert of._heard(Heard(b"s")).keys() == {"ended", "lives"}, "what counts yet is not forgotten"
    assert of._odd == set()
    now += 4000.0
    assert of._heard(Heard(b"s")) == {}
    assert of._read == {}, "who is not there any more"
