"""A wire tap between the gate and the engine: a TCP relay that keeps what passed.

What the engine said is then known byte for byte, so what the gate made of it can be compared
without any guess about ids, clocks or how tokens fell into chunks.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import re
from dataclasses import dataclass, field
from typing import Self


@dataclass
class Exchange:
    """The bytes of one connection: `sent` by the gate, `received` from the engine."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)


class Tap:
    """Listens on `url`, relays to a port of 127.0.0.1; an async context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.exchanges: list[Exchange] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def answer_to(self, path: str) -> bytes:
        """The decoded body of the one answer to a POST of `path`."""
        bodies = [
            body
            for exchange in self.exchanges
            for asked, body in zip(
                _requests(exchange.sent), _bodies(exchange.received), strict=False
            )
            if asked == f"POST {path}"
        ]
        (only,) = bodies
        return only

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        exchange = Exchange()
        self.exchanges.append(exchange)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await asyncio.gather(
                _copy(reader, there_writer, exchange.sent),
                _copy(there_reader, writer, exchange.received),
            )
        except (ConnectionError, asyncio.CancelledError):
            pass  # either end may hang up at any time; the other then sees the same
        finally:
            writer.close()
            there_writer.close()
            self._connections.discard(task)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
    while piece := await source.read(65536):
        kept += piece
        sink.write(piece)
        await sink.drain()
    sink.close()


def _requests(sent: bytes | bytearray) -> list[str]:
    """Method and path of each request sent over a connection, in order."""
    # Not only at the start of a line: a request follows the body of the one before directly.
    lines = re.findall(rb"(GET|POST) (\S+) HTTP/1\.1\r\n", bytes(sent))
    return [f"{method.decode()} {path.decode()}" for method, path in lines]


def _bodies(received: bytes | bytearray) -> list[bytes]:
    """The body of each answer received over a connection, in order."""
    stream = io.BytesIO(bytes(received))
    bodies = []
    while stream.tell() < len(received):
        response = http.client.HTTPResponse(_Replay(stream))  # type: ignore[arg-type]
        response.begin()
        bodies.append(response.read())
    return bodies


class _Replay:
    """As much of a socket as HTTPResponse asks for; it must not close what holds later answers."""

    def __init__(self, stream: io.BytesIO) -> None:
        self._stream = stream

    def makefile(self, _mode: str) -> _Unclosing:
        return _Unclosing(self._stream)


class _Unclosing(io.BufferedReader):
    def __init__(self, stream: io.BytesIO) -> None:
        # One byte at a time from an in-memory stream: nothing is read ahead of this answer's end.
        super().__init__(stream, buffer_size=1)

    def close(self) -> None:
        """The stream goes on to the next answer."""
