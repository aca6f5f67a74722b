"""The client against servers that are slow, break off or are not there."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.upstream.client import Client
from gateway.upstream.errors import Failure, UpstreamError
from tests.ports import free_port
from tests.upstream.engine import (
    LAST,
    OK,
    STREAMED,
    Peer,
    chunk,
    closing_after,
    engine,
    pair,
    post,
    replying,
)


async def test_nobody_listens() -> None:
    client = Client(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UpstreamError) as caught:
        await client.request("GET", "/", [])
    assert (caught.value.kind, caught.value.sent) == (Failure.CONNECT, False)
    assert client.stats.open == 0


async def test_connecting_takes_too_long() -> None:
    with socket.socket() as sock, socket.socket() as filler:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        filler.setblocking(False)
        filler.connect_ex(sock.getsockname())  # the backlog is full: further SYNs are dropped
        client = Client(f"http://127.0.0.1:{sock.getsockname()[1]}", connect_timeout_s=0.1)
        with pytest.raises(UpstreamError) as caught:
            await client.request("GET", "/", [])
    assert (caught.value.kind, caught.value.sent) == (Failure.NO_WAY, False)
    assert client.stats.open == 0


async def test_no_answer_in_time() -> None:
    async with pair() as (client, it):
        for parts in ((), (b"HTTP/1.1 200 OK\r\n",)):
            it.scripts.append(replying(*parts))
            with pytest.raises(UpstreamError) as caught:
                await client.request("GET", "/", [], first_byte_timeout_s=0.05)
            error = caught.value
            assert error.kind is Failure.FIRST_BYTE_TIMEOUT
            assert (error.sent, error.answered) == (True, bool(parts))
            await it.peers[-1].gone.wait()


async def test_silence_in_a_body() -> None:
    async with pair() as (client, it):
        it.scripts.append(replying(STREAMED + chunk(b"abc")))
        reply = await client.request("GET", "/", [], idle_timeout_s=0.05)
        assert await reply.read() == b"abc"
        with pytest.raises(UpstreamError) as caught:
            await reply.read()
        assert caught.value.kind is Failure.IDLE_TIMEOUT
        await it.peers[0].gone.wait()


async def test_a_slow_stream_is_not_silence() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAMED)
        for _ in range(6):
            await asyncio.sleep(0.05)
            await peer.send(chunk(b"x"))
        await peer.send(LAST)

    async with pair() as (client, it):
        it.scripts.append(script)
        # In all 0.3 s, under limits of 0.2 s each.
        reply = await client.request("GET", "/", [], first_byte_timeout_s=0.2, idle_timeout_s=0.2)
        assert await reply.read_all(6) == b"xxxxxx"


@pytest.mark.parametrize("reset", [False, True])
async def test_the_engine_dies_in_a_body(reset: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAMED + chunk(b"abc"))
        await read.wait()
        if reset:
            linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            sock = peer.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async with pair() as (client, it):
        read = asyncio.Event()
        it.scripts.append(script)
        reply = await client.request("GET", "/", [])
        assert await reply.read() == b"abc"
        read.set()
        for _ in range(2):
            with pytest.raises(UpstreamError) as caught:
                await reply.read()
            assert caught.value.kind is (Failure.RESET if reset else Failure.TRUNCATED)
            assert caught.value.answered
        assert not reply.ended


async def test_what_came_before_a_failure_is_read_first() -> None:
    async with pair() as (client, it):
        it.scripts.append(closing_after(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"))
        reply = await client.request("GET", "/", [])
        while client.stats.open:
            await asyncio.sleep(0)
        assert await reply.read() == b"abc"
        with pytest.raises(UpstreamError) as caught:
            reply.read_nowait()
        assert caught.value.kind is Failure.TRUNCATED


async def test_a_body_over_the_limit() -> None:
    async with pair() as (client, it):
        it.scripts.append(replying(STREAMED + chunk(b"abc")))
        reply = await client.request("GET", "/", [])
        with pytest.raises(UpstreamError) as caught:
            await reply.read_all(2)
        assert caught.value.kind is Failure.TOO_LARGE
        await it.peers[0].gone.wait()


async def answer_then_drop(peer: Peer) -> None:
    """Answer once, read the next request, and close without a word."""
    await peer.request()
    await peer.send(OK)
    await peer.request()


async def test_a_reused_connection_that_fails_is_tried_once_more() -> None:
    async with pair() as (client, it):
        it.scripts.append(answer_then_drop)
        assert await post(client) == b"hi"
        assert await post(client) == b"hi"
        stats = client.stats
        assert (stats.created, stats.reused, stats.retries) == (2, 1, 1)


async def test_a_fresh_connection_is_never_tried_again() -> None:
    async with pair() as (client, it):
        it.scripts.append(closing_after())
        with pytest.raises(UpstreamError) as caught:
            await post(client)
        error = caught.value
        assert (error.kind, error.sent, error.answered) == (Failure.RESET, True, False)
        it.scripts.extend([answer_then_drop, closing_after()])
        await post(client)
        with pytest.raises(UpstreamError):
            await post(client)
        assert client.stats.retries == 1


async def test_nothing_is_tried_again_after_a_response_byte() -> None:
    async def script(peer: Peer) -> None:
        await answer_then_drop(peer)
        await peer.send(b"H")

    async with pair() as (client, it):
        it.scripts.append(script)
        await post(client)
        with pytest.raises(UpstreamError) as caught:
            await post(client)
        assert (caught.value.kind, caught.value.answered) == (Failure.TRUNCATED, True)
        assert client.stats.retries == 0


async def test_a_crash_under_the_request_is_not_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(peer: Peer) -> None:
        await answer_then_drop(peer)
        await asyncio.sleep(0.05)

    monkeypatch.setattr("gateway.upstream.reply._RACE_S", 0.02)
    async with pair() as (client, it):
        it.scripts.append(script)
        await post(client)
        with pytest.raises(UpstreamError):
            await post(client)
        assert (client.stats.retries, len(it.peers)) == (0, 1)


async def test_when_the_second_try_cannot_connect_the_first_was_still_sent() -> None:
    async with engine() as it:
        it.scripts.append(answer_then_drop)
        client = Client(it.url)
        await post(client)
        it.server.close()  # type: ignore[union-attr]
        with pytest.raises(UpstreamError) as caught:
            await post(client)
        assert (caught.value.kind, caught.value.sent) == (Failure.CONNECT, True)
        await client.close()


async def test_a_server_that_closes_after_every_reply() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(0.001)

    async with pair() as (client, it):
        it.scripts.extend([script] * 401)
        for _ in range(200):
            assert await post(client) == b"hi"
        assert client.stats.retries <= 200


async def test_old_connections_are_not_used() -> None:
    async with pair(keepalive_s=0.02) as (client, it):
        await post(client)
        await asyncio.sleep(0.03)
        await post(client)
        assert (client.stats.created, client.stats.open) == (2, 1)
        await it.peers[0].gone.wait()


async def test_the_newest_idle_connection_is_taken() -> None:
    async with pair() as (client, it):
        await asyncio.gather(*(post(client) for _ in range(3)))
        assert client.stats.idle == 3
        for _ in range(3):
            await post(client)
        assert client.stats.created == 3
        # The same one three times: two never saw a second request.
        assert sorted(peer.requests for peer in it.peers) == [1, 1, 4]
