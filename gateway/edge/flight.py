"""A request that was handed to a server: what must be known of it until its end."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from gateway.edge.backends import Backend
    from gateway.edge.dialects import Body
    from gateway.gate import Lease
    from gateway.observe.record import Record
    from gateway.upstream.reply import Reply

_KEY = secrets.token_bytes(32)
"""Of this process alone: nobody who sees a mark can find out which words made it."""


@dataclass(slots=True)
class Flight:
    """`reply` is there once the request was written."""

    backend: Backend
    rid: str
    lease: Lease
    record: Record
    body: Body
    named: bool = True  # the engine knows it by `rid`; else by its connection alone
    at: float = 0.0  # when it was written, loop's clock
    reply: Reply | None = None
    missed: int = 0  # snapshots in a row of an engine that should run it and runs nothing
    _mark: bytes = b""

    @property
    def answer(self) -> Reply:
        """The reply. Raises RuntimeError before the request was written."""
        if self.reply is None:
            msg = "not written"
            raise RuntimeError(msg)
        return self.reply

    def mark(self) -> bytes:
        """What tells this very request from others: a keyed digest of its body, no word of it.

        Made when it is asked for, which is after a death.
        """
        if not self._mark:
            self._mark = mark_of(self.record.dialect, self.body)
        return self._mark


def mark_of(dialect: str, body: Body) -> bytes:
    """See `Flight.mark`. Two spellings of one JSON value have one mark."""
    try:
        text = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # integers beyond 64 bits
        text = json.dumps(body, sort_keys=True).encode()
    person = dialect.encode()[:16]
    return hashlib.blake2b(text, key=_KEY, digest_size=16, person=person).digest()
