"""What a request costs in memory while it waits: thousands of connections, each with one request that
is not answered, behind the gate's queue or, where a gateway has none, behind the server."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from typing import TYPE_CHECKING

from tests.bench.processes import rss

if TYPE_CHECKING:
    from tests.bench.load import Message

SETTLED = 3
"""Readings in a row that must be equal to a hundredth."""


def enough_files(wanted: int) -> None:
    """Raise this process's limit, which those it starts inherit, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Waiter(asyncio.Protocol):
    """Sends one request and waits."""

    def __init__(self, request: bytes) -> None:
        self.request, self.lost = request, False

    def connection_made(self, transport) -> None:
        transport.write(self.request)

    def connection_lost(self, _: Exception | None) -> None:
        self.lost = True


async def waiting(port: int, message: Message, *, requests: int, pid: int) -> float | None:
    """Bytes in memory per waiting request, its body included. None where they were not all held.

    What the second half of them adds: the first fills what the process has had and let go of, tens of
    megabytes of it after a tokenizer was read.
    """
    loop = asyncio.get_running_loop()
    made = []
    before, half = 0, requests // 2
    for number in range(requests):
        if number == half:
            before = await _settled(pid)
        transport, waiter = await loop.create_connection(
            lambda: Waiter(message.next()), "127.0.0.1", port
        )
        made.append((transport, waiter))
        if number % 50 == 0:
            await asyncio.sleep(0.01)
    held = await _settled(pid)
    lost = sum(waiter.lost for _, waiter in made)
    for transport, _ in made:
        transport.abort()
    return None if lost else (held - before) / (requests - half)


async def _settled(pid: int) -> int:
    """The memory of a process once it no longer changes, for a minute at most."""
    until = time.monotonic() + 60.0
    last, equal = rss(pid), 0
    while equal < SETTLED and time.monotonic() < until:
        await asyncio.sleep(1.0)
        now = rss(pid)
        equal = equal + 1 if abs(now - last) < last / 100 else 0
        last = now
    return last
