"""The table in the supervisor's memory, and the way to it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from gateway.core.amount import NOTHING, Amount
from gateway.core.lease import Entry, Table
from gateway.core.others import MOST
from gateway.lease.local import Counter, LocalStore
from gateway.lease.store import Heard, Said, StoreError
from gateway.lease.tables import Tables
from gateway.lease.wire import decode, encode


def test_a_table_begins_as_not_known_to_be_free() -> None:
    """Nobody can have used it before, but what the engine runs already is in nobody's books."""
    tables = Tables()
    answer = tables.swap("gpu0", "", None, b"x")
    assert not answer.taken
    assert answer.document is not None
    assert decode(answer.document) == Table(tables.run, "start")
    assert Tables().run != tables.run


def test_who_is_forgotten_has_nothing_any_more() -> None:
    tables = Tables()
    entries = {"w0.1": Entry(1, 1, Amount(7)), "w1.1": Entry(1, 1, Amount(5))}
    for pool in ("a", "b"):
        first = tables.swap(pool, "", None, b"").document
        table = encode(Table(tables.run, "start", 4, NOTHING, entries))
        assert tables.swap(pool, tables.run, first, table).taken
    assert tables.forget("w0.1") == ["a", "b"]
    document = tables.swap("a", "", None, b"").document
    assert document is not None
    left = decode(document)
    assert (dict(left.entries), left.version) == ({"w1.1": entries["w1.1"]}, 5)
    assert tables.forget("w0.1") == []


async def test_of_two_swaps_over_the_socket_one_is_made(tmp_path) -> None:
    tables = Tables()
    counter = Counter(tables, tmp_path / "t")
    await counter.start()
    one, two = LocalStore(tmp_path / "t"), LocalStore(tmp_path / "t")
    first = await one.swap("gpu0", "", None, b"")
    made = await asyncio.gather(
        one.swap("gpu0", first.run, first.document, b"one"),
        two.swap("gpu0", first.run, first.document, b"two"),
        # On one connection, from two pools at once: answers keep their order.
        one.swap("gpu1", first.run, first.document, b"other"),
    )
    assert sorted(answer.taken for answer in made[:2]) == [False, True]
    won = b"one" if made[0].taken else b"two"
    assert next(a.document for a in made[:2] if not a.taken) == won
    assert made[2].taken
    assert (await two.swap("gpu1", "", None, b"")).document == b"other"
    await one.close()
    await two.close()
    await counter.stop()


async def test_a_supervisor_that_is_gone_is_an_error_of_the_store(tmp_path) -> None:
    counter = Counter(Tables(), tmp_path / "t")
    store = LocalStore(tmp_path / "t")
    with pytest.raises(StoreError, match="does not answer"):
        await store.swap("gpu0", "", None, b"")
    await counter.start()
    assert not (await store.swap("gpu0", "", None, b"")).taken
    await counter.stop()
    with pytest.raises(StoreError, match="does not answer"):
        await store.swap("gpu0", "", None, b"")
    await store.close()


async def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next(tmp_path) -> None:
    late = asyncio.Event()
    questions = 0
    ended = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal questions
        questions += 1
        mine = questions
        await reader.read(1)
        if mine == 1:
            await late.wait()
        writer.write(b"\0\0\0\0\1\xff\xff\xff\xff" + b"%d" % mine)
        with suppress(ConnectionError):  # who asked first has left
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.release()

    server = await asyncio.start_unix_server(serve, tmp_path / "t")
    store = LocalStore(tmp_path / "t")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await store.swap("gpu0", "", None, b"")
    late.set()
    assert (await store.swap("gpu0", "", None, b"")).run == "2"
    await store.close()
    for _ in range(2):
        await ended.acquire()
    server.close()
    await server.wait_closed()


# ---- the board -----------------------------------------------------------------------------------


def test_what_was_pinned_up_is_read_with_its_age_until_its_time_is_over() -> None:
    now = 100.0
    tables = Tables(lambda: now)
    assert tables.post("a", b"salt", b"one", 10.0) == Heard(b"salt")
    now += 4
    told = tables.post("b", b"other", b"two", 99.0)
    assert told == Heard(b"salt", {"a": Said(4.0, b"one")}), "the first salt is that of all"
    assert tables.post("a", b"", b"new", 10.0).of == {"b": Said(0.0, b"two")}
    now += 11
    assert tables.post("b", b"", b"two", 9.0).of == {}
    assert tables.forget("a") == [], "it says nothing of leases"


def test_the_board_is_bounded_and_whoever_wrote_longest_ago_goes_first() -> None:
    tables = Tables(lambda: 0.0)
    for n in range(MOST + 5):
        tables.post(f"p{n}", b"s", b"x", 9.0)
    tables.post("p5", b"s", b"x", 9.0)  # who writes on stays
    assert len(tables.post("new", b"s", b"x", 9.0).of) == MOST - 1
    assert "p5" in tables.post("new", b"s", b"x", 9.0).of
    assert "p6" not in tables.post("new", b"s", b"x", 9.0).of


async def test_the_board_over_the_socket_and_no_lease_waits_for_it(tmp_path) -> None:
    now = 5.0
    counter = Counter(Tables(lambda: now), tmp_path / "t")
    await counter.start()
    one, two = LocalStore(tmp_path / "t"), LocalStore(tmp_path / "t")
    assert await one.post("w0.1", b"\0salt", b"", 10.0) == Heard(b"\0salt")
    now += 1.5
    answers = await asyncio.gather(
        two.swap("gpu0", "", None, b""), two.post("w1.1", b"x", b'{"a":1}' * 5000, 10.0)
    )
    assert answers[1] == Heard(b"\0salt", {"w0.1": Said(1.5, b"")})
    told = await one.post("w0.1", b"", b"more", 10.0)
    assert told.of == {"w1.1": Said(0.0, b'{"a":1}' * 5000)}
    async with two._board._one_at_a_time:  # an answer of the board does not come
        assert not (await two.swap("gpu1", "", None, b"")).taken
    with pytest.raises(StoreError, match="does not answer"):
        await one.post("w0.1", b"", b"x" * (2 << 20), 10.0)
    assert (await one.post("w0.1", b"", b"again", 10.0)).of
    await one.close()
    await two.close()
    await counter.stop()
