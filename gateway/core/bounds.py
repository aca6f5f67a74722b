"""How much may wait, and for whom: the bounds of the queue, and who waits in it for no pool yet.

A request whose servers are only just being looked at (the gate has been started, a server was added, one
is in doubt) cannot be counted, and so has no ticket that could be judged. It waits in the queue all the
same, as one that needs no memory of any pool: there it is seen, counts against the same bounds, gives
way like all others, and is told when the gate goes down. Once its server is known it leaves the queue and
is submitted as what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.books import Timer
from gateway.core.flows import Entry, longest
from gateway.core.model import Code, Refused
from gateway.core.sums import LedgerError
from gateway.core.turns import GOING_DOWN, Turns

if TYPE_CHECKING:
    from gateway.core.model import RequestId, Ticket, Transition


class Bounds(Turns):
    """See the module."""

    def attend(self, ticket: Ticket, now: float) -> list[Transition]:
        """Let a request that names no pool wait, or refuse it. It ends by `leave`, if not by a refusal.

        Raises LedgerError for an id that is in use, and for a ticket that names pools.
        """
        if ticket.pools or self.books.knows(ticket.id):
            msg = f"{ticket.id} cannot wait for no pool"
            raise LedgerError(msg)
        out = self._due(now)
        if self._draining:
            out.append(Refused(ticket.id, self._refusal(Code.DRAINING, GOING_DOWN)))
        else:
            entry = Entry(
                ticket=ticket,
                seq=self.books.next_seq(),
                since=now,
                expires=now + self.queue.max_wait_s,
                need=0,
            )
            self.books.arrive(entry, None)
            self._keep_all_bounds(entry, now, out)
        self._pump(now, out)  # what was due may have made room
        return out

    def leave(self, ident: RequestId, now: float) -> list[Transition]:
        """One that waited for no pool waits no more: its server is known, or its client has left."""
        if ident in self.books.waiting:
            self.books.dequeue(ident)
        out = self._due(now)
        self._pump(now, out)
        return out

    def _keep_all_bounds(self, entry: Entry, now: float, out: list[Transition]) -> bool:
        """A newcomer has found no room: whether it may wait. Others may have to give way to it."""
        ident = entry.ticket.id
        if ident in self.books.waiting:
            self._keep_client_bound(entry, now, out)
        if ident in self.books.waiting:
            self._keep_bounds(entry, now, out)
        if ident not in self.books.waiting:
            return False
        self.books.at(entry.expires, Timer.EXPIRE, ident)
        return True

    def _keep_client_bound(self, entry: Entry, now: float, out: list[Transition]) -> None:
        """A client may have only so many waiting; asked once the newest has found no room."""
        client = entry.ticket.client
        limit = client.max_waiting
        if limit is not None and len(self.books.waiting[entry.ticket.id].waiting) > limit:
            message = f"client {client.name!r} has {limit} requests waiting, its limit"
            self._evict(entry.ticket.id, Code.CLIENT_LIMIT, message, now, out, new=True)

    def _keep_bounds(self, entry: Entry, now: float, out: list[Transition]) -> None:
        """The queue is over its bounds: whoever waits with most per weight gives way."""
        rule, books = self.queue, self.books
        alone = entry.need > rule.max_tokens or entry.ticket.body_bytes > rule.max_bytes
        while (
            len(books.waiting) > rule.max_requests
            or books.tokens > rule.max_tokens
            or books.bytes > rule.max_bytes
        ):
            own = books.waiting[entry.ticket.id]
            fullest = longest(books.flows.values())
            # One that is over the bounds by itself pushes nobody out for nothing.
            gives_way = not alone and fullest is not None and fullest.line > own.line
            victim = fullest.waiting[-1] if fullest is not None and gives_way else entry
            left = books.tokens - victim.need
            # Of who waits for no pool no size is known.
            sized = f" with {left} tokens" if left else ""
            message = f"{len(books.waiting) - 1} requests{sized} are waiting, which is all the queue takes"
            self._evict(victim.ticket.id, Code.QUEUE_FULL, message, now, out, new=victim is entry)
            if victim is entry:
                return
