"""Where requests wait to hear whether a server is there.

When the gate is started, when a server is added, and when a connection that broke has made one doubtful,
it is a matter of moments to know. Who comes meanwhile is not sent away for it: it waits, in the queue
like all others (`core.bounds`), so that it is seen there and held to the same bounds.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from gateway.core.model import Ask, RequestId, Ticket
from gateway.edge import ids, models
from gateway.edge.backend import DOUBT_S
from gateway.edge.names import Names
from gateway.edge.turnstile import Turnstile
from gateway.tasks import in_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.core.model import ClientRule
    from gateway.edge.backend import Backend
    from gateway.edge.backends import Fleet
    from gateway.gate import Gate

    Which = Callable[[], list[Backend]]

UNKNOWN = Ask(())
"""What a request wants that has not been counted."""


class Lobby:
    """See the module. Its answers are true at once, and no longer than until the next await."""

    def __init__(self, gate: Gate, fleet: Fleet) -> None:
        self.turnstile = Turnstile()
        self._gate = gate
        self._fleet = fleet
        self.names = Names()

    async def found(
        self, which: Which, ident: RequestId, rule: ClientRule, size: int
    ) -> list[Backend]:
        """The servers that `which` says, once one of them is ready, or none is that may be in a moment.

        It is asked for the request `ident`, of a client with that rule and a body of `size` bytes. Asked
        anew with all that becomes known: what a server is called, that one was taken out or added.
        Raises Shed where the queue has no place for it, and what `which` raises.
        """
        backends = which()
        if _soon(backends):  # nearly never
            await self._wait(which, Ticket(ident, rule, UNKNOWN, (), size))
            await self.turnstile.through(rule.name, size)  # all of them have heard it
            backends = which()
        return backends

    async def still_there(self, ticket: Ticket) -> None:
        """Wait likewise where all that a ticket names have come into doubt since it was written. Who is
        away then, the gate tells."""
        names = [pool.backend for pool in ticket.pools]

        def there() -> list[Backend]:
            known = self._fleet.backends
            return [known[name] for name in names if name in known]

        await self.found(there, ticket.id, ticket.client, ticket.body_bytes)

    async def for_model(self, model: str | None, rule: ClientRule, size: int) -> list[Backend]:
        """The servers that may be asked for a model, by a request that has no other name. Who is away
        all the same, the count tells. Raises Shed, and Invalid for an adapter that is not there."""
        await self.names.for_model(self._fleet, model)
        which = partial(models.serving, self._fleet, model)
        return await self.found(which, RequestId(ids.drawn()), rule, size)

    async def _wait(self, which: Which, ticket: Ticket) -> None:
        refused = self._gate.attend(ticket)
        try:
            async with in_time(DOUBT_S):
                while _soon(which()):
                    news = self._fleet.news
                    await asyncio.wait((news, refused), return_when=asyncio.FIRST_COMPLETED)
                    if refused.done():
                        refused.result()  # raises Shed
        except TimeoutError:
            pass
        finally:
            self._gate.leave(ticket.id)
            del refused  # it holds what it raised, which has passed this frame, and so holds that


def _soon(backends: list[Backend]) -> bool:
    """Whether none of them is ready, and one may be in a moment."""
    return not any(one.ready for one in backends) and any(one.expected for one in backends)
