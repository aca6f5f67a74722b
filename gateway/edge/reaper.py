"""Requests whose client left: abort them upstream, and find out when they are really gone.

Hanging up is not enough. The engine notices a closed connection late (a stream within ~25 ms, an
answer that is not streamed at polls 4 s apart: measured 2.0-3.3 s on 0.5.17), older versions never
notice some, and the KV memory is in use until then. So the reservation stays and the reaper

1. asks for an abort by our own request id, or hangs up where the engine was not given one,
2. keeps reading what the engine still sends, and drops it: the end of that answer is the proof
   that the request is over,
3. if no end comes within `DRAIN_S`, closes the connection and waits until the engine's own count
   of requests is down to those we know to be alive.

Where the engine does not say what it holds, the reservation is kept for a grace, a timer of the
core. Where it says that more runs than we know of, or nobody was there to ask it, the grace is
prolonged, up to `STUCK_S`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.edge.dialects.prompts import QUIET
from gateway.tasks import LATE_S, spawn
from gateway.upstream.abort import abort
from gateway.upstream.errors import Failure, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.core.model import RequestId
    from gateway.edge.backends import Backend
    from gateway.edge.flight import Flight
    from gateway.gate import Lease
    from gateway.upstream.reply import Reply

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


LOST_AFTER = 2
"""Snapshots in a row that must show an engine without work; see `Reaper.missed`."""


class Reaper:
    """Aborts and confirms. `confirmed` is called at most once per abandoned request."""

    def __init__(
        self, confirmed: Callable[[RequestId], None], prolong: Callable[[RequestId, float], None]
    ) -> None:
        self._confirmed = confirmed
        self._prolong = prolong
        self._running: dict[RequestId, Flight] = {}
        self._dying: dict[RequestId, Flight] = {}
        self._burials: set[asyncio.Task[None]] = set()

    @property
    def dying(self) -> int:
        """Requests whose client left and that are not known to be gone."""
        return len(self._dying)

    def flights(self, backend: Backend) -> tuple[Flight, ...]:
        """What was handed to a server and is not known to be over."""
        both = (*self._running.values(), *self._dying.values())
        return tuple(flight for flight in both if flight.backend is backend)

    def began(self, ident: RequestId, flight: Flight) -> None:
        """A request is about to be written to a server."""
        self._running[ident] = flight
        flight.at = asyncio.get_running_loop().time()
        quiet = flight.record.dialect in QUIET
        flight.backend.began(ident, flight.lease.grant.demand.slots, quiet=quiet)

    def cut(self, backend: Backend, why: str) -> None:
        """A server died: whoever still waits for an answer of it is told so. Some would wait long:
        a machine that lost its power resets nothing."""
        for flight in self.flights(backend):
            if flight.reply is not None:
                flight.reply.close(why)

    def missed(self, backend: Backend, before: float) -> int:
        """The engine says that it runs nothing: whatever was written before `before` (loop's clock)
        and has not been answered by a byte is lost there. Said twice, it is believed.

        Returns how many requests were given up now; their clients get a 504.
        """
        lost = 0
        for flight in self._running.values():
            reply = flight.reply
            if flight.backend is not backend or reply is None or reply.status:
                continue
            flight.missed = flight.missed + 1 if flight.at <= before else 0
            if flight.missed == LOST_AFTER:
                lost += 1
                reply.close("The engine has lost the request.", Failure.FIRST_BYTE_TIMEOUT)
        return lost

    def ended(self, ident: RequestId) -> None:
        """It ended on its own."""
        flight = self._running.pop(ident, None)
        if flight is not None:
            flight.backend.ended(ident)
            if flight.reply is not None:
                flight.reply.close()

    def bury(self, lease: Lease) -> None:
        """Take over an abandoned request. Returns at once."""
        flight = self._running.pop(lease.ticket.id, None)
        if flight is None:
            return
        flight.backend.ended(lease.ticket.id)
        burial = spawn(self._bury(lease, flight), f"bury {lease.ticket.id}")
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

    async def _bury(self, lease: Lease, flight: Flight) -> None:
        backend, reply, start = flight.backend, flight.reply, flight.backend.life
        loop = asyncio.get_running_loop()
        since = loop.time()
        self._dying[lease.ticket.id] = flight
        if reply is not None:
            reply.forget()
        try:
            over = reply is not None and reply.ended
            if flight.named:
                await abort(backend.client, flight.rid, api_key=backend.api_key, timeout_s=ABORT_S)
                over = reply is not None and await _ends(reply)
            if reply is not None:
                reply.close()
            until = since + STUCK_S
            while not over and loop.time() < until:
                wait_s = max(lease.grace_s - MARGIN_S, lease.grace_s / 2)  # a short one as well
                asked = loop.time()
                over = await backend.gone(since, start, wait_s)
                away_s = loop.time() - asked - wait_s
                if away_s > LATE_S:  # in which the engine could not be asked
                    until += away_s
                elif not over and not backend.says_busy(since):
                    break
                if not over:
                    self._prolong(lease.ticket.id, lease.grace_s)
            if over:
                self._confirmed(lease.ticket.id)
        finally:
            self._dying.pop(lease.ticket.id, None)
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
