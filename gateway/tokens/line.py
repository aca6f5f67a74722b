"""Whose text is counted next: a few at once, and clients take turns.

Counting a large body takes a thread, or the server, for up to some seconds, and a client may send
fifty of them. In one line for all, everybody else's would wait behind the fifty. So each client has
a line of its own, and whenever one may begin, the client whose last turn is longest ago has it
(round robin; Nagle's "On packet switches with infinite storage", RFC 970). A client that is alone
uses all places. So that one whose few begin while another's take every place need not wait for
these to end, there are `spare` places, for clients that have none under way.

**Bound: whatever others send, a client that has nothing under way begins after at most one text of
each other client that waited before it; at once where only one other client is there and a place is spare.**

Loop-confined. What is under way is not stopped here; what leaves while it waits gives its place back.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

Waiter = asyncio.Future[None]


class Overtaken(Exception):
    """It waits no longer: room was made for a client that had less."""


class Line:
    """Places for `at_once` texts, and `spare` more for clients that have none under way.

    Who was let in by `turn` calls `leave` once, for the same client and size.
    """

    def __init__(self, at_once: int, spare: int = 0) -> None:
        self._at_once = at_once
        self._spare = spare
        self._busy: Tally[str] = Tally()  # places taken, by client
        self._lines: dict[str, OrderedDict[Waiter, int]] = {}
        """Who waits, the client whose turn is next first, and their sizes. Thousands may leave at once."""
        self._bytes: Tally[str] = Tally()  # of what waits and is under way

    @property
    def bytes(self) -> int:
        """Of all that waits and is under way."""
        return self._bytes.total()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._lines.values()))

    @property
    def texts(self) -> int:
        """How many wait and are under way."""
        return self.waiting + self._busy.total()

    def waiting_of(self, client: str) -> int:
        """How many of this client wait."""
        return len(self._lines.get(client, ()))

    def has(self, client: str) -> bool:
        """Whether anything of this client waits or is under way."""
        return client in self._busy or client in self._lines

    async def turn(self, client: str, size: int) -> None:
        """Wait for a place. Raises Overtaken, see `make_room`; then, and where it is cancelled, nothing
        is held."""
        self._bytes[client] += size
        if self._may_begin(client):
            self._busy[client] += 1
            return
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, OrderedDict())[waiter] = size
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # in the same turn of the loop
                if waiter.exception() is None:
                    self.leave(client, size)
            elif waiter in self._lines.get(client, ()):
                self._quit(client, waiter)
            raise

    def leave(self, client: str, size: int) -> None:
        """One that was under way is over: the next may begin."""
        _less(self._busy, client, 1)
        _less(self._bytes, client, size)
        while (name := next(self._could_begin(), None)) is not None:
            waiter = next(iter(self._lines[name]))
            waited = self._quit(name, waiter)
            if waiter.done():
                continue  # it is being cancelled, and has not got to say so
            if name in self._lines:
                self._lines[name] = self._lines.pop(name)  # behind all others
            self._busy[name] += 1
            self._bytes[name] += waited
            waiter.set_result(None)

    def make_room(self, client: str, size: int, most: int) -> bool:
        """Let `size` bytes more come to `most` in all and no more; whether they do. For that, what came
        last of the client that has most goes, as long as that is more than this one would have."""
        while self.bytes + size > most:
            name = max(self._lines, key=self._bytes.__getitem__, default=client)
            if self._bytes[name] <= self._bytes[client] + size:
                return False
            waiter = next(reversed(self._lines[name]))
            self._quit(name, waiter)
            if not waiter.done():
                waiter.set_exception(Overtaken())
        return True

    def _may_begin(self, client: str) -> bool:
        """One that comes. Where a place is free that anybody may have, nobody waits."""
        busy = self._busy.total()
        return busy < self._at_once + (0 if client in self._busy else self._spare)

    def _could_begin(self) -> Iterator[str]:
        return (name for name in self._lines if self._may_begin(name))

    def _quit(self, client: str, waiter: Waiter) -> int:
        """It waits no more. Its size."""
        line = self._lines[client]
        size = line.pop(waiter)
        if not line:
            del self._lines[client]
        _less(self._bytes, client, size)
        return size


def _less(tally: Tally[str], client: str, by: int) -> None:
    """Take away; who has nothing is not kept. Raises ValueError for more than there was."""
    left = tally[client] - by
    if left < 0:
        msg = f"{by} taken of {tally[client]}"
        raise ValueError(msg)
    if left:
        tally[client] = left
    else:
        del tally[client]
