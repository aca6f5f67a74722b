"""`admission: off` and `shadow`: the very bytes of every request go through, uncapped, at once.

Under `shadow` the decision is made beside it (`shadow`), under `off` nothing is counted or held.
Off is the switch for the day somebody suspects the gate: what reaches the server is then what the client
sent, byte for byte (an API the server is not asked in is put into its words, and nothing capped), and
each request still leaves its record and its log line.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gateway.core.model import Outcome
from gateway.edge import body as bodies
from gateway.edge.dialects import Intent, Invalid, Known, guard
from gateway.edge.dialects.prompts import QUIET
from gateway.edge.relay import BrokenAnswer, Relay, begin
from gateway.edge.voices import LINES
from gateway.tokens import Kind

if TYPE_CHECKING:
    from aiohttp import web

    from gateway.edge.backends import Backend
    from gateway.edge.booked import Booked
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

    def cached(self, tokens: int) -> None:
        """Nothing was hoped."""

    def end(self, outcome: Outcome) -> None:  # noqa: ARG002 - the record knows it
        """The engine is done."""
        self.ended = True

    def abandon(self, outcome: Outcome) -> None:
        """Nothing lingers."""
        self.end(outcome)


async def pass_on(
    trip: Trip, dialect: Dialect, data: bytes, backend: Backend, *, limits: Limits, booked: Booked
) -> web.StreamResponse:
    """Send `data` as it is and relay the answer as it comes. Raises UpstreamError, and
    Invalid and Known where it must be sent in other words.

    `booked` is ended whatever happens.
    """
    try:
        intent = _intent(dialect, data)
        data = _put(trip, intent, data)
    except (Invalid, Known):
        booked.abandon(Outcome.CANCELLED)
        raise
    trip.record.streamed = intent.stream
    trip.record.backend = backend.name
    trip.record.attempts = trip.attempts = 1
    first_byte_s = limits.first_byte_s if intent.stream else limits.answer_s
    quiet = trip.record.dialect in QUIET
    backend.began(trip.id, intent.n * intent.prompts, quiet=quiet)
    reply = None
    try:
        reply = await backend.client.send(
            "POST",
            trip.target,
            [*trip.forwarded_headers(), *backend.headers],
            data,
            first_byte_timeout_s=first_byte_s,
            idle_timeout_s=limits.idle_s,
            at_work=partial(backend.at_work, limits.answer_s - limits.idle_s),
        )
        first = await begin(reply, streamed=intent.stream, as_it_is=True)
        return await Relay(trip, booked, backend, intent, None).run(reply, first)
    except BrokenAnswer as broken:
        return broken.response
    finally:
        booked.abandon(Outcome.CANCELLED)  # where it has not ended by itself
        backend.ended(trip.id)
        if reply is not None:
            reply.close()


def _put(trip: Trip, intent: Intent, data: bytes) -> bytes:
    """What to send: `data`, or what is asked instead. Raises Known where nothing is."""
    if intent.known is not None:
        raise Known(intent.known)
    if intent.instead is None:
        return data
    trip.instead = intent.instead
    return guard.dump(intent.instead.body)


def _intent(dialect: Dialect, data: bytes) -> Intent:
    """What little the relay must know; a body we cannot read is the engine's to refuse, but for one
    that it must be asked in other words. Raises Invalid for that."""
    try:
        intent = dialect.read(bodies.parse(data))
    except Invalid:
        if dialect.voice.stream_type == LINES:
            raise
        return Intent(Kind.CHAT, cap=None, usual=None, n=1, stream=False, model=None)
    return replace(intent, usual=None, model=None, strip_usage=False)
