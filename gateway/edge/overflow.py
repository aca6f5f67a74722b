"""What becomes of a request that fits none of the servers it may go to.

In this order, and each only where the one before does not help:

1. *A larger server.* Nothing to do here: whoever serves the model and is in the route's list is
   asked, and one for which the request is too long is left out (`core.door`).
2. *A larger model.* Where the client asked for an alias of several models, the first of them on
   whose servers it fits.
3. *Fewer turns*, where the client or the route is set to `overflow: trim` (see `trimming`), on the
   model where least had to go.
4. The refusal with its numbers, which the gate gives.

What fits waits for its server however busy that is. A request that fits costs nothing here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.core import door
from gateway.core.model import Code
from gateway.edge import trimming
from gateway.edge.body import TOO_DEEP
from gateway.edge.dialects import Invalid
from gateway.edge.talks import talk
from gateway.gate import Shed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.core.caps import Misfit
    from gateway.core.model import Ticket
    from gateway.edge.callers import Callers
    from gateway.edge.dialects import Body
    from gateway.edge.talks import Talk
    from gateway.edge.trip import Trip
    from gateway.edge.work import Work
    from gateway.gate import Gate

    Asked = tuple[Ticket, Work]
    Ask = Callable[[Body], Awaitable[Asked]]

STRIDES = 8
"""Parts of the longest prompt in which turns go (see `trimming`). An eighth of the history is lost at
most beyond need, a sixteenth on average; in return the cache is of use for an eighth of new turns."""

BYTES_A_TOKEN = 3
"""Of JSON with code or Chinese in it; English prose has four. Only the length of a stride hangs on it."""


LATER = frozenset({Code.NO_BACKEND, Code.CLIENT_LIMIT})
"""Why a model was not looked at now: it may well fit once its server is there, or once it is counted."""


async def settled(
    client: str, sent: Body, ask: Ask, *, trip: Trip, callers: Callers, gate: Gate, told: bool
) -> Asked:
    """What was asked, or what comes of it where it fits nowhere. `ask` reads and counts a body.

    `sent` is the body as it came; `told` is whether the client will hear of it, which it does not
    where the decision is not enforced. Raises what `ask` does, Shed for a model that is not the
    client's, and where even the fewest turns do not fit.
    """
    asked = callers.named(client, sent)
    first = await _walked(ask, asked)
    others = callers.larger(client, sent)
    if not others and not callers.trims_any:
        return first
    misfit = _too_long(gate, first[0])
    if misfit is None:
        return first
    last = nearest = first  # `asked` is the body of `nearest`
    for body in others:
        if (found := await _other(ask, body)) is None:
            continue
        last = found
        other = _too_long(gate, last[0])
        if other is None:
            return last
        if other.needed - other.available < misfit.needed - misfit.available:
            misfit, nearest, asked = other, last, body
    if last is not nearest:  # the trip tells of the model that was asked last
        nearest = await ask(asked)
    work = nearest[1]
    if not callers.trims(client, work.intent, work.counted, trip.request.headers):
        return nearest
    turns = talk(work.intent, asked)
    return nearest if turns is None else await _trimmed(nearest, turns, ask, trip, gate, told=told)


async def _other(ask: Ask, body: Body) -> Asked | None:
    """`ask`, of another model of the same alias; None where that model can not be asked."""
    try:
        return await ask(body)
    except Shed as no:
        if no.refusal.code in LATER:
            raise
        return None  # no way to it for this client or route
    except Invalid:
        return None  # an adapter that no server lists, or token ids beyond its vocabulary


async def _walked(ask: Ask, body: Body) -> Asked:
    """`ask`, of a body that may be nested deeper than Python can walk: the parser reads 1,024 levels."""
    try:
        return await ask(body)
    except RecursionError:
        raise Invalid(TOO_DEEP) from None


def _too_long(gate: Gate, ticket: Ticket) -> Misfit | None:
    """Why a request fits no server it may go to, if that is for its length."""
    books = gate.core.books
    _, misfit = door.demands_of(ticket, books.pools, books.lengths_of(ticket))
    too_long = misfit is not None and misfit.code is Code.CONTEXT_LENGTH_EXCEEDED
    return misfit if too_long else None


async def _trimmed(
    asked: Asked, turns: Talk, ask: Ask, trip: Trip, gate: Gate, *, told: bool
) -> Asked:
    """The request with as few turns less as it takes."""
    ticket, work = asked
    books = gate.core.books
    limit = door.longest_prompt(ticket, books.pools, books.lengths_of(ticket))
    places = turns.cuts(max(1, limit * BYTES_A_TOKEN // STRIDES))
    if not places:
        return asked  # nothing may go

    async def shorter(cut: trimming.Cut) -> Asked:
        return await ask(turns.less(cut))

    async def count(cut: trimming.Cut) -> int:
        ticket, _ = await shorter(cut)
        return ticket.ask.longest

    found = await trimming.least(places, limit, ticket.ask.longest, count)
    last = await shorter(found.cut)
    misfit = _too_long(gate, last[0])
    if misfit is not None:
        trip.counted(work.counted)  # as it came
        refusal = door.never(misfit)
        message = f"even without its older turns it {refusal.message}"
        raise Shed(replace(refusal, message=message), None)
    if told:
        trip.trimmed(found.cut.turns, work.counted.total - last[1].counted.total)
    else:
        trip.counted(work.counted)
    return last
