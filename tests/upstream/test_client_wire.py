"""What the client writes, and what it makes of what comes back."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.client import Client
from gateway.upstream.errors import Failure, UpstreamError
from gateway.upstream.headers import strip_hop_by_hop
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


@pytest.mark.parametrize(("field", "fails"), [(b"a" * 70_000 + b": 1", True), (b"a: 1", False)])
async def test_a_head_in_one_piece_with_its_body_is_measured_by_its_fields(
    field: bytes, fails: bool
) -> None:
    """By their names as well; what comes behind them in the same piece is no part of it."""
    body = b"x" * 70_000
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 70000\r\n" + field + b"\r\n\r\n"
    async with pair() as (client, it):
        it.scripts.append(replying(head + body))
        if fails:
            with pytest.raises(UpstreamError, match="head"):
                await client.request("GET", "/", [])
        else:
            reply = await client.request("GET", "/", [])
            assert await reply.read() == body


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
