"""What can never run, told at the door with its numbers.

A request is judged against every pool it may use. If it fits the limits of one of them, busy or
not, it may wait; if it fits none it is refused at once with the arithmetic of the pool where it
came closest, since waiting would only make it block others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.core import caps
from gateway.core.model import Code, Demand, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.core.lengths import Lengths
    from gateway.core.model import ClientRule, PoolId, PoolLimits, Ticket
    from gateway.core.pools import Pool
    from gateway.core.quota import Spent


def demands_of(
    ticket: Ticket, pools: Mapping[PoolId, Pool], lengths: Lengths
) -> tuple[dict[PoolId, Demand], caps.Misfit | None]:
    """What `ticket` would take on each known pool it fits, or why it fits none.

    Both are empty where none of its pools is known yet.
    """
    demands: dict[PoolId, Demand] = {}
    misfits: list[caps.Misfit] = []
    for ident in ticket.pools:
        if (pool := pools.get(ident)) is None:
            continue
        limits = _narrowed(pool.ledger.limits, ticket.client)
        verdict = caps.decide(ticket.ask, limits, ticket.client.max_held_tokens, lengths)
        if isinstance(verdict, Demand):
            demands[ident] = verdict
        else:
            misfits.append(verdict)
    return demands, None if demands else caps.closest(misfits)


def longest_prompt(ticket: Ticket, pools: Mapping[PoolId, Pool], lengths: Lengths) -> int:
    """The longest prompt with which `ticket`, of one prompt, fits one of its pools, see `caps`."""
    known = [pools[ident].ledger.limits for ident in ticket.pools if ident in pools]
    held = ticket.client.max_held_tokens
    longest = (
        caps.longest_prompt(ticket.ask, _narrowed(limits, ticket.client), held, lengths)
        for limits in known
    )
    return max(longest, default=0)


def _narrowed(limits: PoolLimits, client: ClientRule) -> PoolLimits:
    """The limits of a pool as they are for one client: its own default, the smaller maximum."""
    if client.default_output is None and client.max_output is None:
        return limits
    known = [most for most in (limits.max_output, client.max_output) if most is not None]
    default = client.default_output
    return replace(
        limits,
        default_output=limits.default_output if default is None else default,
        max_output=min(known, default=None),
    )


def over_quota(spent: Spent) -> Refusal:
    """The refusal of a client that has used up its tokens. Without an end of its window it names no
    time: its own requests under way will end and show what they really took."""
    others = (
        f" ({spent.elsewhere} of these in other processes of this gate)" if spent.elsewhere else ""
    )
    if spent.ends_in_s is None:
        message = (
            f"{spent.used} tokens used and {spent.under_way} expected by your requests under way"
            f"{others} reach your quota of {spent.tokens}"
        )
    else:
        message = (
            f"{spent.used} tokens used of your quota of {spent.tokens}{others}; the next window begins "
            f"in {spent.ends_in_s:.0f} s"
        )
    left = max(0, spent.tokens - spent.used)
    return Refusal(
        Code.QUOTA_EXCEEDED,
        message,
        available=left,
        eta_s=spent.ends_in_s,
        retry_after_s=spent.ends_in_s,
    )


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
