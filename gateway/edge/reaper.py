"""Requests whose client left: abort them upstream, and find out when they are really gone.

Hanging up is not enough. The engine notices a closed connection late (a stream within ~25 ms, an
answer that is not streamed at polls 4 s apart: measured 2.0-3.3 s on 0.5.17), older versions never
notice some, and the KV memory is in use until then. So the reservation stays and the reaper

1. asks for an abort by our own request id,
2. keeps reading what the engine still sends, and drops it: the end of that answer is the proof
   that the request is over,
3. if no end comes within `DRAIN_S`, closes the connection and waits until the engine's own count
   of requests is down to those we know to be alive.

Where the engine does not say what it holds, the reservation is kept for a grace, a timer of the
core. Where it says that more runs than we know of, the grace is prolonged, up to `STUCK_S`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.tasks import spawn
from gateway.upstream.abort import abort
from gateway.upstream.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.core.model import RequestId
    from gateway.edge.backends import Backend
    from gateway.gate import Lease
    from gateway.upstream.client import Reply

DRAIN_S = 3.0
"""An abort takes effect at the end of the running step (milliseconds to a second); 3 s is a long
prefill chunk on a slow card, and still below the engine's own 4 s disconnect poll."""

STUCK_S = 600.0
"""When an abandoned request is given up on although the engine still counts it: as long as 32,000
tokens take at 50 tokens/s. Later it is more likely a count that somebody else's request keeps up."""

MARGIN_S = DRAIN_S + 4.0
"""How much sooner than its grace the wait for proof ends, so that it can be prolonged in time: the
abort and the reading before it take 5 s at most."""

ABORT_S = 2.0
"""The abort itself is a message to the engine's front process, answered in milliseconds."""


@dataclass(slots=True)
class Running:
    """A request that was handed to a server. `reply` is there once it was written."""

    backend: Backend
    rid: str
    reply: Reply | None = None


class Reaper:
    """Aborts and confirms. `confirmed` is called at most once per abandoned request."""

    def __init__(
        self, confirmed: Callable[[RequestId], None], prolong: Callable[[RequestId, float], None]
    ) -> None:
        self._confirmed = confirmed
        self._prolong = prolong
        self._running: dict[RequestId, Running] = {}
        self._burials: set[asyncio.Task[None]] = set()
        self.dying = 0

    def began(self, ident: RequestId, running: Running, sequences: int) -> None:
        """A request is about to be handed to a server."""
        self._running[ident] = running
        running.backend.began(ident, sequences)

    def ended(self, ident: RequestId) -> None:
        """It ended on its own."""
        running = self._running.pop(ident, None)
        if running is not None:
            running.backend.ended(ident)
            if running.reply is not None:
                running.reply.close()

    def bury(self, lease: Lease) -> None:
        """Take over an abandoned request. Returns at once."""
        running = self._running.pop(lease.ticket.id, None)
        if running is None:
            return
        running.backend.ended(lease.ticket.id)
        burial = spawn(self._bury(lease, running), f"bury {lease.ticket.id}")
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)

    async def stop(self, limit_s: float) -> None:
        """Let the last aborts get through, for `limit_s` at most; the process ends after this."""
        if not self._burials:
            return
        _, late = await asyncio.wait(self._burials, timeout=limit_s)
        for burial in late:
            burial.cancel()
        if late:
            await asyncio.wait(late)

    async def _bury(self, lease: Lease, running: Running) -> None:
        backend, reply = running.backend, running.reply
        loop = asyncio.get_running_loop()
        since = loop.time()
        self.dying += 1
        if reply is not None:
            reply.forget()
        try:
            await abort(backend.client, running.rid, api_key=backend.api_key, timeout_s=ABORT_S)
            over = reply is not None and await _ends(reply)
            if reply is not None:
                reply.close()
            while not over and loop.time() < since + STUCK_S:
                over = await backend.gone(since, lease.grace_s - MARGIN_S)
                if not over and not backend.says_busy(since):
                    break
                if not over:
                    self._prolong(lease.ticket.id, lease.grace_s)
            if over:
                self._confirmed(lease.ticket.id)
        finally:
            self.dying -= 1
            if reply is not None:
                reply.close()


async def _ends(reply: Reply) -> bool:
    """Read and drop the rest of an answer. Whether it came to its end, which is proof."""
    try:
        async with asyncio.timeout(DRAIN_S):
            await reply.head()
            while await reply.read():
                pass
    except (TimeoutError, UpstreamError):
        return False
    return reply.ended
