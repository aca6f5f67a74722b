"""One task a connection: what comes on it is answered in turn, and it ends as aiohttp's own would."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from gateway.edge import face as faces
from gateway.edge.face import Face

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, data: bytes = GET) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        self.writer.write(data)
        async with asyncio.timeout(5):
            head = await self.reader.readuntil(b"\r\n\r\n")
            fields = head.lower().partition(b"content-length: ")[2]
            body = await self.reader.readexactly(int(fields.partition(b"\r\n")[0]))
        return int(head.split()[1]), body

    async def rest(self) -> bytes:
        """All until the connection ends."""
        async with asyncio.timeout(5):
            return await self.reader.read()


@asynccontextmanager
async def serving(handler: Handler, **options: float) -> AsyncIterator[tuple[Face, Peer]]:
    face = Face(handler, access_log=None, **options)
    server = await asyncio.get_running_loop().create_server(face, "127.0.0.1", 0)
    peer = Peer(*await asyncio.open_connection(*server.sockets[0].getsockname()))
    try:
        yield face, peer
    finally:
        peer.writer.close()
        server.close()
        await face.shutdown(1.0)


async def fine(_: web.BaseRequest) -> web.Response:
    return web.Response(text="fine")


async def test_who_waits_has_no_task_of_its_own() -> None:
    go, came = asyncio.Event(), asyncio.Event()

    async def wait(_: web.BaseRequest) -> web.Response:
        came.set()
        await go.wait()
        return web.Response(text="fine")

    async with serving(wait) as (_, peer):
        await asyncio.sleep(0)  # the connection's task is there
        while len(asyncio.all_tasks()) < 2:
            await asyncio.sleep(0)
        before = asyncio.all_tasks()
        asked = asyncio.ensure_future(peer.ask())
        await came.wait()
        assert asyncio.all_tasks() - before == {asked}
        go.set()
        assert await asked == (200, b"fine")


async def test_what_a_handler_raises_is_answered(caplog) -> None:
    async def broken(_: web.BaseRequest) -> web.Response:
        raise RuntimeError("secret words")

    async with serving(broken) as (_, peer):
        status, body = await peer.ask()
        assert status == 500
        assert b"secret" not in body
        assert await peer.rest() == b""
    assert [one.message for one in caplog.records] == ["Error handling request from 127.0.0.1"]


async def test_an_answer_that_is_raised_is_one() -> None:
    async def forbid(_: web.BaseRequest) -> web.Response:
        raise web.HTTPForbidden(text="not here")

    async with serving(forbid) as (_, peer):
        assert await peer.ask() == (403, b"not here")
        assert await peer.ask() == (403, b"not here"), "its connection goes on"


async def test_as_many_as_are_sent_at_once_are_answered() -> None:
    """More than are read ahead: what pauses reading goes on."""
    async with serving(fine) as (_, peer):
        peer.writer.write(GET * 199)
        for _ in range(199):
            assert await peer.ask(b"") == (200, b"fine")
        assert await peer.ask() == (200, b"fine")


async def test_half_an_answer_ends_with_its_connection(caplog) -> None:
    async def begin(request: web.BaseRequest) -> web.StreamResponse:
        out = web.StreamResponse()
        await out.prepare(request)
        await out.write(b"half")
        raise RuntimeError

    async with serving(begin) as (_, peer):
        peer.writer.write(GET)
        assert (await peer.rest()).endswith(b"4\r\nhalf\r\n")
    assert len(caplog.records) == 1


async def test_what_nobody_read_of_a_body_is_read_and_dropped() -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\n"
    async with serving(fine, lingering_time=5.0) as (_, peer):
        assert await peer.ask(head + b"abc") == (200, b"fine")
        assert await peer.ask(b"def" + GET) == (200, b"fine"), "its end is where it said"


async def test_a_body_that_does_not_come_ends_the_connection() -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\n"
    async with serving(fine, lingering_time=0.05) as (_, peer):
        assert await peer.ask(head + b"abc") == (200, b"fine")
        assert await peer.rest() == b""


async def test_a_body_that_breaks_behind_its_answer_ends_the_connection(caplog) -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serving(fine, lingering_time=0.05) as (_, peer):
        assert await peer.ask(head + b"3\r\nabc\r\n") == (200, b"fine")
        peer.writer.write(b"no chunk\r\n")
        await peer.rest()
    assert caplog.records == [], "it is no error of ours"


async def test_a_client_that_leaves_ends_what_is_done_for_it() -> None:
    came, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: web.BaseRequest) -> web.Response:
        came.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with serving(wait, handler_cancellation=True) as (face, peer):
        peer.writer.write(GET)
        await came.wait()
        peer.writer.transport.abort()
        async with asyncio.timeout(5):
            await ended.wait()
            while face.connections:
                await asyncio.sleep(0)


async def test_to_shut_down_waits_for_an_answer() -> None:
    go, came = asyncio.Event(), asyncio.Event()

    async def wait(_: web.BaseRequest) -> web.Response:
        came.set()
        await go.wait()
        return web.Response(text="fine")

    async with serving(wait) as (face, peer):
        asked = asyncio.ensure_future(peer.ask())
        await came.wait()
        over = asyncio.ensure_future(face.shutdown(5.0))
        await asyncio.sleep(0)
        assert not over.done()
        go.set()
        assert await asked == (200, b"fine")
        async with asyncio.timeout(5):
            await over


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_who_says_so_is_the_last_on_its_connection(version: bytes) -> None:
    last = b"GET / HTTP/%b\r\nhost: a\r\nconnection: close\r\n\r\n" % version
    async with serving(fine) as (_, peer):
        assert await peer.ask() == (200, b"fine")
        assert await peer.ask(last) == (200, b"fine")
        assert await peer.rest() == b""


async def test_an_idle_connection_ends_in_time() -> None:
    async def waited(request: web.BaseRequest) -> web.Response:
        faces.rest(request)  # without the timer
        return await fine(request)

    async with serving(waited, keepalive_timeout=0.05) as (_, peer):
        assert await peer.ask() == (200, b"fine")
        assert await peer.rest() == b""


def test_a_connection_of_the_gate_is_one() -> None:
    assert faces._Talk.start is faces.Serial.start
