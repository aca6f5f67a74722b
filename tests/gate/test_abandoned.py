"""How long an abandoned request is waited for, in virtual time and with an engine of a few words."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.edge.reaper import STUCK_S, Reaper

pytestmark = pytest.mark.looptime

GRACE_S = 30.0


class Engine:
    """A backend. It shows the request gone after so many questions, and says nothing else."""

    life = 0
    api_key = None

    def __init__(self, shows_after: int) -> None:
        self.shows_after = shows_after
        self.asked: list[float] = []

    def began(self, ident: str, sequences: int, *, quiet: bool) -> None: ...

    def ended(self, ident: str) -> None: ...

    async def gone(self, since: float, start: int, wait_s: float) -> bool:
        self.asked.append(asyncio.get_running_loop().time())
        if len(self.asked) > self.shows_after:
            return True
        await asyncio.sleep(wait_s)
        return False

    def says_busy(self, since: float) -> bool:
        return False


class House:
    def __init__(self, engine: Engine) -> None:
        self.confirmed: list[str] = []
        self.prolonged: list[float] = []
        self.reaper = Reaper(self.confirmed.append, self.prolong)  # type: ignore[arg-type]
        grant = SimpleNamespace(demand=SimpleNamespace(slots=1))
        self.lease: Any = SimpleNamespace(
            ticket=SimpleNamespace(id="r"), grant=grant, grace_s=GRACE_S
        )
        self.flight: Any = SimpleNamespace(
            record=SimpleNamespace(dialect="chat"),
            backend=engine,
            reply=None,
            named=False,
            lease=self.lease,
            at=0.0,
        )

    def prolong(self, ident: str, grace_s: float) -> None:
        self.prolonged.append(asyncio.get_running_loop().time())

    def bury(self) -> None:
        self.reaper.began(self.lease.ticket.id, self.flight)
        self.reaper.bury(self.lease)


def stand_still(seconds: float) -> None:
    loop: Any = asyncio.get_running_loop()
    loop.setup_looptime(start=loop.time() + seconds)


async def test_an_engine_that_says_nothing_is_asked_once() -> None:
    house = House(engine := Engine(shows_after=1))
    house.bury()
    await asyncio.sleep(100)
    assert (len(engine.asked), house.prolonged, house.confirmed) == (1, [], [])
    assert house.reaper.dying == 0


@pytest.mark.parametrize("away_s", [60.0, 2 * STUCK_S])
async def test_after_a_standstill_it_is_asked_again(away_s: float) -> None:
    """It could not answer, and the grace that is left may be too short for it to."""
    house = House(engine := Engine(shows_after=1))
    house.bury()
    await asyncio.sleep(1)
    stand_still(away_s)
    await asyncio.sleep(1)
    assert len(engine.asked) == 2
    assert len(house.prolonged) == 1
    assert house.confirmed == ["r"]
