"""A server of raw bytes: each connection runs a script, so that a test decides every byte."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.upstream.client import Client
from tests.hangup import hang_up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nhi"
LAST = b"0\r\n\r\n"
STREAMED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Peer:
    """One connection as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.gone = asyncio.Event()  # the other side closed
        self.requests = 0

    async def request(self) -> bytes:
        """The next request's head and body; b"" where the client has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    head += await self.reader.readexactly(int(line.partition(b":")[2]))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
            return b""
        self.requests += 1
        return head

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def eof(self) -> None:
        """Returns once the other side has closed."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        self.gone.set()

    def reset(self) -> None:
        hang_up(self.writer.transport)


class Engine:
    def __init__(self) -> None:
        self.scripts: deque[Callable[[Peer], Awaitable[None]]] = deque()  # one a connection
        self.peers: list[Peer] = []
        self.requests: list[bytes] = []
        self.failures: list[BaseException] = []
        self.url = ""
        self.server: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        script = self.scripts.popleft() if self.scripts else self.answer_all
        try:
            await script(peer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:  # noqa: BLE001  # told at the end of the test
            self.failures.append(error)
        finally:
            writer.close()

    async def answer_all(self, peer: Peer) -> None:
        """The usual engine: every request is answered with OK."""
        while request := await peer.request():
            self.requests.append(request)
            await peer.send(OK)


def replying(*parts: bytes) -> Callable[[Peer], Awaitable[None]]:
    """Answer the first request with `parts`, then wait for the client to close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for part in parts:
            await peer.send(part)
        await peer.eof()

    return script


def closing_after(*parts: bytes) -> Callable[[Peer], Awaitable[None]]:
    """Answer the first request with `parts`, then close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for part in parts:
            await peer.send(part)

    return script


@asynccontextmanager
async def engine() -> AsyncIterator[Engine]:
    it = Engine()
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    it.server = server
    it.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield it
    finally:
        server.close()
        for peer in it.peers:
            peer.reset()
        await server.wait_closed()
    assert not it.failures


@asynccontextmanager
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
