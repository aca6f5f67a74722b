"""`Reply.pour`: bytes go to a sink in the step in which they come, and its word counts at once."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.errors import Failure, UpstreamError
from tests.upstream.engine import LAST, STREAMED, Peer, chunk, closing_after, pair, replying


async def test_the_sink_has_all_bytes_in_order_and_sees_the_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAMED + chunk(b"a"))
        for data in (b"b", b"c"):
            await asked.acquire()
            await peer.send(chunk(data))
        await asked.acquire()
        await peer.send(chunk(b"d") + LAST)
        await peer.eof()

    asked = asyncio.Semaphore(0)
    seen: list[tuple[bytes, bool]] = []
    async with pair() as (client, it):
        it.scripts.append(script)
        reply = await client.request("GET", "/", [])

        def sink(data: bytes) -> bool:
            seen.append((data, reply.ended))
            asked.release()
            return True

        assert await reply.pour(sink)
        assert seen == [(b"a", False), (b"b", False), (b"c", False), (b"d", True)]
        assert await reply.pour(sink)  # and it stays at its end
        assert client.stats.idle == 1


async def test_a_sink_that_is_full_gets_nothing_more_until_it_is_asked_again() -> None:
    seen: list[bytes] = []

    def sink(data: bytes) -> bool:
        seen.append(data)
        more.set()
        return len(seen) > 1

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAMED)
        await begun.wait()
        await peer.send(chunk(b"a"))
        await more.wait()
        await peer.send(chunk(b"b") + LAST)
        await peer.eof()

    begun, more = asyncio.Event(), asyncio.Event()
    async with pair() as (client, it):
        it.scripts.append(script)
        reply = await client.request("GET", "/", [])
        pouring = asyncio.ensure_future(reply.pour(sink))
        await asyncio.sleep(0)
        begun.set()
        assert not await pouring
        while not reply.ended:
            await asyncio.sleep(0)
        assert (seen, reply.unread) == ([b"a"], 1)
        assert await reply.pour(sink)
        assert seen == [b"a", b"b"]


async def test_what_the_sink_raises_is_raised_to_whoever_pours() -> None:
    def sink(data: bytes) -> bool:
        raise ConnectionResetError(data)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAMED)
        await begun.wait()
        await peer.send(chunk(b"a"))
        await peer.eof()

    begun = asyncio.Event()
    async with pair() as (client, it):
        it.scripts.append(script)
        reply = await client.request("GET", "/", [])
        pouring = asyncio.ensure_future(reply.pour(sink))
        await asyncio.sleep(0)
        begun.set()
        with pytest.raises(ConnectionResetError):
            await pouring
        assert client.stats.open == 1  # the connection is not concerned
        reply.close()


@pytest.mark.parametrize("dies", [True, False])
async def test_an_answer_that_breaks_or_falls_silent(dies: bool) -> None:
    parts = STREAMED + chunk(b"abc")
    seen: list[bytes] = []
    async with pair() as (client, it):
        it.scripts.append(closing_after(parts) if dies else replying(parts))
        reply = await client.request("GET", "/", [], idle_timeout_s=None if dies else 0.05)
        with pytest.raises(UpstreamError) as caught:
            await reply.pour(lambda data: seen.append(data) or True)
        assert caught.value.kind is (Failure.TRUNCATED if dies else Failure.IDLE_TIMEOUT)
        assert seen == [b"abc"]


async def test_each_piece_begins_the_limit_of_silence_anew() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAMED)
        for _ in range(6):
            await asyncio.sleep(0.05)
            await peer.send(chunk(b"x"))
        await peer.send(LAST)

    async with pair() as (client, it):
        it.scripts.append(script)
        reply = await client.request("GET", "/", [], idle_timeout_s=0.2)
        assert await reply.pour(lambda data: True)


async def test_who_stops_pouring_can_still_read_the_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAMED)
        await left.wait()
        await peer.send(chunk(b"a") + LAST)
        await peer.eof()

    left = asyncio.Event()
    async with pair() as (client, it):
        it.scripts.append(script)
        reply = await client.request("GET", "/", [])
        pouring = asyncio.ensure_future(reply.pour(lambda data: pytest.fail("poured")))
        await asyncio.sleep(0)
        pouring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pouring
        left.set()
        assert await reply.read_all(9) == b"a"
