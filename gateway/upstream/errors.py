"""How the way to a server can break. One error type; its kind decides what happens next."""

from __future__ import annotations

from enum import StrEnum


class Failure(StrEnum):
    """What went wrong."""

    REFUSED = "refused"  # no connection: nothing was sent
    RESET = "reset"  # the connection broke before the answer was complete
    TRUNCATED = "truncated"  # it was closed in the middle of an answer
    TIMEOUT = "timeout"  # nothing came in time: no connection, or no head of an answer
    IDLE = "idle"  # an answer had begun and fell silent
    PROTOCOL = "protocol"  # what came is not an HTTP answer we accept
    TOO_LARGE = "too_large"  # an answer over the limit of who reads it
    STATUS = "status"  # an answer, but not the one asked for


class UpstreamError(Exception):
    """A server could not be reached or did not answer to the end.

    `sent`: request bytes had been handed to a socket, the server may be at work on it. `answered`:
    a byte of its answer had come. The message is for people and holds nothing of any body.
    """

    def __init__(
        self,
        kind: Failure,
        message: str = "",
        *,
        status: int | None = None,
        sent: bool = False,
        answered: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.sent = sent
        self.answered = answered
