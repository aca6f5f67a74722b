"""The store, against a real server: one swap wins, and every life of the server has another name."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import pytest

from gateway.cli import serve
from gateway.core.amount import Amount
from gateway.core.lease import Entry, Table
from gateway.core.others import MOST
from gateway.lease.redis import RedisStore, in_words
from gateway.lease.store import LONGEST_S, Heard, StoreError
from gateway.lease.wire import decode, encode
from tests.lease.server import RedisServer, needs_server


@needs_server
async def test_of_two_swaps_that_expect_the_same_one_is_made(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        store, other = RedisStore(server.url), RedisStore(server.url)
        run = (await store.swap("gpu0", "", None, b"one")).run
        answers = await asyncio.gather(
            store.swap("gpu0", run, None, b"one"), other.swap("gpu0", run, None, b"two")
        )
        assert sorted(answer.taken for answer in answers) == [False, True]
        won = b"one" if answers[0].taken else b"two"
        assert next(a.document for a in answers if not a.taken) == won
        assert (await store.swap("gpu1", run, None, b"x")).taken, "a pool has a table of its own"
        await store.close()
        await other.close()


@needs_server
async def test_a_restarted_server_is_another_one(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url)
        run = (await store.swap("gpu0", "", None, b"")).run
        assert (await store.swap("gpu0", run, None, b"one")).taken
        server.stop()
        with pytest.raises(StoreError, match="does not answer"):
            await store.swap("gpu0", run, b"one", b"two")
        server.start()
        answer = await store.swap("gpu0", run, None, b"two")
        assert not answer.taken
        assert answer.run != run
        assert answer.document is None
        await store.close()


@needs_server
async def test_a_password_is_sent_and_never_told(tmp_path) -> None:
    with RedisServer(tmp_path, password="hunter2-secret") as server:
        store = RedisStore(server.url, password="hunter2-secret")
        assert (await store.swap("gpu0", "", None, b"")).run
        await store.close()
        wrong = RedisStore(server.url, password="mistaken-secret")
        with pytest.raises(StoreError) as error:
            await wrong.swap("gpu0", "", None, b"")
        assert "secret" not in repr(error.value)
        assert "password_env" in str(error.value)
        await wrong.close()


async def _forward(reader, writer, port) -> None:
    """One direction each, until either side ends."""
    ahead, back = await asyncio.open_connection("127.0.0.1", port)

    async def copy(source, sink) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                sink.write(data)
        sink.close()

    await asyncio.gather(copy(reader, back), copy(ahead, writer))


async def _told(server: RedisServer, *command: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write((" ".join(command) + "\r\n").encode())
    assert (await reader.readline()).startswith(b"+OK")
    writer.close()


@needs_server
async def test_after_a_failover_the_primary_is_found_though_the_old_one_lives_on(tmp_path) -> None:
    """It lives on as a copy, and answers over the connections that there were: who keeps them is told no
    for ever, and starts nothing once its lease is over."""
    leads_to: list[int] = []
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
    with RedisServer(folders[0]) as old, RedisServer(folders[1]) as new:
        leads_to.append(old.port)
        name = await asyncio.start_server(lambda r, w: _forward(r, w, leads_to[-1]), "127.0.0.1", 0)
        port = name.sockets[0].getsockname()[1]
        store = RedisStore(f"redis://127.0.0.1:{port}/0")
        run = (await store.swap("gpu0", "", None, b"")).run
        assert (await store.swap("gpu0", run, None, b"one")).taken
        await _told(old, "REPLICAOF", "127.0.0.1", str(new.port))
        leads_to.append(new.port)
        with pytest.raises(StoreError, match="must lead to the primary"):
            await store.post("gate", b"salt", b"{}", 5.0)
        answer = await store.swap("gpu0", "", None, b"")
        assert answer.run != run, "the next question goes where the name leads now"
        assert (await store.swap("gpu0", answer.run, None, b"one")).taken
        await store.close()
        name.close()


@needs_server
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), "is full"),
        (("ACL", "SETUSER", "default", "-set", "-eval", "-hset"), "forbids its user"),
        (("CONFIG", "SET", "min-replicas-to-write", "2"), "answers with an error"),
    ],
)
async def test_what_a_store_says_no_with_is_told_in_words(tmp_path, command, words) -> None:
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url)
        await _told(server, *command)
        with pytest.raises(StoreError, match=words):
            await store.post("gate", b"salt", b"{}", 5.0)
        await store.close()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "ERR Error running script (call to f_1): @user_script:4: -READONLY You can't write",
            "cop",
        ),
        ("MISCONF Redis is configured to save RDB snapshots, but", "save to its disk"),
        ("ERR unknown command", None),
    ],
)
def test_a_word_within_a_sentence_is_found(said, words) -> None:
    told = in_words(Exception(said))
    assert told is None if words is None else words in str(told)


def test_a_table_is_the_same_after_the_way_there_and_back() -> None:
    entry = Entry(
        3, 7, Amount(1, 2, 3), Amount(1), Amount(4, 5, 6), Amount(7, 8, 9), 4, 2, Amount(9), 5, 4
    )
    for unclaimed in (None, Amount(1, 2, 3)):
        table = Table("run", "epoch", 7, unclaimed, {"a": entry})
        assert decode(encode(table)) == table


@pytest.mark.parametrize(
    "document",
    [b"", b"x", b"[]", b"null", b"{}", b'{"form":"kvgate-leases-2"}', encode(Table("r", "e"))[:-1]],
)
def test_what_is_no_table_is_refused_as_a_whole(document) -> None:
    with pytest.raises(StoreError):
        decode(document)


def test_without_the_package_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(StoreError, match=r"pip install kvgate\[redis\]"):
        RedisStore("redis://127.0.0.1:6379/0")


def test_a_gate_that_can_not_share_does_not_start(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    monkeypatch.setattr(serve, "configure", lambda _: None)  # the log is other tests' as well
    path = tmp_path / "policy.yaml"
    path.write_text(
        'backends: [{url: "http://127.0.0.1:1"}]\nleases: {url: "redis://127.0.0.1:1"}\n'
        "listen: 127.0.0.1:0\ncontrol: 127.0.0.1:0\n"
    )
    assert serve.run([str(path)]) == 2
    assert "pip install kvgate[redis]" in capsys.readouterr().err


# ---- the board -----------------------------------------------------------------------------------


@needs_server
async def test_what_was_pinned_up_is_read_with_its_age_until_its_time_is_over(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        store, other = RedisStore(server.url), RedisStore(server.url)
        salt, odd = bytes(range(32)), b'{"a":\r\n "\xc3\xa9"}'
        assert (await store.post("a", salt, odd, 60.0)) == Heard(salt)
        await asyncio.sleep(0.05)
        told = await other.post("b", b"other", b"two", 0.03)
        assert (told.salt, list(told.of), told.of["a"].document) == (salt, ["a"], odd)
        assert 0.05 <= told.of["a"].age_s < 5.0
        await asyncio.sleep(0.04)
        assert (await store.post("a", salt, b"new", 60.0)).of == {}, "its time was over"
        assert (await other.post("b", salt, b"x", 60.0)).of["a"].document == b"new"
        apart = RedisStore(server.url, prefix="apart")
        assert (await apart.post("c", b"own", b"x", 60.0)) == Heard(b"own")
        for one in (store, other, apart):
            await one.close()


@needs_server
async def test_the_board_is_bounded_and_gone_a_week_after_the_last_word(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url)
        for n in range(MOST + 5):
            await store.post(f"p{n}", b"s", b"x", 60.0)
            if n in (0, MOST):
                await asyncio.sleep(0.003)  # the store's clock has milliseconds
        told = await store.post("new", b"s", b"x", 60.0)
        assert len(told.of) == MOST - 1
        assert "p0" not in told.of
        left_ms = await store._client.pttl("kvgate:~board")
        assert 0.99 * LONGEST_S < left_ms / 1000 <= LONGEST_S
        server.stop()
        with pytest.raises(StoreError, match="does not answer"):
            await store.post("new", b"s", b"x", 60.0)
        server.start()
        assert (await store.post("new", b"kept", b"x", 60.0)) == Heard(b"kept"), "by who was there"
        await store.close()


@needs_server
async def test_a_user_that_may_only_what_leases_need_shares_leases_and_nothing_else(
    tmp_path,
) -> None:
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url)
        await store._client.execute_command(
            *[
                "ACL",
                "SETUSER",
                "default",
                "resetkeys",
                "~kvgate:*",
                "-@all",
                "+get",
                "+set",
                "+eval",
                "+info",
                "+client",
            ]
        )
        narrow = RedisStore(server.url)
        run = (await narrow.swap("gpu0", "", None, b"")).run
        assert (await narrow.swap("gpu0", run, None, b"one")).taken
        with pytest.raises(StoreError, match="forbids its user"):
            await narrow.post("a", b"s", b"x", 60.0)
        await store.close()
        await narrow.close()


@needs_server
async def test_whoever_is_cancelled_while_it_asks_ends(tmp_path) -> None:
    """At any moment of a question: `common` asks once a second for ever, and a gate that goes down waits
    until that has ended."""
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url)
        await store.swap("gpu0", "", None, b"")  # the connection is there
        in_time, lost = [], []
        for turns in range(40):
            asked = asyncio.ensure_future(store.swap("gpu0", "", None, b""))
            for _ in range(turns):
                await asyncio.sleep(0)
            if asked.cancel():
                in_time.append(turns)
            await asyncio.wait([asked])
            if turns in in_time and not asked.cancelled():
                lost.append(turns)
        await store.close()
    assert lost == []
    assert {0, 1, 2} <= set(in_time), "before an answer can be here"
