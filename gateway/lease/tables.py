"""A store in memory, for gates that are processes of one machine and end with the process that holds it.

Its life is that of its process: nobody can have used the table before, so one begins as known to be
free (`unclaimed` nothing) where that of a store on the network begins as not known. What an engine
still runs of an earlier life of the gate is found as one gate alone finds it, by the engine's count.
"""

from __future__ import annotations

import secrets

from gateway.core.amount import NOTHING
from gateway.core.lease import Table
from gateway.lease.store import Answer
from gateway.lease.wire import encode


class Tables:
    """All pools' tables. One thing at a time: it is asked on one loop, and answers without waiting."""

    def __init__(self) -> None:
        self.run = secrets.token_hex(6)
        self._first = encode(Table(self.run, "start", 0, NOTHING))
        self._of: dict[str, bytes] = {}

    def swap(self, key: str, run: str, expects: bytes | None, new: bytes) -> Answer:
        """See `Store`."""
        there = self._of.get(key, self._first)
        if run != self.run or expects != there:
            return Answer(taken=False, run=self.run, document=there)
        self._of[key] = new
        return Answer(taken=True, run=self.run)
