"""A store in memory, for gates that are processes of one machine and end with the process that holds it.

Its life is that of its process: nobody can have used the table before, so there are no leases to outlast.
What an engine still runs of an earlier life of the gate, or for somebody else, is found as one gate alone
finds it, by the engine's count (`fresh` in `core.witness`).
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from gateway.core.lease import Table
from gateway.lease.store import Answer
from gateway.lease.wire import decode, encode


class Tables:
    """All pools' tables. One thing at a time: it is asked on one loop, and answers without waiting."""

    def __init__(self) -> None:
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
