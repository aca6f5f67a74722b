"""The engine dies and comes back with another pool; the gate lives on and learns the new one."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from tests.real.conftest import POOL
from tests.real.load import chat_body, chats, streaming, until

if TYPE_CHECKING:
    from tests.real.conftest import Note
    from tests.real.engine import Engine
    from tests.real.gateproc import Gate

BEFORE, AFTER = POOL, POOL // 2

# From the moment the new server answers, until the gate has read its pool and admits again.
KNOWN_WITHIN_S = 15.0


@pytest.mark.changes_engine
async def test_a_crash_and_a_smaller_pool(engine: Engine, gate: Gate, report: Note) -> None:
    def pool_limit() -> int:
        (backend,) = gate.status()["backends"]
        return int(backend["ledgers"]["kv"]["limit"])

    assert BEFORE * 0.9 < pool_limit() <= BEFORE

    retracted = engine.retractions()

    # Two in flight when it dies: one whose stream is cut, one of which nothing was sent yet.
    cut = streaming(chat_body(560, seed=1, max_tokens=700))
    whole = chat_body(100, seed=2, max_tokens=300)
    async with asyncio.TaskGroup() as tasks:
        in_flight = tasks.create_task(chats(gate.url, [cut, whole]))
        await until(lambda: engine.loads()["num_running_reqs"] == 2, 10, "both run")
        killed = time.monotonic()
        engine.kill_scheduler()
    stream, unsent = in_flight.result()
    noticed_s = time.monotonic() - killed

    assert stream.status == 200
    assert not stream.body.endswith(b"data: [DONE]\n\n"), "no pretence of a complete answer"
    assert stream.error is not None
    assert len(stream.error["message"].split()) >= 4
    assert unsent.status in {502, 503}
    assert unsent.error is not None

    await asyncio.to_thread(engine.restart, AFTER)
    ready = time.monotonic()
    await until(
        lambda: AFTER * 0.9 < pool_limit() <= AFTER, KNOWN_WITHIN_S, "the new pool is known"
    )
    known_s = time.monotonic() - ready
    await until(lambda: gate.reserved() == 0, 5, "what the old server held is written off")

    replies = await chats(gate.url, [streaming(chat_body(300, seed=k)) for k in range(4)])
    assert all(reply.complete for reply in replies)
    # It would have fitted the old pool.
    (refused,) = await chats(gate.url, [chat_body(1200, seed=9, max_tokens=300)])
    assert refused.status == 400
    assert refused.error is not None
    assert refused.error["code"] == "context_length_exceeded"
    assert engine.retractions() == retracted
    assert not any(gate.ledgers().values())
    report(
        f"scheduler killed: both clients told after {noticed_s:.1f} s; "
        f"new pool known {known_s:.2f} s after the server was back"
    )
