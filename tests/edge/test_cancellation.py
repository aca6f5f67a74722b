"""Class G: a request cancelled at every await of its way, one after the other, leaves nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
import pytest

from gateway.edge import handler
from tests.edge.rig import CHAT, GENERATE, chat
from tests.fakes.behaviour import Behaviour, queue_full
from tests.gate.steps import Cancelled, cancelled_at

MOST = 60
"""No way through the handler has as many suspensions; the loop ends when all are done."""


class Cutter:
    """Cuts the requests marked with a header at a given suspension."""

    def __init__(self, rig, *, late: bool) -> None:
        self.at = 0
        self.late = late
        self.outcome: Any = None
        self._generate = rig.app.data._generate
        rig.app.data._generate = self

    async def __call__(self, request, *args: Any) -> Any:
        way = self._generate(request, *args)
        if "x-cut" not in request.headers:
            return await way
        self.outcome = await cancelled_at(way, self.at, late=self.late)
        if self.outcome is Cancelled:
            raise asyncio.CancelledError
        return self.outcome


async def _ask(rig, path: str, body: Any) -> None:
    with suppress(aiohttp.ClientError):
        await rig.post(path, body, headers={"x-cut": "1"})


def _write_off(rig, before: int, seen) -> None:
    """What is known of a death when the connection breaks: nothing is held any more."""
    if len(rig.engine.seen) == before + 1:
        rig.app.gate.void(rig.app.fleet.backends["gpu0"].pools[0])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(max_tokens=3, stream=True)),
        (CHAT, chat(max_tokens=3)),
        (GENERATE, {"text": "a b", "stream": True, "sampling_params": {"max_new_tokens": 3}}),
    ],
)
@pytest.mark.parametrize("situation", ["free", "queued", "pushed back", "died"])
async def test_cancelled_at_every_await_of_its_way(
    rig, monkeypatch, path: str, body: Any, situation: str, late: bool
) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.01)
    cutter = Cutter(rig, late=late)
    full = {"text": "x", "sampling_params": {"max_new_tokens": 5000}, "stream": True}
    for cutter.at in range(1, MOST):
        release = asyncio.Event()
        blocker = None
        if situation == "queued":
            number = len(rig.engine.seen) + 1
            rig.engine.queue.append(Behaviour(hold=release, hold_at=1, tokens=2))
            blocker = asyncio.ensure_future(rig.post(GENERATE, full))
            await rig.engine.arrived(number)
        elif situation == "pushed back":
            rig.engine.queue.append(queue_full())
        elif situation == "died":
            rig.engine.queue.append(Behaviour(reset_at=0))
            rig.engine.script = partial(_write_off, rig, len(rig.engine.seen))
        rig.engine.default = Behaviour(tokens=3, gap_s=0.003)
        ended = len(rig.records) + 1
        victim = asyncio.ensure_future(_ask(rig, path, body))
        if blocker is not None:
            await rig.until(
                lambda: rig.app.gate.view().queue.requests == 1 or len(rig.records) == ended  # noqa: B023
            )
            release.set()
            await blocker
        await victim
        rig.engine.queue.clear()
        await rig.at_rest()
        if cutter.outcome is not Cancelled:
            break
        cutter.outcome = None
    assert 2 < cutter.at < MOST - 1, "from the first await to the last"
    assert {record["outcome"] for record in rig.records} <= {"cancelled", "completed"}


async def test_a_short_grace_leaves_time_to_see_it_gone(start) -> None:
    """What the engine shows gone is given back at once, also where the grace is shorter than the time
    that is kept for abort and reading."""
    async with start({"limits": {"release_grace_s": 6}}) as rig:
        rig.engine.queue.append(Behaviour(close_at=2))
        await rig.chat(stream=True, max_tokens=5)
        await rig.until(lambda: not rig.reserved, 3.0)
