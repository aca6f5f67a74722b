"""The watchdog on a virtual clock: a worker that hangs is ended, one that stood still with us is not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.workers.asking import Said
from gateway.workers.watchdog import EVERY_S, SILENT_S, Watchdog

pytestmark = pytest.mark.looptime


class World:
    """One worker. `answers` are the times it takes to answer, in order; None: it does not."""

    def __init__(self, *answers: float | None) -> None:
        self.answers = list(answers)
        self.hands = [SimpleNamespace(number=0, life="w0.1", alive=True, up=True)]
        self.killed: list[float] = []
        self.way = True

    async def all(self, numbers: list[int], _: str, *, within_s: float) -> list[Said]:
        takes = self.answers.pop(0) if self.answers else 0.0
        await asyncio.sleep(within_s if takes is None else takes)
        late = takes is None or takes > within_s
        return [Said(number, 0 if late else 200, b"") for number in numbers]

    def has_a_way(self, _: int) -> bool:
        return self.way

    def kill(self, life: str) -> bool:
        assert life == "w0.1"
        self.killed.append(asyncio.get_running_loop().time())
        return True

    async def run(self, seconds: float) -> list[float]:
        it: Any = self
        dog = asyncio.ensure_future(Watchdog(it, it, structlog.get_logger()).run())
        await asyncio.sleep(seconds)
        dog.cancel()
        return self.killed


async def test_who_is_silent_for_long_is_ended() -> None:
    world = World(0.0, *[None] * 20)
    killed = await world.run(EVERY_S + SILENT_S + 2 * EVERY_S)
    assert killed
    assert SILENT_S <= killed[0] - EVERY_S <= SILENT_S + 2 * EVERY_S


async def test_who_wakes_later_than_we_do_after_a_standstill_is_not() -> None:
    """Forty seconds of swapping, or of a machine that was moved: all workers and their answers were
    ended as soon as one of the questions after it took a little long."""
    assert await World(0.0, 40.0, None, 0.0).run(200) == []


async def test_an_answer_begins_the_count_anew() -> None:
    assert await World(*[0.0, None, None] * 10).run(200) == []


async def test_who_cannot_be_asked_for_want_of_a_socket_is_not_ended() -> None:
    """A cleaning of /tmp took the folder: all workers would be ended, and none could start anew."""
    world = World(0.0, *[None] * 20)
    world.way = False
    with capture_logs() as logs:
        assert await world.run(200) == []
    assert [line["event"] for line in logs] == ["workers_folder_gone"], "said once"
