"""A request that was read and counted, and what is kept of it while it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from gateway.edge import face

if TYPE_CHECKING:
    from gateway.edge.dialects import Body, Intent
    from gateway.edge.retries import Retries
    from gateway.edge.trip import Trip
    from gateway.tokens import Counted


def at_rest(trip: Trip, work: Work, retries: Retries) -> None:
    """It has to wait: let go of what that does not need."""
    retries.rest(trip)
    face.rest(trip.request)
    work.pack()


class Work:
    """What to ask the engine for, and how it was understood.

    Parsed, a body takes nearly twice what it took on the wire, five times where it is many small
    fields, and four times where one character of a text is an emoji: the queue's bound is in bytes of
    the wire. So who has to wait packs it, and it is parsed again when it is wanted.
    """

    __slots__ = ("_body", "_packed", "counted", "intent")

    def __init__(self, intent: Intent, body: Body, counted: Counted) -> None:
        self.intent = intent
        self.counted = counted
        self._body: Body | None = body
        self._packed = b""

    @property
    def body(self) -> Body:
        """The parsed body that is counted and written."""
        if self._body is None:
            self._body, self._packed = orjson.loads(self._packed), b""
        return self._body

    def pack(self) -> None:
        """It waits from now on. What cannot be written stays as it is: it is refused when it is sent."""
        if self._body is None or self.intent.instead is not None:  # that one holds it as well
            return
        try:
            packed = orjson.dumps(self._body)
        except orjson.JSONEncodeError:
            return
        self._packed = bytes(memoryview(packed))  # orjson's keeps the room it wrote in: 8 KB for 2
        self._body = None
