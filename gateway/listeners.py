"""Where a gate is reached: the data plane and the control plane, each on its address, until both close.

Alone a gate listens on both before it has looked at a server. One of several processes shares the address
of the data plane, has a socket of its own for the control plane, and may leave clients to the others until
a server takes its work (`Seat.patience_s`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.edge import ids
from gateway.edge.face import ClientsApart, Face
from gateway.policy.types import host_port
from gateway.tasks import spawn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.policy.certificate import Presented
    from gateway.policy.schema import Policy
    from gateway.seat import Seat

KEEPALIVE_S = 75.0
"""How long an idle client connection stays open, and how long the head of a request may take: who
sends it byte by byte is cut off then (nginx gives 60 s). Longer than the pools of SDKs and proxies keep
theirs (httpx 5 s, nginx and aiohttp 60 and 15 s), so that the one who closes first is never us."""

HEAD_BYTES = 16 * 1024
"""Longest header: agents send 2 KB of beta flags."""

LINE_BYTES = 8 * 1024
"""Longest address, query included, as nginx has it; no route here has a hundred bytes. Not the same as
HEAD_BYTES: by its number `face` tells which of the two was too long."""

HEADERS = 128
"""Most headers of a request; agents behind two proxies send some forty."""

LINGER_S = 2.0
"""How long the rest of a body that was refused unread is taken and dropped. Closed at once, the
connection is reset under a client that is still sending, and the refusal with it; 2 s pass a
64 MiB body on a network of 300 Mbit/s."""


class Listeners:
    """See the module. `open`, then `follow`, then `close`, each once; `close` whatever became of `open`.

    `cut_s`: how long connections may take to end once they are closed.
    """

    def __init__(
        self, policy: Policy, seat: Seat | None, tls: Presented | None, *, cut_s: float
    ) -> None:
        self._policy = policy
        self._seat = seat
        self._tls = tls
        self._cut_s = cut_s
        self._patience_s = 0.0 if seat is None else seat.patience_s
        self._late: asyncio.Task[None] | None = None
        self.runners: list[web.BaseRunner] = []
        """Of the data plane, then of the control plane."""
        self.most_connections = math.inf
        """Of clients at once."""
        self.data_url = ""
        """Empty until it listens."""
        self.control_url = ""

    async def open(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        control: web.Application,
        leaving: Callable[[], bool],
    ) -> None:
        """Listen, but for a data plane that waits for its servers. Raises OSError for a taken port."""
        log = ClientsApart()
        server = Face(
            handler,
            most=self.most_connections,
            leaving=leaving,
            handler_cancellation=True,  # a client that leaves ends its request, in every phase
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            max_line_size=LINE_BYTES,
            max_field_size=HEAD_BYTES,
            max_headers=HEADERS,
            lingering_time=LINGER_S,
            logger=log,
        )
        data = web.ServerRunner(server, handle_signals=False, shutdown_timeout=self._cut_s)
        controls = web.AppRunner(
            control,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=self._cut_s,
            logger=log,
        )
        for runner in (data, controls):
            self.runners.append(runner)
            await runner.setup()
        ids.on_all_of(controls)
        if not self._patience_s:
            await self._listen()
        await self._listen_to_control(controls)

    def follow(self, takes_work: asyncio.Event, say: Callable[[], None]) -> None:
        """Call `say` once both listen: now, or when a server takes work or patience is over."""
        if self._patience_s:
            self._late = spawn(self._listen_late(takes_work, say), "listen late")
        else:
            say()

    async def close(self) -> None:
        """End listening and what is connected."""
        if self._late is not None:
            self._late.cancel()
            await asyncio.wait([self._late])
        for runner in self.runners:
            await runner.cleanup()

    async def _listen(self) -> None:
        data, seat = self.runners[0], self._seat
        host, port = host_port(self._policy.listen) if seat is None else seat.listen
        shared = seat is not None
        tls = None if self._tls is None else self._tls.listening
        await web.TCPSite(
            data, host, port, backlog=1024, ssl_context=tls, reuse_port=shared or None
        ).start()
        self.data_url = _url(data, "http" if tls is None else "https")

    async def _listen_late(self, takes_work: asyncio.Event, say: Callable[[], None]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await takes_work.wait()
        await self._listen()
        say()

    async def _listen_to_control(self, control: web.AppRunner) -> None:
        if self._seat is not None:
            await web.UnixSite(control, str(self._seat.control)).start()
            self.control_url = f"unix:{self._seat.control}"
            return
        host, port = host_port(self._policy.control)
        await web.TCPSite(control, host, port, backlog=1024).start()
        self.control_url = _url(control, "http")


def _url(runner: web.BaseRunner, scheme: str) -> str:
    host, port = runner.addresses[0][:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
