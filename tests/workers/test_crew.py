"""How processes are kept, with small programs in the place of workers."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.policy.load import load_policy
from gateway.policy.source import Source
from gateway.workers import crew as crew_module
from gateway.workers.crew import Crew
from gateway.workers.order import Order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, MutableMapping

    from gateway.workers.crew import Hand

POLICY = load_policy(backends=("http://b:1",), env={})
UP = "print('up', flush=True); "


def order(hand: Hand, patience_s: float) -> Order:
    listen = ("127.0.0.1", 1)
    return Order(hand.number, 2, hand.life, Path(), listen, patience_s, POLICY, Source())


class Kept:
    def __init__(self, crew: Crew, said: list[MutableMapping[str, Any]], lost: list[str]) -> None:
        self.crew, self.said, self.lost = crew, said, lost

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(15):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def kept(monkeypatch: pytest.MonkeyPatch, program: str, size: int = 1) -> AsyncIterator[Kept]:
    monkeypatch.setattr(crew_module, "COMMAND", (sys.executable, "-S", "-c", program))
    monkeypatch.setattr(crew_module, "PAUSE_S", 0.01)
    with capture_logs() as said:
        lost: list[str] = []
        crew = Crew(size, order, structlog.get_logger(), heard=lambda: None, lost=lost.append)
        crew.start()
        try:
            yield Kept(crew, said, lost)
        finally:
            await crew.end(5)


async def test_one_that_ends_is_started_anew_after_a_pause_that_grows(monkeypatch) -> None:
    async with kept(monkeypatch, UP + "raise SystemExit(3)") as one:
        await one.until(lambda: len(one.said) == 4)
        assert [line["started_anew_in_s"] for line in one.said] == [0.01, 0.02, 0.04, 0.08]
        assert {(line["event"], line["code"]) for line in one.said} == {("worker_ended", 3)}
        assert one.lost == ["w0.1", "w0.2", "w0.3", "w0.4"]
        assert not one.crew.refused


async def test_one_that_ends_before_it_was_told_anything_is_started_anew(monkeypatch) -> None:
    """The order is written to a pipe that is closed already: uvloop says that with a RuntimeError."""

    class Closed:
        def write(self, _: bytes) -> None:
            raise RuntimeError("unable to perform operation on <WriteUnixTransport closed=True>")

    make = asyncio.create_subprocess_exec

    async def stillborn(*command: str, **pipes: Any) -> Any:
        process = await make(*command, **pipes)
        process.stdin = Closed()  # type: ignore[assignment]
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", stillborn)
    async with kept(monkeypatch, "raise SystemExit(3)") as one:
        await one.until(lambda: len(one.said) >= 2)
        assert {line["event"] for line in one.said} == {"worker_ended"}


async def test_what_a_worker_says_is_known_of_it(monkeypatch) -> None:
    program = (
        "import sys; sys.stdin.readline(); "
        + UP
        + "sys.stdin.read(1); print('ready', flush=True); sys.stdin.read()"
    )
    async with kept(monkeypatch, program) as one:
        (hand,) = one.crew.hands
        await one.until(lambda: hand.up)
        assert hand.turns_away, "it listens, and has met no server"
        assert hand.process is not None
        assert hand.process.stdin is not None
        hand.process.stdin.write(b"x")
        await one.until(lambda: hand.ready)
        assert not hand.turns_away
        assert hand.alive


async def test_one_that_cannot_start_as_it_is_told_is_not_tried_again(monkeypatch) -> None:
    async with kept(monkeypatch, "raise SystemExit(2)") as one:
        await one.until(lambda: one.crew.refused)
        assert one.crew.hands[0].starts == 1
        assert one.said == []


async def test_where_no_process_is_to_be_had_it_is_tried_again(monkeypatch) -> None:
    async with kept(monkeypatch, "") as one:
        monkeypatch.setattr(crew_module, "COMMAND", ("/nowhere/python",))
        await one.until(
            lambda: len([s for s in one.said if s["event"] == "worker_not_started"]) > 1
        )


async def test_one_that_does_not_end_is_killed_and_that_is_no_good_end(monkeypatch) -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); " + UP + "time.sleep(60)"
    async with kept(monkeypatch, program, 2) as two:
        await two.until(lambda: all(hand.up for hand in two.crew.hands))
        assert await two.crew.end(0.05) == 1
        assert two.said == [
            {"event": "workers_killed", "after_s": 0.05, "workers": 2, "log_level": "error"}
        ]


@pytest.mark.parametrize(("code", "worst"), [(0, 0), (1, 1)])
async def test_the_code_is_the_worst_of_theirs(monkeypatch, code, worst) -> None:
    program = (
        f"import signal, sys, time; signal.signal(15, lambda *_: sys.exit({code})); "
        + UP
        + "time.sleep(60)"
    )
    async with kept(monkeypatch, program, 2) as two:
        await two.until(lambda: all(hand.up for hand in two.crew.hands))
        assert await two.crew.end(10) == worst
        assert two.lost == []


async def test_one_that_was_still_starting_had_nothing_to_lose(monkeypatch) -> None:
    async with kept(monkeypatch, "import time; time.sleep(60)") as one:
        await one.until(lambda: one.crew.hands[0].alive)
        assert await one.crew.end(10) == 0
