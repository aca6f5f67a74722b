"""Live: one document, made and serialised once a second for all open pages together.

Each page has room for one document. Where the last one has not left our socket the next is not
written: it holds everything, so nothing is lost but time. A page that has taken nothing for
`GIVE_UP_S` is cut; the browser comes back by itself when it is looked at again. With no page open
nothing is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.page.files import HEADERS
from gateway.tasks import spawn

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S = 1.0
"""People see no more; a document takes about a millisecond to make."""

GIVE_UP_S = 20.0
"""How long a page may take nothing: longer than a phone takes to find its network again."""

MOST = 64
"""Pages at once. More is not a team that looks, it is a fault."""

UNSENT_BYTES = 64 * 1024
"""What the system keeps for a page that does not read: some five documents. Left to itself Linux
keeps up to 4 MB, which is five minutes of them before anybody notices."""

AGAIN = b"retry: 2000\n\n"
"""How long a browser waits before it connects anew, milliseconds."""

SERVICE_UNAVAILABLE = 503


class _Tab:
    """One open page: the newest document it has not been given."""

    def __init__(self) -> None:
        self._newest: bytes | None = None
        self._came = asyncio.Event()
        self.over = False

    def offer(self, document: bytes) -> None:
        self._newest = document
        self._came.set()

    def end(self) -> None:
        self.over = True
        self._came.set()

    async def next(self) -> bytes | None:
        """The newest document; None when there will be no more."""
        await self._came.wait()
        self._came.clear()
        return None if self.over else self._newest


class Events:
    """See the module. `document` makes the event, whole and encoded; it must not block."""

    def __init__(
        self,
        document: Callable[[], bytes],
        *,
        every_s: float = EVERY_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._document = document
        self._every_s = every_s
        self._give_up_s = give_up_s
        self._tabs: set[_Tab] = set()
        self._ticking: asyncio.Task[None] | None = None

    @property
    def open(self) -> int:
        """Pages that look now."""
        return len(self._tabs)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """GET /events."""
        if len(self._tabs) >= MOST:
            return web.Response(
                status=SERVICE_UNAVAILABLE,
                text=f"{MOST} pages are open already, which is all; close some\n",
            )
        response = web.StreamResponse(
            headers={
                **HEADERS,
                "content-type": "text/event-stream",
                "cache-control": "no-store",
                "x-accel-buffering": "no",  # nginx in between would collect events
            }
        )
        tab = _Tab()
        self._tabs.add(tab)
        try:
            _keep_little(request)
            await response.prepare(request)
            await response.write(AGAIN)
            if self._ticking is None or self._ticking.done():
                self._ticking = spawn(self._tick(), "page events")
            else:
                tab.offer(self._document())
            await self._feed(tab, request, response)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._tabs.discard(tab)
        return response

    async def close(self) -> None:
        """End all pages."""
        for tab in self._tabs:
            tab.end()
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking

    async def _feed(self, tab: _Tab, request: web.Request, response: web.StreamResponse) -> None:
        """Write until the page is gone. Raises TimeoutError where it takes nothing."""
        loop = asyncio.get_running_loop()
        took = loop.time()
        while (document := await tab.next()) is not None:
            transport = request.transport
            if transport is None or transport.is_closing():
                return
            if transport.get_write_buffer_size() > 0:
                if loop.time() - took > self._give_up_s:
                    raise TimeoutError
                continue
            took = loop.time()
            async with asyncio.timeout(self._give_up_s):
                await response.write(document)

    async def _tick(self) -> None:
        while self._tabs:
            document = self._document()
            for tab in self._tabs:
                tab.offer(document)
            await asyncio.sleep(self._every_s)


def _keep_little(request: web.Request) -> None:
    transport = request.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT_BYTES)
