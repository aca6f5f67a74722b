"""One performance: a fresh box, the crowd before it, and what is left to count at the end."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from gateway.demo.box import Box, powered
from gateway.demo.client import Asker
from gateway.demo.clock import BoxClock
from gateway.demo.crowd import Crowd
from gateway.demo.front import gate, policy_for
from gateway.demo.promises import Promises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.app import App
    from gateway.demo.script import Script


@dataclass(slots=True)
class Act:
    """A performance, going on or over. `app` is the gate, if there is one."""

    title: str
    clock: BoxClock
    box: Box
    crowd: Crowd
    promises: Promises
    app: App | None = None
    reserved: int = 0
    ended_at: float = 0.0


Watch = "Callable[[Act], None]"
"""Called several times a second."""

LOOK_S = 0.1
"""Between two looks at a performance, our seconds."""


@contextlib.asynccontextmanager
async def staged(title: str, script: Script, speed: float, *, gated: bool) -> AsyncIterator[Act]:
    """A fresh box with or without the gate, and a crowd that has not yet begun."""
    async with contextlib.AsyncExitStack() as stack:
        box = await stack.enter_async_context(powered(speed, script.seed))
        app = None
        if gated:
            app = await stack.enter_async_context(gate(policy_for(box.servers, speed)))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
            )
        )
        names = list(box.servers)

        def door(first: int) -> tuple[str, str]:
            name = names[first]
            return (box.servers[name].url if app is None else app.listen_url), name

        promises = Promises(box.servers)
        clock = BoxClock(speed)
        asker = Asker(session, clock, promises.first_word, promises.ended)
        yield Act(title, clock, box, Crowd(script, asker, door), promises, app)


async def play(act: Act, watch: Callable[[Act], None], *, agents: bool = True) -> None:
    """Let the crowd loose for the script's seconds."""
    speed, seconds = act.clock.speed, act.crowd.script.seconds
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds - act.clock.now()) / speed):
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(_look(act, watch))
                await act.crowd.perform(agents=agents)
                looking.cancel()
    act.ended_at = min(act.clock.now(), seconds)
    watch(act)


async def _look(act: Act, watch: Callable[[Act], None]) -> None:
    while True:
        watch(act)
        await asyncio.sleep(LOOK_S)
