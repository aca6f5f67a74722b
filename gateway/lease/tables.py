"""A store in memory, for gates that are processes of one machine and end with the process that holds it.

Its life is that of its process: nobody can have used the table before, so there are no leases to outlast.
What an engine still runs of an earlier life of the gate, or for somebody else, is found as one gate alone
finds it, by the engine's count (`fresh` in `core.witness`).
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.core.lease import Table
from gateway.core.others import MOST
from gateway.lease.store import Answer, Heard, Said
from gateway.lease.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable


class Tables:
    """All pools' tables. One thing at a time: it is asked on one loop, and answers without waiting."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._salt = b""
        self._board: dict[str, tuple[float, float, bytes]] = {}
        """By who wrote: when, until when, what; whoever wrote longest ago first."""
        self.run = secrets.token_hex(6)
        self._first = encode(Table(self.run, "start"))
        self._of: dict[str, bytes] = {}

    def swap(self, key: str, run: str, expects: bytes | None, new: bytes) -> Answer:
        """See `Store`."""
        there = self._of.get(key, self._first)
        if run != self.run or expects != there:
            return Answer(taken=False, run=self.run, document=there)
        self._of[key] = new
        return Answer(taken=True, run=self.run)

    def post(self, me: str, salt: bytes, document: bytes, lasts_s: float) -> Heard:
        """See `Store`."""
        now = self._clock()
        self._salt = self._salt or salt
        self._board.pop(me, None)
        kept = {who: said for who, said in self._board.items() if said[1] > now}
        self._board = dict([*kept.items(), (me, (now, now + lasts_s, document))][-MOST:])
        others = {
            who: Said(now - at, said) for who, (at, _, said) in self._board.items() if who != me
        }
        return Heard(self._salt, others)

    def forget(self, replica: str) -> list[str]:
        """Take one out that is known to be gone, with all that it had; of which pools it had any."""
        found = []
        for key, document in self._of.items():
            table = decode(document)
            if replica in table.entries:
                rest = {who: entry for who, entry in table.entries.items() if who != replica}
                self._of[key] = encode(replace(table, version=table.version + 1, entries=rest))
                found.append(key)
        return found
