"""Places kept for those who were told to come back: the line outside the door.

A client that is refused and told when to come back, and does, should not stand at the end of a
line that has grown meanwhile: that is how the polite starve. So a refusal for want of room is
remembered for KEEP_S after the time it named, and the same request of the same client then takes
its old place in its client's line, where nobody passes it any more. It gains nothing over other
clients, and nothing by coming early.

Those who are away still come before anybody new of their client, so the time told to the next one
counts them: as many as came back of those who could have. Telling a hundred clients the time at
which one of them fits would bring ninety-nine of them back for nothing.

What is kept is a number for (client, sizes of the request): no text, no key.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.core.flows import Entry
    from gateway.core.model import Ticket

KEEP_S = 30.0
"""SDKs sleep by their own clock and jitter: half a minute bounds both and a slow connection."""

MOST = 4_096
EARLY = 0.9
"""Share of the time named after which a return counts as honoured: clients round down."""

LEARN = 0.05
"""Step of the share of clients that come back: the last twenty decide. It begins at 1: SDKs do."""

Key = tuple[str, tuple[int, ...], int, int | None]


@dataclass(frozen=True, slots=True)
class _Place:
    seq: int
    tag: float
    need: int
    valid_from: float
    until: float


class Recall:
    """Refused requests by client and size."""

    def __init__(self) -> None:
        self._places: OrderedDict[Key, _Place] = OrderedDict()
        self._ends: list[tuple[float, int, Key]] = []  # a heap; stale ends stay until their time
        self._away: Counter[str] = Counter()
        self._come_back = 1.0

    def keep(self, entry: Entry, now: float, retry_after_s: float) -> None:
        """`entry` was refused and told to come back after `retry_after_s`."""
        self._over(now)
        key = _key(entry.ticket)
        self._drop(key)
        until = now + retry_after_s + KEEP_S
        self._places[key] = _Place(
            entry.seq, entry.tag, entry.need, now + EARLY * retry_after_s, until
        )
        self._away[key[0]] += entry.need
        if len(self._places) > MOST:
            self._drop(next(iter(self._places)))
        heappush(self._ends, (until, entry.seq, key))
        if len(self._ends) > 2 * MOST:  # most are of places that are taken, or given anew
            self._set_ends()

    def stood_still(self, seconds: float) -> None:
        """For so long nobody could come back: who tried to may have to be heard yet."""
        for key, found in self._places.items():
            self._places[key] = replace(found, until=found.until + seconds)
        self._set_ends()

    def place(self, ticket: Ticket, now: float) -> tuple[int, float] | None:
        """The old arrival number and tag of a request that comes back when told to; taken once."""
        self._over(now)
        key = _key(ticket)
        found = self._places.get(key)
        if found is None or now < found.valid_from:
            return None
        self._drop(key)
        self._come_back += LEARN * (1 - self._come_back)
        return found.seq, found.tag

    def away(self, now: float) -> dict[str, float]:
        """KV tokens that are expected back, by client."""
        self._over(now)
        return {name: tokens * self._come_back for name, tokens in self._away.items()}

    def _over(self, now: float) -> None:
        """Forget whose time has passed: they do not come back."""
        while self._ends and self._ends[0][0] < now:
            until, seq, key = heappop(self._ends)
            found = self._places.get(key)
            if found is not None and (found.until, found.seq) == (until, seq):
                self._drop(key)
                self._come_back -= LEARN * self._come_back

    def _set_ends(self) -> None:
        self._ends = [(at.until, at.seq, of) for of, at in self._places.items()]
        heapify(self._ends)

    def _drop(self, key: Key) -> None:
        found = self._places.pop(key, None)
        if found is not None:
            self._away[key[0]] -= found.need
            if not self._away[key[0]]:
                del self._away[key[0]]


def _key(ticket: Ticket) -> Key:
    ask = ticket.ask
    return (ticket.client.name, ask.prompts, ask.n, ask.cap)
