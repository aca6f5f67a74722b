"""What can go wrong on the way to an engine and back, in one exception.

A caller decides three things from it: whether the engine may have seen the request (`sent`:
then its reservation cannot simply be given back), whether it had begun to answer (`answered`:
then nothing may be sent a second time), and what to call it (`kind`).
"""

from __future__ import annotations

import errno
import os
import ssl
from enum import StrEnum

OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Of a connection that could not even be tried: no open file, memory or local port is left. They say
nothing of the server."""


class Failure(StrEnum):
    """How an exchange failed."""

    CONNECT = "connect"  # no connection: the machine is there, and says that nobody listens
    NO_WAY = "no_way"  # no connection, and nobody said why: no name, no route, no answer in time
    TLS = "tls"  # no connection: somebody is there, and its certificate or its TLS will not do
    OURS = "ours"  # none was tried: this machine has no open file, memory or port left for it
    RESET = "reset"  # the connection broke, or was closed before an answer began
    TRUNCATED = "truncated"  # the answer began and the connection ended before the answer did
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"  # no complete response head in time
    IDLE_TIMEOUT = "idle_timeout"  # silence in the middle of a body
    PROTOCOL = "protocol"  # what came back is not HTTP/1.x as RFC 9112 has it
    TOO_LARGE = "too_large"  # the body is over the limit of the caller


def is_ours(error: OSError) -> bool:
    """Whether `error` says nothing of the server: this process has no room for a connection."""
    if error.errno in OURS:
        return True
    try:  # a name that cannot be looked up for want of a file has an error of its own
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as none_left:
        return none_left.errno in OURS
    return False


def why_none(error: OSError) -> Failure:
    """What a connection that could not be made says of the server.

    Only the machine itself can say that nobody listens. A name server that is away, a cable that is
    out and a certificate that ran out at midnight stop new connections, and not what runs. Of
    several addresses of one name it is enough that one says so; then `error` has no number.
    """
    if is_ours(error):
        return Failure.OURS
    if isinstance(error, ssl.SSLError):
        return Failure.TLS
    refused = f"[Errno {errno.ECONNREFUSED}]" in str(error)
    return Failure.CONNECT if refused or isinstance(error, ConnectionError) else Failure.NO_WAY


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
