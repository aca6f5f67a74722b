"""The wire of the fake engine: one HTTP/1.1 connection, written by hand so it can misbehave.

A server library refuses to cut an answer in half, to reset, or to tell when the peer's FIN came;
these are the things the tests are about.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from tests.hangup import hang_up

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@dataclass(frozen=True)
class Received:
    """One request as it arrived. Header names are lower case; a repeated one keeps the last."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def json(self) -> Any:
        return json.loads(self.body)


class Wire(asyncio.StreamReaderProtocol):
    """A connection that tells when the peer closed it (`on_gone`), even while it is answered."""

    def __init__(self, serve: Callable[[Wire], Awaitable[None]]) -> None:
        self.reader = asyncio.StreamReader(limit=1 << 20)
        self.on_gone: Callable[[], None] | None = None
        self.gone = False
        self.cut = False  # we reset it
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self._serve = serve
        super().__init__(self.reader, self._connected)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        super().connection_made(transport)
        if self.cut:  # between its acceptance and now
            hang_up(self.transport)

    def eof_received(self) -> bool | None:
        self._mark_gone()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._mark_gone()
        super().connection_lost(exc)

    def _mark_gone(self) -> None:
        if not self.gone:
            self.gone = True
            if self.on_gone is not None:
                self.on_gone()

    async def _connected(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.task = asyncio.current_task()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._serve(self)
        writer.close()

    async def receive(self) -> Received | None:
        """The next request; None once the peer has closed between requests."""
        line = await self.reader.readline()
        if not line:
            return None
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return Received(method, target, headers, await self._body(headers))

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.readexactly(int(headers.get("content-length", "0")))
        parts = []
        while size := int((await self.reader.readline()).split(b";")[0], 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return b"".join(parts)

    async def send(self, data: bytes) -> None:
        """Write, then wait while the peer reads too slowly."""
        if self.writer.transport.is_closing():  # uvloop's raises RuntimeError for it
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A whole JSON answer with a content-length."""
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        await self.send(head(status, fields | (headers or {})) + body)

    def close(self) -> None:
        """FIN, after what was written."""
        self.on_gone = None
        self.writer.close()

    def reset(self) -> None:
        """RST: what the peer sees when the process dies."""
        self.on_gone, self.cut = None, True
        if self.transport is None:
            return
        sock: socket.socket | None = self.transport.get_extra_info("socket")
        if sock is not None and not self.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        hang_up(self.transport)


def head(status: int, headers: dict[str, str]) -> bytes:
    """The status line and headers, as uvicorn writes them: lower-case names."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "server: uvicorn"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
