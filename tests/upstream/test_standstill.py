"""A process that stood still (stopped, moved, swapped out) finds its timers late and its sockets full."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import pytest

from gateway import tasks
from gateway.tasks import in_time
from gateway.upstream import connection
from gateway.upstream.client import Client
from gateway.upstream.errors import Failure, UpstreamError

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tasks, connection):
        monkeypatch.setattr(module, "LATE_S", 0.05)
        monkeypatch.setattr(module, "ROOM_S", 0.1)


def stand_still(seconds: float) -> None:
    """As a process that is stopped inside of its poll: that is broken off, its time is over, and it
    returns without having looked (epoll_wait after SIGCONT, see signal(7) and PEP 475)."""
    loop: Any = asyncio.get_running_loop()
    patch = pytest.MonkeyPatch()

    def away(_: float | None = None) -> list[Any]:
        patch.undo()
        time.sleep(seconds)
        return []

    patch.setattr(loop._selector, "select", away)


@pytest.fixture
def port():
    """A server that goes on while this process's loop stands still: it answers after 0.15 s, and sends
    the body after as long again."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(65536)
            for part in (HEAD, b"hi"):
                time.sleep(0.15)
                peer.sendall(part)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    thread.join()
    listener.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("part", ["head", "body"])
async def test_what_came_while_we_were_away_came_in_time(port: int, part: str) -> None:
    client = Client(f"http://127.0.0.1:{port}")
    try:
        reply = await client.send("GET", "/", [], first_byte_timeout_s=0.25, idle_timeout_s=0.25)
        if part == "body":
            await reply.head()
            reading = asyncio.ensure_future(reply.read())
            await asyncio.sleep(0)
            stand_still(0.5)
            assert await reading == b"hi"
        else:
            waiting = asyncio.ensure_future(reply.head())
            await asyncio.sleep(0)
            stand_still(0.5)
            await waiting
            assert await reply.read() == b"hi"
    finally:
        await client.close()


@pytest.mark.usefixtures("quick")
async def test_a_server_that_said_nothing_is_still_found_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        reply = await client.send("GET", "/", [], first_byte_timeout_s=0.1)
        waiting = asyncio.ensure_future(reply.head())
        await asyncio.sleep(0)
        stand_still(0.3)
        came_back = time.monotonic()
        with pytest.raises(UpstreamError) as caught:
            await waiting
        assert caught.value.kind is Failure.FIRST_BYTE_TIMEOUT
        assert 0.38 <= time.monotonic() - came_back < 1.3
        await client.close()


# ---- limits of time around a wait ----------------------------------------------------------------


@pytest.mark.usefixtures("quick")
async def test_a_wait_that_is_over_when_we_come_back_was_in_time() -> None:
    mine, other = socket.socketpair()
    with other:
        reader, writer = await asyncio.open_connection(sock=mine)
        threading.Timer(0.1, other.send, (b"x",)).start()

        async def read() -> bytes:
            async with in_time(0.2):
                return await reader.read(1)

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(0)
        stand_still(0.5)
        assert await reading == b"x"
        writer.close()
        await writer.wait_closed()


@pytest.mark.looptime
async def test_a_wait_that_is_too_long_ends_at_its_time() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with in_time(3.0):
            await asyncio.Event().wait()
    assert loop.time() - began == pytest.approx(3.0)
    async with in_time(1.0):
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)  # nothing of it is left to go off


@pytest.mark.usefixtures("quick")
async def test_after_a_standstill_it_ends_when_nothing_came() -> None:
    async def wait() -> None:
        async with in_time(0.1):
            await asyncio.Event().wait()

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    stand_still(0.3)
    async with asyncio.timeout(1):
        with pytest.raises(TimeoutError):
            await waiting
