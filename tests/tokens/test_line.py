"""Clients take turns at being counted, and nothing leaks, whoever comes, leaves or is thrown out."""

import asyncio
import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tokens.line import Line, Overtaken

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from("abc"), st.integers(1, 9)),
        st.tuples(st.just("leave"), st.integers(0, 9), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.integers(0, 2)),
    ),
    max_size=40,
)


def state(line):
    return line.bytes, line.waiting, sum(line._busy.values())


class Desk:
    """Tasks that ask for turns, and what they were told."""

    def __init__(self, line):
        self.line = line
        self.tasks = []
        self.inside = []  # (client, size), in the order they began
        self.begun = []

    async def come(self, client, size):
        if not self.line.make_room(client, size, 40):
            return
        self.tasks.append(asyncio.ensure_future(self._one(client, size)))
        await asyncio.sleep(0)

    async def _one(self, client, size):
        with contextlib.suppress(Overtaken):
            await self.line.turn(client, size)
            self.inside.append((client, size))
            self.begun.append(client)

    def leave(self, at):
        if at < len(self.inside):
            self.line.leave(*self.inside.pop(at))


def holds(line, busy, at_once, spare):
    assert len(busy) <= at_once + spare
    assert line.bytes <= 40
    assert sum(line._busy.values()) == len(busy)
    if line.waiting:
        assert len(busy) >= at_once
        idle = set(line._lines) - set(busy)
        assert not idle or len(busy) == at_once + spare, "a spare place is theirs"


@settings(deadline=None)
@given(STEPS, st.integers(1, 3), st.integers(0, 1))
def test_places_are_never_exceeded_idle_while_one_may_begin_or_lost(steps, at_once, spare):
    async def run():
        line = Line(at_once, spare)
        desk = Desk(line)
        for what, who, size in steps:
            if what == "come":
                await desk.come(who, size)
            elif what == "leave":
                desk.leave(who)
            elif who < len(desk.tasks):
                desk.tasks[who].cancel()  # in the very turn in which it may be let in
                for _ in range(size):
                    desk.leave(0)
            for _ in range(3):
                await asyncio.sleep(0)
            holds(line, [client for client, _ in desk.inside], at_once, spare)
        while desk.inside:
            desk.leave(0)
            for _ in range(3):
                await asyncio.sleep(0)
        await asyncio.gather(*desk.tasks, return_exceptions=True)
        assert state(line) == (0, 0, 0)
        assert not line._bytes
        assert not line._lines

    asyncio.run(run())


async def test_each_client_has_its_turn():
    line = Line(1)
    desk = Desk(line)
    for client in "aaaabbc":
        await desk.come(client, 1)
    for _ in range(7):
        desk.leave(0)
        await asyncio.sleep(0)
    assert "".join(desk.begun) == "aabcaba"
    assert state(line) == (0, 0, 0)


async def test_a_client_that_is_alone_has_all_places_but_the_spare_one():
    line = Line(2, 1)
    desk = Desk(line)
    for _ in range(5):
        await desk.come("a", 1)
    assert len(desk.inside) == 2
    await desk.come("b", 1)
    assert desk.begun == ["a", "a", "b"]
    for task in desk.tasks:
        task.cancel()
    await asyncio.wait(desk.tasks)
    while desk.inside:
        desk.leave(0)


async def test_more_is_never_given_back_than_was_taken():
    line = Line(1)
    await line.turn("a", 5)
    with pytest.raises(ValueError, match="taken of"):
        line.leave("b", 5)


async def test_one_that_is_being_cancelled_takes_no_turn():
    line = Line(1)
    desk = Desk(line)
    for client in "aab":
        await desk.come(client, 1)
    desk.tasks[1].cancel()
    desk.leave(0)  # before it has got to say that it is gone
    for _ in range(3):
        await asyncio.sleep(0)
    assert desk.begun == ["a", "b"]
    desk.leave(0)
    assert state(line) == (0, 0, 0)


async def test_one_that_is_cancelled_as_its_turn_comes_gives_it_back():
    line = Line(1)
    desk = Desk(line)
    for client in "aab":
        await desk.come(client, 1)
    desk.leave(0)
    desk.tasks[1].cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert desk.begun == ["a", "b"]
    desk.leave(0)
    assert state(line) == (0, 0, 0)


async def test_thousands_that_leave_at_once_take_no_time():
    """Last come, first gone, which in a plain line is looked for from its other end."""
    line = Line(1)
    tasks = [asyncio.ensure_future(line.turn("flood", 1)) for _ in range(10_000)]
    await asyncio.sleep(0)
    before = time.process_time()
    for task in reversed(tasks[1:]):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert time.process_time() - before < 1  # 0.05 s; 5 s where each is looked for
    assert (line.bytes, line.waiting) == (1, 0)
