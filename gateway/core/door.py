"""What can never run, told at the door with its numbers.

A request is judged against every pool it may use. If it fits the limits of one of them, busy or
not, it may wait; if it fits none it is refused at once with the arithmetic of the pool where it
came closest, since waiting would only make it block others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core import caps
from gateway.core.model import Code, Demand, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.core.books import Pool
    from gateway.core.model import PoolId, Ticket


def demands_of(
    ticket: Ticket, pools: Mapping[PoolId, Pool]
) -> tuple[dict[PoolId, Demand], caps.Misfit | None]:
    """What `ticket` would take on each known pool it fits, or why it fits none.

    Both are empty where none of its pools is known yet.
    """
    demands: dict[PoolId, Demand] = {}
    misfits: list[caps.Misfit] = []
    for ident in ticket.pools:
        if (pool := pools.get(ident)) is None:
            continue
        verdict = caps.decide(ticket.ask, pool.ledger.limits, ticket.client.max_held_tokens)
        if isinstance(verdict, Demand):
            demands[ident] = verdict
        else:
            misfits.append(verdict)
    return demands, None if demands else caps.closest(misfits)


def never(misfit: caps.Misfit) -> Refusal:
    """The refusal of a request that can never run here."""
    if misfit.code is Code.INVALID_REQUEST:
        message = (
            f"asks for {misfit.needed} sequences at once (prompts × n); the server runs "
            f"{misfit.available}"
        )
    else:
        message = f"needs {misfit.needed} tokens; the {misfit.what} here is {misfit.available}"
    return Refusal(misfit.code, message, misfit.needed, misfit.available)
