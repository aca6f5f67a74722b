"""A client that dies takes its request with it, in whatever phase it dies.

Each client here is a bare socket, closed the way the kernel closes those of a killed process. The
gate must withdraw the request from the engine and give its reservation back: within `STREAMED_S`
when the answer was streamed or had not been dispatched, within `WHOLE_S` when it was not streamed
(SGLang itself looks for those who left at polls 4 s apart).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import pytest

from tests.real.load import chat_body, chats, streaming, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.real.conftest import Note
    from tests.real.engine import Engine
    from tests.real.gateproc import Gate

STREAMED_S = 5.0
WHOLE_S = 8.0

# Withdrawn before it reached the engine: only the gate's own loop has to notice.
QUEUED_S = 1.0

# Long enough to be still running when its client dies: 1,400 tokens take the engine 7 s.
LONG = {"max_tokens": 1400}


class Client:
    """A chat request on a socket of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, base: str, body: dict[str, Any]) -> Self:
        address = urlsplit(base)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        await writer.drain()
        return cls(reader, writer)

    async def die(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


Send = Callable[[dict[str, Any]], Awaitable[Client]]


@pytest.fixture
async def send(gate: Gate) -> AsyncIterator[Send]:
    """Send a chat request to the gate as a client of its own; what is left of them dies at the end."""
    async with AsyncExitStack() as clients:

        async def sender(body: dict[str, Any]) -> Client:
            client = await Client.connect(gate.url, body)
            clients.push_async_callback(client.die)
            return client

        yield sender


async def freed(engine: Engine, gate: Gate, within_s: float) -> tuple[float, float]:
    """Seconds until the engine runs nothing, and until the gate reserves nothing."""
    began = time.monotonic()
    await until(lambda: not running(engine), within_s, "the engine drops the request")
    engine_s = time.monotonic() - began
    left = within_s - engine_s
    await until(lambda: not any(gate.ledgers().values()), left, "the gate's ledgers are at zero")
    return engine_s, time.monotonic() - began


def running(engine: Engine) -> int:
    loads = engine.loads()
    return int(loads["num_running_reqs"] + loads["num_waiting_reqs"])


def queued(gate: Gate) -> int:
    return int(gate.status()["queue"]["requests"])


async def test_while_queued_at_the_gate(
    engine: Engine, gate: Gate, send: Send, report: Note
) -> None:
    cancelled = gate.status()["totals"]["cancelled"]
    holder = await send(streaming(chat_body(560, seed=1, **LONG)))
    await until(lambda: running(engine) == 1, 10, "the first request runs")
    waiting = await send(streaming(chat_body(560, seed=2, **LONG)))
    await until(lambda: queued(gate) == 1, 5, "the second waits at the gate")
    held = gate.reserved()

    await waiting.die()
    took = await until(lambda: queued(gate) == 0, QUEUED_S, "the queue forgets who left")

    assert gate.reserved() == held, "only the queue is touched"
    assert running(engine) == 1, "the engine never heard of the second"
    await holder.die()
    await freed(engine, gate, STREAMED_S)
    assert gate.status()["totals"]["cancelled"] == cancelled + 2
    report(f"client killed while queued: out of the queue after {took:.2f} s")


async def test_while_prefilling(engine: Engine, gate: Gate, send: Send, report: Note) -> None:
    # A frozen scheduler holds the request between dispatch and first token as long as we like.
    engine.freeze()
    try:
        client = await send(streaming(chat_body(560, seed=3, **LONG)))
        await until(lambda: gate.reserved() > 560, 5, "the request is dispatched")
        await client.die()
    finally:
        engine.thaw()
    engine_s, gate_s = await freed(engine, gate, STREAMED_S)
    report(f"client killed in prefill: engine free {engine_s:.2f} s, ledger zero {gate_s:.2f} s")


async def test_while_streaming(engine: Engine, gate: Gate, send: Send, report: Note) -> None:
    client = await send(streaming(chat_body(560, seed=4, **LONG)))
    for _ in range(5):
        await client.reader.readuntil(b"\n\n")
    assert gate.reserved() > 560
    assert running(engine) == 1
    await client.die()
    engine_s, gate_s = await freed(engine, gate, STREAMED_S)
    report(f"client killed mid-stream: engine free {engine_s:.2f} s, ledger zero {gate_s:.2f} s")


async def test_while_an_unstreamed_answer_is_made(
    engine: Engine, gate: Gate, send: Send, report: Note
) -> None:
    client = await send(chat_body(560, seed=5, **LONG))
    await until(lambda: running(engine) == 1, 10, "the request runs")
    await client.die()
    engine_s, gate_s = await freed(engine, gate, WHOLE_S)
    # By itself it would have ended after about 7 s; an abort must be what ended it.
    assert engine_s < 5, "the engine was told, it did not merely finish"
    report(f"client killed, not streamed: engine free {engine_s:.2f} s, ledger zero {gate_s:.2f} s")


async def test_n_answers_at_once(engine: Engine, gate: Gate, send: Send, report: Note) -> None:
    """All sequences of one request end with it."""
    client = await send(streaming(chat_body(100, seed=6, max_tokens=500, n=3)))
    await until(lambda: running(engine) == 3, 10, "three sequences run")
    await client.die()
    engine_s, gate_s = await freed(engine, gate, STREAMED_S)
    report(f"client killed, n=3: engine free {engine_s:.2f} s, ledger zero {gate_s:.2f} s")


async def test_others_do_not_notice(engine: Engine, gate: Gate, send: Send) -> None:
    """The abort of one request must not hit another (SGLang matches request ids by prefix)."""
    doomed = await send(streaming(chat_body(100, seed=7, max_tokens=700)))
    await until(lambda: running(engine) == 1, 10, "the first request runs")
    body = streaming(chat_body(100, seed=8, max_tokens=300))
    async with asyncio.TaskGroup() as tasks:
        survivor = tasks.create_task(chats(gate.url, [body]))
        await until(lambda: running(engine) == 2, 10, "both run")
        await doomed.die()
    (reply,) = survivor.result()
    assert reply.complete
    assert reply.usage["completion_tokens"] == 300
    await freed(engine, gate, STREAMED_S)
