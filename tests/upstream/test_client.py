"""Leaving, waiting, and reading slowly."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from gateway.tasks import spawn
from gateway.upstream.errors import Failure, UpstreamError
from tests.upstream.engine import (
    LAST,
    OK,
    STREAMED,
    Peer,
    chunk,
    pair,
    post,
    replying,
)

if TYPE_CHECKING:
    from gateway.upstream.reply import Reply


async def test_close_drops_the_connection_at_once() -> None:
    async with pair() as (client, it):
        it.scripts.append(replying(STREAMED + chunk(b"abc")))
        reply = await client.request("GET", "/", [])
        reply.close()
        reply.close()
        await it.peers[0].gone.wait()
        assert client.stats.idle == 0


async def test_close_after_the_end_leaves_the_next_user_alone() -> None:
    async with pair() as (client, _):
        first = await client.request("GET", "/", [])
        second = await client.request("GET", "/", [])
        first.close()
        assert await second.read_all(2) == b"hi"
        assert await first.read_all(2) == b"hi"
        assert client.stats.created == 1


async def test_a_cancelled_request_drops_the_connection() -> None:
    async with pair() as (client, it):
        it.scripts.append(replying())
        task = spawn(client.request("GET", "/", []), "request")
        while not it.peers or not it.peers[0].requests:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await it.peers[0].gone.wait()


async def test_a_cancelled_wait_can_be_taken_up_again() -> None:
    async with pair() as (client, it):
        it.scripts.append(replying())
        reply = await client.send("GET", "/", [])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await reply.head()
        await it.peers[0].send(STREAMED + chunk(b"abc"))
        await reply.head()
        assert await reply.read() == b"abc"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await reply.read()
        await it.peers[0].send(chunk(b"def") + LAST)
        assert await reply.read_all(3) == b"def"
        assert client.stats.idle == 1


async def test_what_was_dropped_on_purpose_is_not_sent_again() -> None:
    async def answer_once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.eof()

    async with pair() as (client, it):
        for leave in ("reply", "client"):
            it.scripts.append(answer_once)
            await post(client)
            reply = await client.send("POST", "/", [])
            task = spawn(_head(reply), leave)
            await asyncio.sleep(0)
            if leave == "reply":
                reply.close()
            else:
                await client.close()
            with pytest.raises(UpstreamError) as caught:
                await task
            assert caught.value.kind is Failure.RESET
        assert (client.stats.retries, client.stats.created) == (0, 2)


async def _head(reply: Reply) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await reply.head()


async def test_cancelling_at_any_step_leaks_nothing() -> None:
    async with pair() as (client, _):
        for steps in range(40):
            task = spawn(post(client), "post")
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert await task == b"hi"
        assert await post(client) == b"hi"
        while client.stats.open != client.stats.idle:
            await asyncio.sleep(0)


async def test_a_slow_reader_stops_the_engine() -> None:
    size = 64 << 20
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        block = bytes(1 << 20)
        for _ in range(size >> 20):
            await peer.send(block)
            sent += len(block)

    async with pair(read_high_water=64 * 1024) as (client, it):
        it.scripts.append(script)
        reply = await client.request("GET", "/", [])
        before = -1
        while before != sent:  # until nothing moves
            before = sent
            await asyncio.sleep(0.05)
        assert sent < size // 2
        got = most = 0
        while data := await reply.read():
            got += len(data)
            most = max(most, len(data))
        assert got == size
        assert most <= 64 * 1024 + 256 * 1024


async def test_reading_does_not_split() -> None:
    async with pair() as (client, it):
        it.scripts.append(replying(STREAMED + chunk(b"abc") + chunk(b"def"), LAST))
        reply = await client.request("GET", "/", [])
        assert (await reply.read(), reply.unread) == (b"abcdef", 0)
        assert await reply.read() == b""
        assert reply.read_nowait() == b""


async def test_read_nowait_says_when_there_is_nothing_yet() -> None:
    async with pair() as (client, it):
        it.scripts.append(replying(STREAMED))
        reply = await client.request("GET", "/", [])
        assert reply.read_nowait() is None
        await it.peers[0].send(chunk(b"abc") + LAST)
        assert await reply.read() == b"abc"


async def test_a_large_request_body() -> None:
    async with pair() as (client, it):
        body = bytes(range(256)) * 16_384
        assert await post(client, body) == b"hi"
        assert it.requests[0].endswith(body)


async def test_an_answer_before_the_request_was_taken() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await peer.gone.wait()

    async with pair() as (client, it):
        it.scripts.append(script)
        reply = await client.request("POST", "/", [], bytes(32 << 20))
        assert (reply.status, await reply.read_all(2)) == (413, b"no")
        assert client.stats.idle == 0  # half a request is still on that connection
        it.peers[0].gone.set()


async def test_closing_the_client_ends_what_is_under_way() -> None:
    async with pair() as (client, it):
        it.scripts.append(replying())
        task = spawn(post(client), "post")
        while not it.peers:
            await asyncio.sleep(0.001)
        await client.close()
        with pytest.raises(UpstreamError) as caught:
            await task
        assert caught.value.kind is Failure.RESET
        with pytest.raises(RuntimeError, match="closed"):
            await post(client)
