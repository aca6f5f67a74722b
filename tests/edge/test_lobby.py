"""Who waits to hear whether a server is there is seen in the queue, and held to its bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.edge import lobby
from gateway.upstream import watch
from tests.edge.rig import CHAT, COUNT, Rig, chat, written
from tests.fakes.behaviour import Behaviour
from tests.fakes.sglang import FakeSGLang

if TYPE_CHECKING:
    from collections.abc import Callable

Policy = dict[str, Any]


class Unseen:
    """A gate whose first look at its server takes until `look`."""

    def __init__(self, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self._start = start
        self._patch = monkeypatch
        self.looks = asyncio.Event()
        self.asked: list[asyncio.Task[Any]] = []

    def gate(self, policy: Policy | None = None) -> Any:
        look = watch.discover

        async def slow(*args: Any, **more: Any) -> Any:
            await self.looks.wait()
            return await look(*args, **more)

        async def at_once(_: Rig) -> None: ...

        self._patch.setattr(watch, "discover", slow)
        self._patch.setattr(Rig, "ready", at_once)
        self._patch.setattr(lobby, "DOUBT_S", 60.0)  # nobody waits for that to be over
        return self._start(policy or {})

    async def ask(self, rig: Rig, number: int = 1, path: str = CHAT, **more: Any) -> None:
        """So many requests that wait."""
        rig.engine.default = Behaviour(tokens=1)
        before = aside(rig)
        body = chat(max_tokens=1) if path == CHAT else chat()
        for _ in range(number):
            self.asked.append(asyncio.ensure_future(rig.post(path, body, **more)))
        await rig.until(lambda: aside(rig) == before + number)

    async def all(self) -> list[int]:
        self.looks.set()
        return [got.status for got in await asyncio.gather(*self.asked)]


@pytest.fixture
def unseen(start, monkeypatch) -> Unseen:
    return Unseen(start, monkeypatch)


def aside(rig: Rig) -> int:
    return rig.app.gate.view().queue.aside


def gauge(rig: Rig) -> float:
    body, _ = rig.app.metrics.render()
    line = next(x for x in body.decode().splitlines() if x.startswith("kvgate_queue_aside_req"))
    return float(line.split()[1])


@pytest.mark.parametrize("admission", ["on", "shadow", "off"])
async def test_they_are_seen(unseen, admission: str) -> None:
    async with unseen.gate({"admission": admission}) as rig:
        await unseen.ask(rig, 3)
        queue = (await rig.status())["queue"]
        assert (queue["requests"], queue["aside"]) == (3, 3)
        assert queue["bytes"] > 3 * 50
        assert gauge(rig) == 3
        assert await unseen.all() == [200] * 3
        assert gauge(rig) == 0


async def test_who_only_wants_a_count_is_one_of_them(unseen) -> None:
    async with unseen.gate({"queue": {"max_requests": 1}}) as rig:
        await unseen.ask(rig, path=COUNT)
        got = await rig.post(COUNT, chat())
        assert (got.status, got.error["code"]) == (429, "queue_full")
        assert await unseen.all() == [200]


@pytest.mark.parametrize("admission", ["on", "shadow", "off"])
@pytest.mark.parametrize("bound", [{"max_requests": 2}, {"max_bytes": 300}])
async def test_the_queue_takes_only_so_many(unseen, admission: str, bound: Policy) -> None:
    async with unseen.gate({"admission": admission, "queue": bound}) as rig:
        await unseen.ask(rig, 2)
        got = await rig.chat(max_tokens=1)
        assert (got.status, got.code) == (429, "queue_full")
        assert 1 <= int(got.headers["retry-after"]) <= 60
        assert "x-kvgate-queue-ms" not in got.headers, "it did not wait"
        assert rig.records[0]["outcome"] == "rejected"
        assert await unseen.all() == [200] * 2


CLIENTS = {
    "clients": [
        {"name": "few", "header": {"name": "x-app", "value": "few"}, "max_waiting": 1},
        {"name": "anyone"},
    ]
}


async def test_a_client_has_its_own_bound(unseen) -> None:
    few = {"headers": {"x-app": "few"}}
    async with unseen.gate(CLIENTS) as rig:
        await unseen.ask(rig, **few)
        got = await rig.post(CHAT, chat(max_tokens=1), **few)
        assert (got.status, got.code) == (429, "client_limit")
        await unseen.ask(rig, 2)
        assert (await rig.status())["queue"]["aside"] == 3
        assert await unseen.all() == [200] * 3


async def test_not_where_what_is_decided_is_not_enforced(unseen) -> None:
    few = {"headers": {"x-app": "few"}}
    async with unseen.gate({**CLIENTS, "admission": "shadow"}) as rig:
        await unseen.ask(rig, 2, **few)
        assert await unseen.all() == [200] * 2


async def test_a_flood_gives_way_to_somebody_else(unseen) -> None:
    async with unseen.gate({**CLIENTS, "queue": {"max_requests": 3}}) as rig:
        await unseen.ask(rig, 3)
        rig.engine.default = Behaviour(tokens=1)
        other = asyncio.ensure_future(rig.post(CHAT, chat(max_tokens=1), headers={"x-app": "few"}))
        await rig.until(lambda: rig.records)
        assert (rig.records[0]["outcome"], rig.records[0]["code"]) == ("evicted", "queue_full")
        assert sorted(await unseen.all()) == [200, 200, 429]
        assert (await other).status == 200


async def test_who_leaves_meanwhile_leaves_nothing(unseen) -> None:
    async with unseen.gate() as rig:
        await unseen.ask(rig, 2)
        unseen.asked.pop().cancel()
        await rig.until(lambda: aside(rig) == 1)
        assert await unseen.all() == [200]


async def test_a_gate_that_goes_down_sends_them_away(unseen) -> None:
    async with unseen.gate() as rig:
        await unseen.ask(rig, 2)
        await rig.control("/drain", "POST")
        got = await asyncio.gather(*unseen.asked)
        assert [(one.status, one.code) for one in got] == [(503, "draining")] * 2


async def test_they_wait_no_longer_than_anybody_may(unseen) -> None:
    async with unseen.gate({"queue": {"max_wait_s": 1}}) as rig:
        await unseen.ask(rig)
        (got,) = await asyncio.gather(*unseen.asked)
        assert (got.status, got.code) == (503, "queue_timeout")
        assert "its server, which is not ready" in got.error["message"]


@pytest.mark.parametrize(
    ("model", "status", "asked"),
    [
        ("one", 200, (1, 0)),
        ("two", 200, (0, 1)),
        ("two:sql", 200, (0, 1)),
        ("one:sql", 400, (0, 0)),
    ],
)
async def test_what_servers_are_called_is_asked_once_it_is_known(
    start, monkeypatch, model: str, status: int, asked: tuple[int, int]
) -> None:
    """While none was seen any of them might serve any model: then the first one seen got it."""
    look, may = watch.discover, {"gpu0": asyncio.Event(), "gpu1": asyncio.Event()}

    async def slow(client: Any, *args: Any, **more: Any) -> Any:
        await next(may[one.name] for one in rig.app.fleet if one.client is client).wait()
        return await look(client, *args, **more)

    async def at_once(_: Rig) -> None: ...

    monkeypatch.setattr(watch, "discover", slow)
    monkeypatch.setattr(Rig, "ready", at_once)
    async with FakeSGLang(model="two", adapters=("sql",)) as other:
        more = [{"url": other.url, "name": "gpu1"}]
        async with start({"more": more}, model="one") as rig:
            rig.engine.default = other.default = Behaviour(tokens=1)
            got = asyncio.ensure_future(rig.post(CHAT, chat(max_tokens=1, model=model)))
            await rig.until(lambda: aside(rig) == 1)
            may["gpu0"].set()
            await rig.until(lambda: rig.app.fleet.backends["gpu0"].ready, 10)
            if model == "one":
                await rig.until(lambda: aside(rig) == 0)  # it hears of it in the loop's next turn
            else:
                for _ in range(3):
                    await asyncio.sleep(0)
                assert aside(rig) == 1
            may["gpu1"].set()
            assert (await got).status == status
            assert (len(rig.engine.seen), len(other.seen)) == asked


@pytest.mark.parametrize("path", [CHAT, COUNT])
@pytest.mark.parametrize("admission", ["on", "shadow", "off"])
async def test_a_server_that_comes_in_the_place_of_theirs_takes_them(
    unseen, tmp_path, admission: str, path: str
) -> None:
    async with FakeSGLang() as other, unseen.gate({"admission": admission}) as rig:
        other.default = Behaviour(tokens=1)
        await unseen.ask(rig, 3, path=path)
        file = written(tmp_path, other.url, {"admission": admission}).path
        file.write_text(file.read_text().replace("gpu0", "gpu1"))
        assert (await rig.control("/reload", "POST")).status == 200
        assert await unseen.all() == [200] * 3
        assert len(other.seen) == (3 if path == CHAT else 0)


@pytest.mark.parametrize("policy", [{}, {"models": {"good": "large"}}])
async def test_a_server_that_never_came_keeps_no_names_from_the_others(
    start, policy: Policy
) -> None:
    """But those that policy has: they are of a model that there is."""
    more = {"more": [{"url": "http://127.0.0.1:9", "name": "gpu1"}], **policy}
    async with start(more, model="one") as rig:
        rig.engine.default = Behaviour(tokens=1)
        await rig.until(lambda: not rig.app.fleet.backends["gpu1"].expected, 10)
        for model, status in {
            "one": 200,
            "gpt-4": 200,
            None: 200,
            "large": 503 if policy else 200,
            "good": 503 if policy else 200,
            "large:sql": 503,
        }.items():
            got = await rig.post(CHAT, chat(max_tokens=1, model=model))
            assert got.status == status, (model, got.body)


async def test_whom_a_doubt_finds_after_it_was_counted_waits_like_the_others(
    rig, monkeypatch
) -> None:
    """Its ticket names a pool already, which may open, or be resized, before the doubt is over."""
    rig.engine.default = Behaviour(tokens=1)
    server, count = rig.app.fleet.backends["gpu0"], lobby.Lobby.still_there

    async def doubted(self: Any, ticket: Any) -> None:
        server.ready, server._expected_until = False, asyncio.get_running_loop().time() + 9
        await count(self, ticket)

    monkeypatch.setattr(lobby.Lobby, "still_there", doubted)
    asked = asyncio.ensure_future(rig.chat(max_tokens=1))
    await rig.until(lambda: aside(rig) == 1)
    rig.app.fleet._resize(server)
    assert (await rig.status())["queue"]["aside"] == 1
    server.opens()
    rig.app.fleet._turn(server)
    assert (await asked).status == 200
