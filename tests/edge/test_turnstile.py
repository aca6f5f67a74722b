"""However many come, or go, in one moment: a few of them are worked on in one turn of the loop."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gateway.app import AT_ONCE
from gateway.edge import turnstile
from gateway.edge.turnstile import A_TURN, EACH, LOST, Portions, Turnstile
from tests.edge.rig import CHAT, COUNT, TEXT, chat, request
from tests.fakes.behaviour import Behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.edge.rig import Peer

FEW = A_TURN // EACH
"""Requests without bytes that pass in one turn."""

MANY = 40


class Turns:
    """Who was worked on in which turn of the loop, while `async with`."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = [[]]

    async def __aenter__(self) -> Turns:
        self._ticks = asyncio.ensure_future(self._tick())
        await asyncio.sleep(0)  # it counts from the next turn on
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticks.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0)
            if self.seen[-1]:
                self.seen.append([])

    def of(self, name: str) -> None:
        self.seen[-1].append(name)

    def before(self, owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Note each call of that."""
        call = getattr(owner, name)

        def noted(*args: object) -> object:
            self.of(name)
            return call(*args)

        monkeypatch.setattr(owner, name, noted)

    @property
    def most(self) -> int:
        return max(map(len, self.seen))

    @property
    def all(self) -> list[str]:
        return [name for turn in self.seen for name in turn]


async def crowd(gate: Turnstile, turns: Turns, *, sizes: dict[str, tuple[int, int]]) -> None:
    """Of each client so many requests with so many bytes, all at once."""

    async def one(client: str, size: int) -> None:
        await gate.through(client, size)
        turns.of(client)

    asked = [(client, size) for client, (many, size) in sizes.items() for _ in range(many)]
    await asyncio.gather(*(one(client, size) for client, size in asked))


async def test_a_turn_has_few() -> None:
    async with Turns() as turns:
        await crowd(Turnstile(), turns, sizes={"a": (10 * FEW, 0)})
    assert turns.most == FEW
    assert len(turns.all) == 10 * FEW


async def test_large_ones_are_fewer_and_one_beyond_all_bounds_passes() -> None:
    async with Turns() as turns:
        await crowd(Turnstile(), turns, sizes={"large": (9, A_TURN // 2), "huge": (3, 50 * A_TURN)})
    assert turns.most == 2
    assert sorted(turns.all) == ["huge"] * 3 + ["large"] * 9


async def test_of_each_client_one_passes_before_anothers_second() -> None:
    async with Turns() as turns:
        await crowd(
            Turnstile(), turns, sizes={"flood": (20 * FEW, 0), "one": (1, 0), "two": (2, 0)}
        )
    behind = turns.all[FEW:]  # the first found the turn empty
    assert behind[:3] == ["flood", "one", "two"]
    assert behind[3:5] == ["flood", "two"]


async def test_who_left_costs_nobody_a_turn() -> None:
    gate = Turnstile()
    gone = [asyncio.ensure_future(gate.through("a", 0)) for _ in range(5 * FEW)]
    await asyncio.sleep(0)  # each is in line, the first FEW have passed
    for one in gone:
        one.cancel()
    before = gate.turns
    await gate.through("a", 0)
    assert gate.turns - before <= 2
    assert not gate._lines


async def test_in_the_same_turn_it_need_not_pass_again() -> None:
    gate = Turnstile()
    turn = await gate.through("a", 0)
    before = gate._left
    await gate.again(turn, "a", 0)
    assert gate._left == before
    await asyncio.sleep(0)
    await gate.again(turn, "a", 0)
    assert gate._left == A_TURN - EACH


async def test_nothing_is_left_to_do_where_nobody_comes() -> None:
    """A turnstile that turns and turns would keep a core busy."""
    gate = Turnstile()
    await gate.through("a", 0)
    for _ in range(3):
        await asyncio.sleep(0)
    assert gate._next is None


async def test_portions_keep_their_order_and_go_on_after_one_that_fails() -> None:
    few, failed = Portions(4), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda *_: failed.set())

    def fails() -> None:
        raise RuntimeError

    async with Turns() as turns:
        for number in range(30):
            few.call(fails if number == 9 else partial(turns.of, str(number)))
        while few._put_off or few._next is not None:
            await asyncio.sleep(0)
    assert failed.is_set()
    assert turns.all == [str(number) for number in range(30) if number != 9]
    assert turns.most <= 4


# ---- of a gate ---------------------------------------------------------------------------------


@pytest.fixture
def most(monkeypatch) -> int:
    """A turn has two; beside those that were let in by the one before, as many may find it empty."""
    monkeypatch.setattr(turnstile, "A_TURN", 2 * EACH)
    return 4


@asynccontextmanager
async def at_once(rig, path: str, body: object, many: int) -> AsyncIterator[list[Peer]]:
    """So many requests, written in one turn of the loop on connections that the gate knows already."""
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(rig.socket()) for _ in range(many)]
        connections = rig.app.listeners.runners[0].server.connections
        await rig.until(lambda: len(connections) >= many)
        for peer in peers:
            peer.writer.write(request(path, body))
        yield peers


@asynccontextmanager
async def behind_one(rig, many: int) -> AsyncIterator[list[Peer]]:
    """So many that wait, as one holds the whole pool."""
    release = asyncio.Event()
    rig.engine.queue.append(Behaviour(hold=release, hold_at=1, tokens=2))
    holds = asyncio.ensure_future(rig.post(TEXT, {"prompt": [1] * 20, "max_tokens": 5000}))
    await rig.until(lambda: rig.reserved > 0)
    async with at_once(rig, TEXT, {"prompt": [1] * 20, "max_tokens": 5}, many) as peers:
        await rig.queued(many)
        yield peers
    release.set()
    await holds


@pytest.mark.parametrize("path", [TEXT, COUNT])
async def test_bodies_are_parsed_few_at_a_time(start, monkeypatch, most, path) -> None:
    message = {"role": "user", "content": "a"}
    body = {"model": "tiny", "prompt": [1] * 9, "max_tokens": 2, "messages": [message]}
    async with start() as rig, Turns() as turns:
        turns.before(turnstile.body, "parse", monkeypatch)
        async with at_once(rig, path, body, MANY) as peers:
            assert {(await peer.head())[0] for peer in peers} == {200}
    assert len(turns.all) == MANY
    assert turns.most <= most


async def test_bodies_that_end_together_are_parsed_few_at_a_time(start, monkeypatch, most) -> None:
    """Their heads came before, one by one, and passed."""
    whole = request(TEXT, {"model": "tiny", "prompt": [1] * 9, "max_tokens": 2})
    reading = []
    read = turnstile.body.read

    async def noted(*args: object) -> bytes:
        reading.append(1)
        return await read(*args)

    monkeypatch.setattr(turnstile.body, "read", noted)
    async with start() as rig, Turns() as turns, AsyncExitStack() as stack:
        turns.before(turnstile.body, "parse", monkeypatch)
        peers = [await stack.enter_async_context(rig.socket()) for _ in range(MANY)]
        for peer in peers:
            peer.writer.write(whole[:-1])
        await rig.until(lambda: len(reading) == MANY)
        for peer in peers:
            peer.writer.write(whole[-1:])
        assert {(await peer.head())[0] for peer in peers} == {200}
    assert len(turns.all) == MANY
    assert turns.most <= most


async def test_what_was_not_counted_in_time_goes_on_few_at_a_time(start, monkeypatch, most) -> None:
    """They came at once, and their time to be counted is over at once."""
    monkeypatch.setattr("gateway.tokens.counter.REMOTE_SECONDS", 0.2)
    never = asyncio.Event()
    async with start() as rig, Turns() as turns:
        usual = rig.engine._answer

        async def answer(wire, received) -> None:
            if "tokenize" in received.path:
                await never.wait()
            await usual(wire, received)

        rig.engine._answer = answer
        turns.before(rig.app.gate.core, "submit", monkeypatch)
        async with at_once(rig, CHAT, chat(max_tokens=2), MANY) as peers:
            assert {(await peer.head())[0] for peer in peers} == {200}
        never.set()
    assert len(turns.all) == MANY
    assert turns.most <= most


async def test_connections_that_end_together_are_seen_to_few_at_a_time(start, monkeypatch) -> None:
    many = 3 * LOST
    async with start() as rig, Turns() as turns:
        turns.before(rig.app.gate.core, "cancel", monkeypatch)
        async with behind_one(rig, many) as peers:
            for peer in peers:
                peer.reset()
            await rig.queued(0)
    assert len(turns.all) == many
    assert turns.most <= LOST


async def test_all_that_waited_for_a_server_go_on_few_at_a_time(start, monkeypatch, most) -> None:
    """It is there, and all of them hear it at once."""
    async with start() as rig, Turns() as turns:
        turns.before(rig.app.gate.core, "submit", monkeypatch)
        fleet = rig.app.fleet
        server = fleet.backends["gpu0"]
        server.ready, server._expected_until = False, asyncio.get_running_loop().time() + 9
        async with at_once(rig, TEXT, {"prompt": [1] * 9, "max_tokens": 2}, MANY) as peers:
            await rig.queued(MANY)
            server.ready = True
            fleet._turn(server)
            assert {(await peer.head())[0] for peer in peers} == {200}
    assert len(turns.all) == MANY
    assert turns.most <= most


async def test_a_gate_that_goes_down_refuses_few_at_a_time(start, monkeypatch) -> None:
    """Where a turn takes longer than a millisecond it may have those of two: told at its end, and at the next one's start."""
    many = 5 * AT_ONCE
    async with start() as rig, Turns() as turns:
        turns.before(rig.app.data, "_instead", monkeypatch)
        async with behind_one(rig, many) as peers:
            rig.app.draining.begin()
            assert {(await peer.head())[0] for peer in peers} == {503}
    assert len(turns.all) == many
    assert turns.most <= 2 * AT_ONCE
