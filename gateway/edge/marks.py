"""What tells one request from all others without a word of it: a keyed digest of its body.

The key is drawn by each process. Where several share what they know of deaths, they must make the same
marks: then it is made of a salt that all of them read in their common store and, where that store has a
password, of that. So the marks that lie in the store say nothing to who reads only the store; without a
password he who guesses a whole body, to the letter, can find out that he guessed right
(docs/threat-model.md).
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from gateway.edge.dialects import Body
    from gateway.edge.flight import Flight

SALT_BYTES = 32


class Marks:
    """Of all requests of one process. `secret` is what processes that share the salt know beside it."""

    def __init__(self, secret: str = "") -> None:
        self._secret = hashlib.blake2b(secret.encode()).digest() if secret else b""
        self.salt = secrets.token_bytes(SALT_BYTES)
        self._key = self._made()

    def take(self, salt: bytes) -> bool:
        """Make marks by this salt from now on; whether they are others than before."""
        if salt == self.salt:
            return False
        self.salt = salt
        self._key = self._made()
        return True

    def of(self, dialect: str, body: Body) -> bytes:
        """The mark of a request. Two spellings of one JSON value have one mark."""
        try:
            text = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:  # integers beyond 64 bits
            text = json.dumps(body, sort_keys=True).encode()
        person = dialect.encode()[:16]
        return hashlib.blake2b(text, key=self._key, digest_size=16, person=person).digest()

    def of_flight(self, flight: Flight) -> bytes:
        """The same of a request under way. Made when it is asked for, which is after a death."""
        if flight.mark is None or flight.mark[0] != self._key:
            flight.mark = self._key, self.of(flight.record.dialect, flight.body)
        return flight.mark[1]

    def _made(self) -> bytes:
        return hashlib.blake2b(
            self.salt, key=self._secret, digest_size=32, person=b"kvgate-marks"
        ).digest()
