"""A wire tap between the gate and the engine: a TCP relay that keeps what passed.

What the engine said is then known byte for byte, so what the gate made of it can be compared
without any guess about ids, clocks or how tokens fell into chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import re
import threading
from dataclasses import dataclass, field
from typing import Self


@dataclass
class Exchange:
    """The bytes of one connection: `sent` by the gate, `received` from the engine."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)


class Tap:
    """Listens on `url`, relays to a port of 127.0.0.1; a context manager.

    It has a thread and a loop of its own: it must work while tests start and stop the gate.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tap", daemon=True)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._exchanges: list[Exchange] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def answers_to(self, path: str) -> list[bytes]:
        """The decoded bodies of the answers to POSTs of `path`; per connection, in order."""
        return [
            body
            for exchange in self._exchanges
            for asked, body in zip(
                _requests(exchange.sent), _bodies(exchange.received), strict=False
            )
            if asked == f"POST {path}"
        ]

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        exchange = Exchange()
        self._exchanges.append(exchange)
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
    """The body of each whole answer received over a connection, in order."""
    stream = io.BytesIO(bytes(received))
    bodies: list[bytes] = []
    with contextlib.suppress(http.client.HTTPException):  # the last one may be on its way yet
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
