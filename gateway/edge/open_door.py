"""`admission: off`: the very bytes of every request go through, nothing is counted, capped or held.

The switch for the day somebody suspects the gate: what reaches the server is then what the client
sent, byte for byte, and each request still leaves its record and its log line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.edge import body as bodies
from gateway.edge.dialects import Intent, Invalid
from gateway.edge.relay import BrokenAnswer, Relay, begin
from gateway.tokens import Kind

if TYPE_CHECKING:
    from aiohttp import web

    from gateway.core.model import Outcome
    from gateway.edge.backends import Backend
    from gateway.edge.dialects import Dialect
    from gateway.edge.trip import Trip
    from gateway.policy.schema import Limits


class Unbooked:
    """Stands where a lease would be: there is nothing to free, correct or release."""

    def __init__(self) -> None:
        self.ended = False

    def first_token(self) -> None:
        """Nothing waits for it."""

    def true_up(self, generated: int) -> None:
        """Nothing was forecast."""

    def end(self, outcome: Outcome) -> None:  # noqa: ARG002 - the record knows it
        """The engine is done."""
        self.ended = True

    def abandon(self, outcome: Outcome) -> None:
        """Nothing lingers."""
        self.end(outcome)


async def pass_on(
    trip: Trip, dialect: Dialect, data: bytes, backend: Backend, limits: Limits
) -> web.StreamResponse:
    """Send `data` as it is and relay the answer as it comes. Raises UpstreamError."""
    intent = _intent(dialect, data)
    trip.record.streamed = intent.stream
    trip.record.backend = backend.name
    trip.record.attempts = trip.attempts = 1
    first_byte_s = limits.first_byte_s if intent.stream else limits.answer_s
    backend.began(trip.id, 1)
    reply = None
    try:
        reply = await backend.client.send(
            "POST",
            trip.target,
            [*trip.forwarded_headers(), *backend.headers],
            data,
            first_byte_timeout_s=first_byte_s,
            idle_timeout_s=limits.idle_s,
        )
        first = await begin(reply, streamed=intent.stream, as_it_is=True)
        return await Relay(trip, Unbooked(), backend, intent, None).run(reply, first)
    except BrokenAnswer as broken:
        return broken.response
    finally:
        backend.ended(trip.id)
        if reply is not None:
            reply.close()


def _intent(dialect: Dialect, data: bytes) -> Intent:
    """What little the relay must know; a body we cannot read is the engine's to refuse."""
    try:
        intent = dialect.read(bodies.parse(data))
    except Invalid:
        return Intent(Kind.CHAT, cap=None, usual=None, n=1, stream=False, model=None)
    return Intent(
        intent.kind, cap=intent.cap, usual=None, n=intent.n, stream=intent.stream, model=None
    )
