"""A store that came back empty: who lives pins up again what has been heard, and a gate that is started
then knows it too."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from gateway.core.others import MOST, Others, Strikes, Words
from gateway.edge import common
from gateway.lease.redis import RedisStore
from gateway.lease.store import LONGEST_S, Heard, Lost, Said, StoreError
from gateway.lease.words import encode
from tests.lease.fleet import gates, settle
from tests.lease.server import RedisServer, needs_server

if TYPE_CHECKING:
    from gateway.app import App

BODY = {"prompt": [1] * 7, "max_tokens": 9, "stream": True}
ONE = {"name": "anyone", "quota": {"tokens": 1000, "window_s": 600}}


# ---- the store -----------------------------------------------------------------------------------


@needs_server
async def test_who_has_used_a_salt_is_right_before_one_who_has_just_come(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url)

        async def salt(me: str, mine: bytes, *, kept: bool = False) -> bytes:
            return (await store.post(me, mine, b"x", 60.0, kept=kept)).salt

        assert await salt("new", b"new") == b"new"
        assert await salt("newer", b"newer") == b"new", "of those the first one"
        assert await salt("lives", b"used", kept=True) == b"used"
        assert await salt("lives too", b"used", kept=True) == b"used"
        assert await salt("new", b"new") == b"used"
        assert await salt("cut off", b"another", kept=True) == b"used", "the first one stays"
        assert await salt("newest", b"newest") == b"used"
        await store._client.delete("kvgate:~board")
        assert await salt("lives", b"used", kept=True) == b"used"
        assert await salt("new", b"new", kept=True) == b"used"
        await store.close()


@needs_server
async def test_what_was_lost_hangs_there_as_it_did(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        store, odd = RedisStore(server.url), b'{"a":\r\n "\xc3\xa9"} 1 2'
        await store.post("lives", b"s", b"newer", 60.0)
        lost = {
            "ended": Lost(Said(1000.0, odd), 0.2),
            "lives": Lost(Said(5.0, b"older"), 60.0),
            "long ago": Lost(Said(LONGEST_S - 10.0, b"x"), 9.0),
        }
        await store.restore(lost)
        told = (await store.post("me", b"s", b"x", 60.0)).of
        assert told["lives"].document == b"newer", "what hangs there is newer"
        assert told["ended"].document == odd
        assert 1000.0 <= told["ended"].age_s < 1001.0
        assert told["long ago"].document == b"x"
        await asyncio.sleep(0.25)
        assert "ended" not in (await store.post("me", b"s", b"x", 60.0)).of
        await store.close()


# ---- who reads and writes it -----------------------------------------------------------------------


class Board:
    """A store of a few lines that says and loses what a test wants."""

    def __init__(self) -> None:
        self.heard = Heard(b"s")
        self.restored: list[dict[str, Lost]] = []
        self.kept: list[bool] = []
        self.fails = False

    async def post(self, *_: Any, kept: bool = False) -> Heard:
        self.kept.append(kept)
        return self.heard

    async def restore(self, lost: Any) -> None:
        self.restored.append(dict(lost))
        if self.fails:
            raise StoreError("is tired")


class Reader:
    def __init__(self) -> None:
        self.now, self.board, self.others = 1000.0, Board(), Others()
        self.salt = b"own"
        self.forgot = 0
        core: Any = SimpleNamespace(others=self.others, uses=lambda *_: {})
        gate: Any = SimpleNamespace(now=lambda: self.now, core=core, heard=lambda: None)
        quarantine: Any = SimpleNamespace(strikes={}, answered=lambda _: {}, forget=self.forget)
        marks: Any = SimpleNamespace(take=self.take, salt=b"own")
        deaths: Any = SimpleNamespace(marks=marks, quarantine=quarantine)
        leases: Any = SimpleNamespace(store=self.board, me="me")
        self.common = common.Common(leases, gate, deaths, list, structlog.get_logger())

    def forget(self) -> None:
        self.forgot += 1

    def take(self, salt: bytes) -> bool:
        other, self.salt = salt != self.salt, salt
        return other

    async def round(self, of: dict[str, Said] | None = None, salt: bytes = b"s") -> None:
        self.board.heard = Heard(salt, of or {})
        self.board.restored.clear()
        await self.common._round()
        self.now += 1.0


def words(lasts: float = 3600.0, name: str = "start") -> bytes:
    strikes = {b"m" * 16: Strikes(2, -10.0, name)}
    return encode(Words(0.0, lasts, {}, strikes, {}), 0.0)


async def test_it_is_pinned_up_again_until_it_hangs_there() -> None:
    reader, said = Reader(), words()
    await reader.round({"ended": Said(100.0, said), "odd": Said(1.0, b"odd")})
    assert reader.board.restored == []
    reader.board.fails = True
    for _ in range(2):
        await reader.round()
        assert reader.common.status()["error"] == "the store is tired"
    reader.board.fails = False
    await reader.round()
    (lost,) = reader.board.restored
    assert lost == {"ended": Lost(Said(103.0, said), 3600.0 - 103.0)}, "and no other"
    assert reader.common.status()["error"] is None
    await reader.round({"ended": Said(104.0, said)})
    assert reader.board.restored == []
    assert len(reader.others) == 1


async def test_what_is_over_is_not() -> None:
    reader = Reader()
    await reader.round({"ended": Said(0.0, words(lasts=5.0))})
    await reader.round()
    assert [list(lost) for lost in reader.board.restored] == [["ended"]]
    reader.now += 10.0
    await reader.round()
    assert reader.board.restored == []
    assert reader.common._read == {}


async def test_it_hangs_there_for_no_longer_than_anything_may() -> None:
    """By the store's clock as well, which would take it off at once, again and again."""
    reader = Reader()
    await reader.round({"ended": Said(50.0, words(lasts=LONGEST_S))})
    await reader.round()
    lost = reader.board.restored[0]["ended"]
    assert 0.1 < LONGEST_S - (lost.said.age_s + lost.lasts_s) < 1.0


async def test_nor_what_the_board_had_no_room_for() -> None:
    reader = Reader()
    many = {f"p{n}": Said(float(n), words()) for n in range(MOST - 1)}
    await reader.round({"late": Said(0.0, words()), "old": Said(99.0, words())})
    await reader.round(many)
    assert reader.board.restored == []
    del many["p7"]
    await reader.round({"late": Said(1.0, words()), "old": Said(99.0, words())})
    await reader.round(many)
    assert [list(lost) for lost in reader.board.restored] == [["late"]], "the latest first"


async def test_a_salt_is_insisted_on_once_it_has_been_used_for_a_while() -> None:
    reader = Reader()
    for _ in range(7):
        await reader.round()
    assert reader.board.kept == [False] * 5 + [True] * 2
    assert reader.forgot == 1
    await reader.round(salt=b"another")
    assert reader.forgot == 2
    reader.board.kept.clear()
    await reader.round(salt=b"another")
    assert reader.board.kept == [False], "another one begins anew"


# ---- gates ---------------------------------------------------------------------------------------


def mark_of(app: App) -> bytes:
    return app.deaths.marks.of("text", BODY)


def count(app: App) -> int:
    return app.deaths.quarantine.deaths(mark_of(app), app.gate.now())


@needs_server
@pytest.mark.timeout(120)
async def test_a_gate_started_at_an_empty_store_hears_of_who_ended_before(tmp_path) -> None:
    """One saw a request kill twice, and used its client's quota, and has ended; one heard it and lives.
    The third is started right when the store has come back, and is there first."""
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        async with gates(tmp_path / "b", server, count=1, clients=[ONE]) as living:
            (lives,) = living.apps
            assert lives.common is not None
            assert lives.common._task is not None
            async with gates(tmp_path / "a", server, count=1, clients=[ONE]) as first:
                (ends,) = first.apps
                (task,) = first.asks(ends, 1, 1200, 20)
                await first.until(task.done)
                await first.until(lambda: ends.deaths.marks.salt == lives.deaths.marks.salt)
                for start in ("one", "two"):
                    ends.deaths.quarantine.died([mark_of(ends)], ends.gate.now(), start)
            await living.until(lambda: count(lives) == 2)
            lives.common._task.cancel()
            lives.common._salted -= 10.0
            salt = lives.deaths.marks.salt
            server.stop()
            server.start()
            async with gates(tmp_path / "c", server, count=1, clients=[ONE]) as third:
                (comes,) = third.apps
                assert comes.common is not None
                await third.until(lambda: comes.common._salted < 1e9)
                assert comes.deaths.marks.salt != salt, "it was there first"
                lives.common.start()
                await third.until(lambda: comes.deaths.marks.salt == salt)
                await third.until(lambda: count(comes) == 2)
                async with third.http.post(
                    f"{comes.listen_url}/v1/completions", json=BODY
                ) as answer:
                    assert (answer.status, (await answer.json())["error"]["code"]) == (
                        400,
                        "quarantined",
                    )
                assert await third.ask(comes, 1, 1) == 429, "the quota is used"
                assert count(lives) == 2
                assert lives.deaths.marks.salt == salt
