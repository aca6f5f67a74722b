"""The gate on the loop it is run on in earnest."""

from __future__ import annotations

import asyncio
import itertools

import uvloop

from gateway.core.admission import Admission
from gateway.core.model import (
    Ask,
    ClientRule,
    Outcome,
    PoolId,
    PoolLimits,
    QueueRule,
    RequestId,
    Ticket,
)
from gateway.gate import Gate


def test_timers_that_have_fired_are_set_anew() -> None:
    """uvloop's timer handles forget when they were due once they have fired. Answers that are not
    streamed set one timer each, and hundreds of them end around those of others."""

    async def life() -> int:
        core = Admission(QueueRule(), now=asyncio.get_running_loop().time())
        gate = Gate(core, listener=lambda _: None, on_abandon=lambda _: None)
        pool = PoolId("gpu0")
        gate.resize(pool, PoolLimits(kv_tokens=1_000, prefill_tokens=400))
        gate.set_open(pool, is_open=True)
        ids = itertools.count()

        async def one(turns: int) -> None:
            for _ in range(turns):
                ticket = Ticket(
                    id=RequestId(f"r{next(ids):06}"),
                    client=ClientRule("a"),
                    ask=Ask((1 + next(ids) % 3,), cap=100),
                    pools=(pool,),
                    streamed=False,
                )
                async with gate.admit(ticket, grace_s=1.0) as lease:
                    lease.sent()
                    await asyncio.sleep(0.001)
                    lease.end(Outcome.COMPLETED)

        await asyncio.gather(*(one(25) for _ in range(16)))
        return core.view(gate.now()).pools[0].kv.reserved

    assert uvloop.run(life()) == 0


def test_a_timer_that_is_a_rounding_error_ahead_is_not_called_again_and_again() -> None:
    """133 ms after a whole millisecond are 4e-12 s more than a whole millisecond."""

    async def life() -> int:
        loop = asyncio.get_running_loop()
        core = Admission(QueueRule(), now=loop.time())
        gate = Gate(core, listener=lambda _: None, on_abandon=lambda _: None)
        ticks = 0
        tick = gate._alarm._ring

        def counted() -> None:
            nonlocal ticks
            ticks += 1
            tick()

        gate._alarm._ring = counted
        due = loop.time() + 0.005 + 4e-12
        core.next_wakeup = lambda: due if loop.time() < due + 0.002 else None  # type: ignore[method-assign]
        core.advance = lambda _now: []  # type: ignore[method-assign]
        gate._alarm.set(due)
        await asyncio.sleep(0.02)
        return ticks

    assert uvloop.run(life()) <= 5
