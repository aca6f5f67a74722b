"""A client that has finished sending is not gone; one that is gone is noticed as fast as ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.edge.face import STILL_THERE
from tests.edge.rig import CHAT, GENERATE, TEXT, Peer, chat, request
from tests.fakes.behaviour import Behaviour

FULL = {"prompt": [1] * 20, "max_tokens": 5000, "stream": True}
BODIES: dict[str, Any] = {
    CHAT: chat(max_tokens=3),
    TEXT: FULL | {"max_tokens": 3},
    GENERATE: {"text": "a"},
}


async def finish_sending(peer: Peer) -> None:
    peer.writer.write_eof()
    await peer.writer.drain()


def answer(raw: bytes) -> tuple[int, bytes]:
    """Status and body of the answer behind any number of `100 Continue`."""
    while raw.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
        raw = raw.partition(b"\r\n\r\n")[2]
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
async def test_it_gets_its_answer_and_then_the_connection_ends(
    rig, path: str, stream: bool
) -> None:
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=3, hold=hold, hold_at=0)
    async with rig.socket() as peer:
        await peer.send(request(path, BODIES[path] | {"stream": stream}))
        await finish_sending(peer)
        await rig.until(lambda: bool(rig.engine.seen))
        async with asyncio.timeout(3):
            asked = await peer.reader.readexactly(2 * len(STILL_THERE))
        assert asked == 2 * STILL_THERE
        hold.set()
        async with asyncio.timeout(3):
            status, body = answer(await peer.rest())
    assert status == 200
    assert body
    assert b"error" not in body
    await rig.until(lambda: len(rig.records) == 1)
    assert rig.records[0]["outcome"] == "completed"


async def test_it_may_wait_its_turn(rig) -> None:
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
    running = asyncio.ensure_future(rig.post(TEXT, FULL))
    await rig.engine.arrived()
    async with rig.socket() as peer:
        await peer.send(request(TEXT, FULL))
        await finish_sending(peer)
        await rig.queued()
        hold.set()
        async with asyncio.timeout(3):
            assert answer(await peer.rest())[0] == 200
    await running


@pytest.mark.parametrize("phase", ["queue", "prefill"])
async def test_one_that_is_gone_after_that_is_noticed(rig, phase: str) -> None:
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1 if phase == "queue" else 0)
    if phase == "queue":
        running = asyncio.ensure_future(rig.post(TEXT, FULL))
        await rig.engine.arrived()
    async with rig.socket() as peer:
        await peer.send(request(TEXT, FULL))
        await finish_sending(peer)
        if phase == "queue":
            await rig.queued()
        else:
            await rig.until(lambda: bool(rig.engine.seen))
        async with asyncio.timeout(3):
            await peer.reader.readexactly(len(STILL_THERE))
    await rig.until(lambda: len(rig.records) == 1)
    assert rig.records[0]["outcome"] == "cancelled"
    hold.set()
    if phase == "queue":
        await running


@pytest.mark.parametrize("how", ["HTTP/1.0", "half a body", "in its stream"])
async def test_where_it_cannot_be_asked_it_is_taken_for_gone(rig, how: str) -> None:
    """HTTP/1.0 knows no interim answer; a body that stops is no request; a stream is not added to."""
    rig.engine.default = Behaviour(tokens=9, hold=asyncio.Event(), hold_at=2)
    data = request(TEXT, FULL)
    if how == "HTTP/1.0":
        data = data.replace(b"HTTP/1.1", b"HTTP/1.0")
    async with rig.socket() as peer:
        await peer.send(data[:-5] if how == "half a body" else data)
        if how == "in its stream":
            await rig.engine.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 2)
            assert (await peer.head())[0] == 200
        elif how == "HTTP/1.0":
            await rig.engine.arrived()
        else:
            await rig.until(lambda: rig.handled == 1)
        await finish_sending(peer)
        async with asyncio.timeout(2):
            rest = await peer.rest()
        assert b"100 Continue" not in rest
        assert b"[DONE]" not in rest
    await rig.until(lambda: len(rig.records) == 1)
    assert rig.records[0]["outcome"] == "cancelled"
