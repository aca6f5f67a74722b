"""The way to a server: of the addresses that its name has, one that answers.

A name may have several (IPv6 and IPv4; a machine and the one that it was moved from), and one of them may
lead nowhere: packets vanish there, and nobody says no. So none but the last may use up all the time there
is for a connection. The one that answered last is asked first, as long as the name has it: a new connection
costs no wait then, and where several servers share a name the gate stays with one of them.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any

from gateway.upstream.errors import OURS

if TYPE_CHECKING:
    import ssl as ssl_module
    from collections.abc import Callable, Sequence

ONE_S, ONE_TLS_S = 1.0, 2.5
"""For one address where there are others: a machine that is there answers in milliseconds, however busy, and
a first packet that was lost is sent again after a second. With TLS its program must answer as well; half of
what there is for a connection."""

Address = tuple[Any, ...]
Found = tuple[int, int, int, str, Address]
"""As `getaddrinfo` tells it."""


class Way:
    """To `host` and `port`, with TLS where `ssl` is given."""

    def __init__(self, host: str, port: int, ssl: ssl_module.SSLContext | None) -> None:
        self._host, self._port, self._ssl = host, port, ssl
        self._one_s = ONE_S if ssl is None else ONE_TLS_S
        self._last: Address | None = None
        self._written = _written(host, port)

    async def connect(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """A connection for the protocol that `make` makes. Raises OSError; the caller bounds the time."""
        loop = asyncio.get_running_loop()
        found = self._written or await loop.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM
        )
        ordered = self._ordered([address for *_, address in found])
        name = None if self._ssl is None else self._host
        failed: list[OSError] = []
        for address in ordered:
            limit = None if address is ordered[-1] else self._one_s
            try:
                async with asyncio.timeout(limit):
                    await loop.create_connection(
                        make, address[0], address[1], ssl=self._ssl, server_hostname=name
                    )
            except OSError as error:  # of which a timeout is one
                failed.append(error)
            else:
                self._last = address
                return
        raise _worst(failed)

    def _ordered(self, addresses: list[Address]) -> list[Address]:
        """The one that answered last first, then as the system has them."""
        return sorted(addresses, key=lambda one: one != self._last)


def _written(host: str, port: int) -> Sequence[Found]:
    """What a host that is an address says itself: nobody is asked, and no look-up that hangs is met."""
    try:
        flags = socket.AI_NUMERICHOST
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror:
        return ()


def _worst(failed: list[OSError]) -> OSError:
    """The one that tells most: that this machine has no room for a connection, that one says nobody
    listens, else the last."""
    for numbers in (OURS, {errno.ECONNREFUSED}):
        for error in failed:
            if error.errno in numbers:
                return error
    return failed[-1]
