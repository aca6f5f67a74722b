"""The client against servers that behave and servers that do not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from gateway.tasks import spawn
from gateway.upstream.client import Client, Reply, strip_hop_by_hop
from gateway.upstream.errors import Failure, UpstreamError
from tests.upstream.engine import (
    OK,
    STREAMED,
    Engine,
    Peer,
    chunk,
    closing_after,
    engine,
    replying,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LAST = b"0\r\n\r\n"


@contextlib.asynccontextmanager
async def pair(**options: float) -> AsyncIterator[tuple[Client, Engine]]:
    async with engine() as it:
        client = Client(it.url, **options)  # type: ignore[arg-type]
        try:
            yield client, it
        finally:
            await client.close()
            assert (client.stats.open, client.stats.idle) == (0, 0)


async def post(client: Client, body: bytes = b"{}") -> bytes:
    reply = await client.request("POST", "/x", [], body)
    return await reply.read_all(1 << 20)


# ---- what is written ------------------------------------------------------------------------


async def test_the_request_on_the_wire() -> None:
    async with engine() as it:
        client = Client(it.url + "/base/")
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", "999"),
            ("Transfer-Encoding", "chunked"),
            ("Host", "elsewhere"),
            ("Connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("Expect", "100-continue"),
            ("Accept-Encoding", "br"),
            ("Proxy-Authorization", "secret"),
            ("X-Name", "r\xe9sum\xe9"),
        ]
        reply = await client.request("POST", "/v1/x?a=b", headers, b"12345")
        assert await reply.read_all(10) == b"hi"
        head, _, body = it.requests[0].partition(b"\r\n\r\n")
        assert body == b"12345"
        assert head.split(b"\r\n") == [
            b"POST /base/v1/x?a=b HTTP/1.1",
            b"host: " + it.url.removeprefix("http://").encode(),
            b"accept-encoding: identity",
            b"content-length: 5",
            b"Content-Type: application/json",
            "X-Name: résumé".encode(),
            b"connection: keep-alive",
        ]
        await client.close()


@pytest.mark.parametrize(
    ("method", "target", "header"),
    [
        ("PO ST", "/", ("a", "b")),
        ("GET", "no-slash", ("a", "b")),
        ("GET", "/a b", ("a", "b")),
        ("GET", "/\r\nx: y", ("a", "b")),
        ("GET", "/", ("a b", "c")),
        ("GET", "/", ("Transfer-Encoding ", "chunked")),
        ("GET", "/", ("", "c")),
        ("GET", "/", ("a", "b\r\nc: d")),
        ("GET", "/", ("a", "b\nc")),
        ("GET", "/", ("a", "b\0")),
    ],
)
async def test_what_cannot_be_written_is_refused(
    method: str, target: str, header: tuple[str, str]
) -> None:
    client = Client("http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"method|target|header") as caught:
        await client.request(method, target, [header])
    assert "d" not in str(caught.value).split()
    assert client.stats.created == 0


@pytest.mark.parametrize("url", ["127.0.0.1:1", "ftp://h", "http://", "http://u:p@h", "http://h?q"])
async def test_a_base_url_is_checked(url: str) -> None:
    with pytest.raises(ValueError, match="backend URL"):
        Client(url)


def test_hop_by_hop_headers() -> None:
    headers = [
        ("Connection", "Keep-Alive, x-a"),
        ("X-A", "1"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Trailer", "x"),
        ("Upgrade", "h2c"),
        ("Proxy-Connection", "close"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "3"),
        ("Set-Cookie", "a"),
        ("Set-Cookie", "b"),
    ]
    expected = [("Content-Length", "3"), ("Set-Cookie", "a"), ("Set-Cookie", "b")]
    assert strip_hop_by_hop(headers) == expected
    assert strip_hop_by_hop(expected) == expected


# ---- what is read ---------------------------------------------------------------------------


async def test_connections_are_used_again() -> None:
    async with pair() as (client, it):
        for _ in range(5):
            assert await post(client) == b"hi"
        stats = client.stats
        assert (stats.open, stats.idle, stats.created, stats.reused) == (1, 1, 1, 4)
        assert len(it.peers) == 1


async def test_head_is_given() -> None:
    head = (
        b"HTTP/1.1 429 Too Many\r\nA: 1\r\nSet-Cookie: x\r\nSet-Cookie: y\r\nContent-Length: 0\r\n"
    )
    async with pair() as (client, it):
        it.scripts.append(replying(head + b"Keep-Alive: timeout=5\r\n\r\n"))
        reply = await client.request("GET", "/", [])
        assert (reply.status, reply.reason, reply.ended) == (429, "Too Many", True)
        assert reply.headers == [
            ("A", "1"),
            ("Set-Cookie", "x"),
            ("Set-Cookie", "y"),
            ("Content-Length", "0"),
        ]
        assert await reply.read() == b""


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n"
BODIES = {
    "length": (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabcdef", True),
    "chunked": (STREAMED + chunk(b"abc") + chunk(b"def") + LAST, True),
    "trailers": (STREAMED + chunk(b"abcdef") + b"0\r\nX-T: 1\r\n\r\n", True),
    "extensions": (STREAMED + b"6;a=b\r\nabcdef\r\n" + LAST, True),
    "after 1xx": (INTERIM + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabcdef", True),
    "close": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 6\r\n\r\nabcdef", False),
    "1.0": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 6\r\n\r\nabcdef",
        False,
    ),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_cut_anywhere(name: str) -> None:
    answer, pooled = BODIES[name]

    async def script(peer: Peer) -> None:
        at = 0
        while await peer.request():
            at += 1
            await peer.send(answer[:at])
            await asyncio.sleep(0)
            await peer.send(answer[at:])

    async with pair() as (client, it):
        for at in range(1, len(answer)):
            it.scripts.append(script)
            reply = await client.request("GET", "/", [])
            assert await reply.read_all(6) == b"abcdef", at
            assert reply.ended
            assert "transfer-encoding" not in dict(reply.headers)
            assert client.stats.idle == int(pooled)


async def test_a_body_until_the_end_of_the_connection() -> None:
    async with pair() as (client, it):
        it.scripts.append(closing_after(b"HTTP/1.1 200 OK\r\n\r\nabc", b"def"))
        reply = await client.request("GET", "/", [])
        assert await reply.read_all(6) == b"abcdef"
        assert (reply.ended, client.stats.idle) == (True, 0)


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 99\r\n\r\n"),
    ],
)
async def test_answers_without_a_body(method: str, head: bytes) -> None:
    async with pair() as (client, it):

        async def script(peer: Peer) -> None:
            while await peer.request():
                await peer.send(head)

        it.scripts.append(script)
        for _ in range(2):
            reply = await client.request(method, "/", [])
            assert (await reply.read(), reply.ended) == (b"", True)
        assert client.stats.created == 1


async def test_bytes_after_the_answer_end_the_connection() -> None:
    async with pair() as (client, it):
        for extra in (b"x", OK):
            it.scripts.append(replying(OK + extra))
            assert await post(client) == b"hi"
            assert client.stats.idle == 0
        assert await post(client) == b"hi"


async def test_bytes_on_an_idle_connection_end_it() -> None:
    async with pair() as (client, it):
        assert await post(client) == b"hi"
        await it.peers[0].send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await it.peers[0].gone.wait()
        assert (client.stats.open, client.stats.idle) == (0, 0)
        assert await post(client) == b"hi"


WRONG = {
    "not http": b"hello\r\n\r\n",
    "length and chunked": b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
    "chunked and length": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
    "a length that is none": b"HTTP/1.1 200 OK\r\ncontent-length: -3\r\n\r\nabc",
    "another coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\nx: " + b"y" * (70 << 10),
    "many fields": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"content-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_not_http(name: str) -> None:
    async with pair() as (client, it):
        it.scripts.append(replying(WRONG[name]))
        with pytest.raises(UpstreamError) as caught:
            await client.request("GET", "/", [])
        error = caught.value
        assert (error.kind, error.sent, error.answered) == (Failure.PROTOCOL, True, True)
        assert client.stats.retries == 0


async def test_a_broken_chunk() -> None:
    async with pair() as (client, it):
        it.scripts.append(replying(STREAMED + chunk(b"abc") + b"zz\r\n"))
        reply = await client.request("GET", "/", [])
        assert await reply.read() == b"abc"
        with pytest.raises(UpstreamError) as caught:
            await reply.read()
        assert caught.value.kind is Failure.PROTOCOL


# ---- failures -------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


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
    assert (caught.value.kind, caught.value.sent) == (Failure.CONNECT, False)
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


# ---- the keep-alive race --------------------------------------------------------------------


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

    monkeypatch.setattr("gateway.upstream.client._RACE_S", 0.02)
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


# ---- leaving, and reading slowly ------------------------------------------------------------


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


async def test_get_json() -> None:
    def answer(status: bytes, body: bytes) -> bytes:
        return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)

    async def get(*parts: bytes, timeout_s: float = 5) -> object:
        async with pair() as (client, it):
            it.scripts.append(replying(*parts))
            return await client.get_json("/x", timeout_s=timeout_s)

    assert await get(answer(b"200 OK", b'{"a":[1]}')) == {"a": [1]}
    for parts, timeout_s, kind in (
        ((answer(b"500 No", b"{}"),), 5, Failure.PROTOCOL),
        ((answer(b"200 OK", b"{"),), 5, Failure.PROTOCOL),
        ((), 0.05, Failure.FIRST_BYTE_TIMEOUT),
        ((STREAMED,), 0.05, Failure.IDLE_TIMEOUT),
    ):
        with pytest.raises(UpstreamError) as caught:
            await get(*parts, timeout_s=timeout_s)
        assert caught.value.kind is kind
