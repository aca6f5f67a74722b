"""What can go wrong on the way to an engine and back, in one exception.

A caller decides three things from it: whether the engine may have seen the request (`sent`:
then its reservation cannot simply be given back), whether it had begun to answer (`answered`:
then nothing may be sent a second time), and what to call it (`kind`).
"""

from __future__ import annotations

from enum import StrEnum


class Failure(StrEnum):
    """How an exchange failed."""

    CONNECT = "connect"  # no connection: refused, unreachable, name unknown, TLS, too slow
    RESET = "reset"  # the connection broke, or was closed before an answer began
    TRUNCATED = "truncated"  # the answer began and the connection ended before the answer did
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"  # no complete response head in time
    IDLE_TIMEOUT = "idle_timeout"  # silence in the middle of a body
    PROTOCOL = "protocol"  # what came back is not HTTP/1.x as RFC 9112 has it
    TOO_LARGE = "too_large"  # the body is over the limit of the caller


class UpstreamError(Exception):
    """The exchange with an engine failed.

    The message is for people and carries no header, path, prompt or reply.
    """

    def __init__(self, kind: Failure, message: str, *, sent: bool, answered: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.sent = sent  # request bytes had been handed to a socket
        self.answered = answered  # at least one response byte had arrived

    def afresh(self) -> UpstreamError:
        """One like it, to be raised where this one is kept: a raised error holds all frames it passed,
        and those hold its keeper."""
        return UpstreamError(self.kind, str(self), sent=self.sent, answered=self.answered)
