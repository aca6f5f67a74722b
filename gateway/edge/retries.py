"""Requests that come again: found by their bodies, counted against their client's budget, damped.

`core.retries` says what is early and what is too often, `core.crowd` what would be refused again for
sure; here requests are recognised, and told. Nothing is remembered, and no body looked at, before the
gate has refused a client something for want of room, or because it had its share; other refusals are
no matter of coming back sooner or later (4xx), cost no count (`no_backend`, `cooling_down`) or are another
gate's to answer (`draining`).

What is recognised is the very same bytes, on the same route, from the same address, with the same headers
of those that routes look at: an SDK sends them again as they are. Kept of them is a digest under a key
that each process makes at its start, and the sizes they were found to have. Each worker and each gate
has a budget and a memory of its own: a retry that meets another is there one by its own word, if it says so.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace
from random import random
from typing import TYPE_CHECKING, Final

from gateway.core import crowd
from gateway.core.model import NO_LEAD, Code
from gateway.core.retries import Budgets, longer_s
from gateway.edge import replies
from gateway.gate import Shed

if TYPE_CHECKING:
    from gateway.core.model import PoolId, Refusal, Ticket
    from gateway.core.retries import Again
    from gateway.edge.failures import Failures
    from gateway.edge.trip import Trip
    from gateway.gate import Gate
    from gateway.policy.schema import Policy

COUNTED: Final = frozenset(
    {
        Code.QUEUE_FULL,
        Code.QUEUE_TIMEOUT,
        Code.DEADLINE_UNREACHABLE,
        Code.CLIENT_LIMIT,
        Code.QUOTA_EXCEEDED,
    }
)
"""Refusals after which to come back early is of no use."""

LARGEST: Final = 4 << 20
"""Bytes of a body that is recognised: a million tokens of text. Its digest takes some 5 ms; what is larger
is mostly pictures, and a retry by its own word only."""

MOST_PROMPTS: Final = 16
"""Of a request whose sizes are kept: a list of a thousand would take 40 KB."""


@dataclass(slots=True)
class Try:
    """What is kept of a request until it is admitted. `data` goes as soon as its mark is made."""

    data: bytes
    mark: bytes | None = None
    again: Again | None = None
    ticket: Ticket | None = None  # once it was counted
    opened: frozenset[PoolId] | None = None  # of one that is damped: pools that took work then


class Retries:
    """Of one data plane. Nothing here awaits."""

    def __init__(self, policy: Policy, gate: Gate, failures: Failures) -> None:
        self._gate = gate
        self._failures = failures
        self._key = secrets.token_bytes(32)
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Another policy. What was told by the one before is forgotten: sizes, routes and bounds may be
        others."""
        budget = policy.queue.retry_budget
        self._budgets = None if budget == "off" else Budgets(budget)
        matches = (match for rule in policy.routes for match in rule.when.header)
        self._headers = tuple(sorted({match.name for match in matches}))

    def met(self, trip: Trip, client: str, data: bytes) -> None:
        """A request has come. Raises Shed for one that comes too early too often and finds no room."""
        if self._budgets is None:
            return
        one = trip.tried = Try(data)
        now = self._gate.now()
        if not self._budgets.knows(client, now):
            return
        one.mark = self._mark(trip, data)
        again = one.again = self._budgets.met(
            client, one.mark, now, arrived=trip.began, says_so=bool(trip.record.client_retry)
        )
        if again is None:
            return
        trip.record.retry = "early" if again.early else "kept"
        if again.level and (refusal := self._still(one, again, client, now)) is not None:
            trip.record.retry = "damped"
            raise Shed(refusal, None)

    def rest(self, trip: Trip) -> None:
        """It has to wait: its body is kept once, in other form."""
        if (one := trip.tried) is not None and one.data:
            one.mark, one.data = one.mark or self._mark(trip, one.data), b""

    def refused(self, trip: Trip, refusal: Refusal) -> Refusal:
        """A request is refused: as it is told to its client."""
        one = trip.tried
        if self._budgets is None or one is None or refusal.code not in COUNTED:
            return refusal
        if trip.heart.is_open:
            return refusal  # told in a stream: few look for a time there, and who does not is not early
        self.rest(trip)
        client, again = trip.record.client, one.again
        opened = crowd.opened(self._gate.core.books) if one.opened is None else one.opened
        self._budgets.refused(
            client,
            one.mark,
            replies.retry_after(refusal),
            self._gate.now(),
            again=again,
            ticket=self._kept(one.ticket, client),
            opened=opened,
        )
        if again is None or not again.early or one.opened is not None:
            return refusal
        words = f"{refusal.message}; it came {again.early_s:.0f} s before the time it was told"
        if again.level:
            words += f", and client {client!r} does so more often than its retry budget allows"
        return replace(refusal, message=words)

    def counted(self, trip: Trip, ticket: Ticket) -> None:
        """Its sizes are known."""
        if trip.tried is not None:
            trip.tried.ticket = ticket

    def admitted(self, trip: Trip) -> None:
        """It was let in: nothing of it is kept."""
        trip.tried = None

    # ---- inside --------------------------------------------------------------------------------

    def _kept(self, ticket: Ticket | None, client: str) -> Ticket | None:
        """The sizes to know it by; None where they would not do: while its client cools down somewhere, a
        server is not among its pools that may be the next moment."""
        if ticket is None or len(ticket.ask.prompts) > MOST_PROMPTS:
            return None
        if self._failures.cools(client):
            return None
        return replace(ticket, lead=NO_LEAD)  # how its prompt begins says nothing of room

    def _still(self, one: Try, again: Again, client: str, now: float) -> Refusal | None:
        """The refusal of what would be refused again."""
        told = again.told
        if told is None or told.ticket is None:
            return None
        refusal = crowd.still_refused(self._gate.core, told.ticket, told.opened, now)
        if refusal is None:
            return None
        one.ticket, one.opened = told.ticket, told.opened
        times = "once" if told.times == 1 else f"{told.times} times"
        words = (
            f"this very request was refused {times}, last {now - told.at:.0f} s ago, and came "
            f"{again.early_s:.0f} s before the time it was told; client {client!r} does so more often "
            "than its retry budget allows, so it was not counted again"
        )
        words += f". {refusal.message}" if refusal.message else ", and there is still no room"
        wait_s = refusal.retry_after_s
        if wait_s is None:  # else it is the end of its quota's window
            wait_s = longer_s(told, again.level, random())  # noqa: S311 - it only spreads
        return replace(refusal, message=words, retry_after_s=wait_s)

    def _mark(self, trip: Trip, data: bytes) -> bytes | None:
        """What tells a request from others without a word of it; None for one too large for that."""
        if len(data) > LARGEST:
            return None
        request = trip.request
        about = [request.rel_url.raw_path_qs, request.remote or ""]
        about += [request.headers.get(name, "") for name in self._headers]
        digest = hashlib.blake2b(key=self._key, digest_size=16)
        digest.update("\n".join(about).encode(errors="surrogateescape"))
        digest.update(b"\n\n")
        digest.update(data)
        return digest.digest()
