"""Live events: one document for all pages, none without one, and a page that does not read."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.page import events
from gateway.page.events import Events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Stand:
    """Events behind a listener of their own."""

    def __init__(self, size: int, every_s: float, give_up_s: float) -> None:
        self.made = 0
        self.size = size
        self.transports: list[asyncio.Transport] = []
        self.events = Events(self._document, every_s=every_s, give_up_s=give_up_s)
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    def _document(self) -> bytes:
        self.made += 1
        return b"data: %06d %s\n\n" % (self.made, b"x" * self.size)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.transports.append(request.transport)
        return await self.events.handle(request)

    async def page(
        self, buffer: int | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A page that looks; `buffer` is all its socket takes unread."""
        sock = socket.socket()
        sock.setblocking(False)
        if buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
        self.writers.append(writer)
        writer.write(b"GET /events HTTP/1.1\r\nhost: gate\r\n\r\n")
        return reader, writer

    async def until(self, condition) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def standing(
    size: int = 10, every_s: float = 0.01, give_up_s: float = 5.0
) -> AsyncIterator[Stand]:
    stand = Stand(size, every_s, give_up_s)
    app = web.Application()
    app.router.add_get("/events", stand.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stand.port = runner.addresses[0][1]
    try:
        yield stand
    finally:
        for writer in stand.writers:
            writer.transport.abort()
        await stand.events.close()
        await runner.cleanup()


async def documents(reader: asyncio.StreamReader, count: int) -> list[int]:
    """The numbers of the next documents."""
    found = []
    async with asyncio.timeout(10):
        while len(found) < count:
            line = await reader.readline()
            assert line, "it ended"
            if line.startswith(b"data: "):
                found.append(int(line.split()[1]))
    return found


async def test_all_pages_share_one_document_and_none_is_made_for_nobody() -> None:
    async with standing(every_s=0.05) as stand:
        assert stand.made == 0
        pages = [await stand.page() for _ in range(5)]
        await stand.until(lambda: stand.events.open == 5)
        began = stand.made
        seen = [await documents(reader, 6) for reader, _ in pages]
        assert all(numbers == sorted(set(numbers)) for numbers in seen), "in order, none twice"
        # Five pages that came one after the other: one document each at first, then one for all.
        assert stand.made - began <= 10
        for _, writer in pages:
            writer.close()
        await stand.until(lambda: stand.events.open == 0)
        made = stand.made
        await asyncio.sleep(0.2)
        assert stand.made <= made + 1


async def test_a_page_that_does_not_read_costs_one_document_and_is_cut() -> None:
    size = 100_000
    async with standing(size=size, give_up_s=0.4) as stand:
        _, writer = await stand.page(buffer=4096)
        writer.transport.pause_reading()
        await stand.until(lambda: stand.transports)
        (transport,) = stand.transports
        most = 0

        def gone() -> bool:
            nonlocal most
            most = max(most, transport.get_write_buffer_size())
            return stand.events.open == 0

        reader, _ = await stand.page()
        await stand.until(lambda: stand.events.open == 2)
        reading = asyncio.ensure_future(documents(reader, 30))
        await stand.until(lambda: gone() or stand.events.open == 1)
        assert len(await reading) == 30, "the others do not wait for it"
        assert most <= size + 1000, "never more than one document"
        assert transport.is_closing()
        writer.close()


async def test_a_page_gets_the_newest_document_not_all_it_missed() -> None:
    async with standing(size=200_000) as stand:
        reader, writer = await stand.page(buffer=4096)
        writer.transport.pause_reading()
        await stand.until(lambda: stand.made > 40)
        writer.transport.resume_reading()
        seen = await documents(reader, 8)
        assert max(b - a for a, b in itertools.pairwise(seen)) > 5
        writer.close()


async def test_more_pages_than_a_team_has_are_refused_in_words(monkeypatch) -> None:
    monkeypatch.setattr(events, "MOST", 1)
    async with standing() as stand:
        reader, _ = await stand.page()
        await documents(reader, 1)
        second, _ = await stand.page()
        head = await second.readuntil(b"\r\n\r\n")
        assert b" 503 " in head
        assert b"are open already" in await second.readline()


async def test_the_gate_stops_with_pages_open(start) -> None:
    async with start() as rig:
        async with rig.http.get(rig.app.control_url + "/events") as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.headers["content-security-policy"]
            data = b""
            while b"data: " not in data:
                data += await answer.content.readuntil(b"\n\n")
            told = json.loads(data.split(b"data: ")[1])
            status = await rig.status()
            assert told["status"].keys() == status.keys()
            assert told["row"] is None or len(told["row"]) == len(
                (await rig.control("/trend")).json()["columns"]
            )
            await rig.stop()
            await answer.content.read()  # to its proper end: it was ended, not cut
        assert rig.app.control._events.open == 0
