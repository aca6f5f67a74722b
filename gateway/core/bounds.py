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
    from gateway.core.flows import Flow
    from gateway.core.model import ClientRule, QueueRule, RequestId, Ticket, Transition


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
        books, client, ident = self.books, entry.ticket.client, entry.ticket.id
        while (own := books.waiting.get(ident)) is not None:
            code = bound_passed(
                self.queue,
                client,
                len(own.waiting),
                requests=len(books.waiting),
                tokens=books.tokens,
                size=books.bytes,
            )
            if code is None:
                books.at(entry.expires, Timer.EXPIRE, ident)
                return True
            if self._put_off(now) and self._start_next(now, out):
                continue  # nobody is refused for what could have been started
            if code is Code.CLIENT_LIMIT:
                message = (
                    f"client {client.name!r} has {client.max_waiting} requests waiting, its limit"
                )
                self._evict(ident, code, message, now, out, new=True)
            else:
                self._make_way(entry, own, now, out)
        return False

    def _make_way(self, entry: Entry, own: Flow, now: float, out: list[Transition]) -> None:
        """The queue is over its bounds: whoever waits with most per weight gives way."""
        rule, books = self.queue, self.books
        alone = entry.need > rule.max_tokens or entry.ticket.body_bytes > rule.max_bytes
        fullest = longest(books.flows.values())
        # One that is over the bounds by itself pushes nobody out for nothing.
        gives_way = not alone and fullest is not None and fullest.line > own.line
        victim = fullest.waiting[-1] if fullest is not None and gives_way else entry
        left = books.tokens - victim.need
        # Of who waits for no pool no size is known.
        sized = f" with {left} tokens" if left else ""
        message = (
            f"{len(books.waiting) - 1} requests{sized} are waiting, which is all the queue takes"
        )
        self._evict(victim.ticket.id, Code.QUEUE_FULL, message, now, out, new=victim is entry)


def bound_passed(
    rule: QueueRule, client: ClientRule, own: int, *, requests: int, tokens: int, size: int
) -> Code | None:
    """The bound that is passed where `own` requests of that client wait, and in all so many requests with so
    many tokens and bytes."""
    if client.max_waiting is not None and own > client.max_waiting:
        return Code.CLIENT_LIMIT
    if requests > rule.max_requests or tokens > rule.max_tokens or size > rule.max_bytes:
        return Code.QUEUE_FULL
    return None
