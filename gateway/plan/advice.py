"""Which fraction, context, caps and running limit for what somebody wants.

The smallest fraction that holds the wanted context is the best one: whatever the pool does not take
is headroom, and headroom is what keeps the process alive. Without a wanted context it is the largest
fraction whose headroom is known to hold. Caps come from the gate's own sum (`core.caps`): N requests
of the usual prompt must fit the pool together, prompts included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.core.caps import MOST_DEFAULT, default_cap, kv_demand, pages
from gateway.core.model import Ask, PoolLimits
from gateway.plan.chain import SLACK, STEP, Chain, Row
from gateway.plan.risk import Risk, risk

GRID = 200
"""Fractions are advised in steps of 0.005: what people write, and 0.1 GiB of a 24 GB card."""

TOP = 0.98
"""Fractions above leave less than the overhead of any server seen."""

REQUESTS = 4
"""Requests at once where nobody says: what the gate's own default cap aims at (`caps.SHARE`)."""

USUAL_PROMPT = 2 * REQUESTS
"""Without a word on the traffic, a prompt is taken to fill an eighth of the context: four such
requests then leave half of it for their answers."""

MOST = 2 * MOST_DEFAULT
"""Twice the 99th percentile of a reasoning model's outputs; answers of 15,181 have been seen."""

LEAST_CAP = 256
"""The gate's `caps.useful_floor`: less is a stub."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants. Tokens; None: as much as is safe, or as is usual."""

    context: int | None = None  # of one request, prompt and answer
    prompt: int | None = None
    requests: int = REQUESTS  # at once


@dataclass(frozen=True, slots=True)
class Advice:
    """What to write on the launch line and into the policy. Tokens, GiB."""

    row: Row  # at the fraction advised
    risk: Risk
    context_length: int  # --context-length, a multiple of 1,024
    prompt: int  # the prompt the rest is computed for
    requests: int  # that many at once
    max_output: int  # max_output_tokens: so much each may write
    default_output: int  # default_output_tokens: for a request without max_tokens
    max_running: int  # --max-running-requests: more can not hold their caps
    reached: bool  # whether what was wanted is there, with a headroom that holds
    why: str  # one sentence


def advise(chain: Chain, chunk_gib: float, wish: Wish) -> Advice | None:
    """Advice for a wish; None where no fraction has a pool. `chunk_gib`: a prefill step's memory."""
    fraction = _for_context(chain, wish.context) if wish.context else _safest(chain, chunk_gib)
    row = chain.row(min(fraction, TOP))
    if row.context_tokens == 0:
        return None
    wanted = math.ceil(wish.context / STEP) * STEP if wish.context else row.context_tokens
    length = min(wanted, row.context_tokens)
    limits = _limits(chain, row, length)
    usual = min(wish.prompt or length // USUAL_PROMPT, length)
    cap = _cap_for(limits, usual, wish.requests, length)
    level = risk(row.headroom_gib, chunk_gib)
    if length < wanted:
        why = f"No fraction up to {TOP:g} holds {wanted:,} tokens; {length:,} is the most."
    elif level is Risk.HIGH:
        why = (
            f"{length:,} tokens leave {row.headroom_gib:.2f} GiB of headroom, and a prefill step "
            f"alone takes {chunk_gib:.2f}: a long prompt will kill the server."
        )
    elif cap < LEAST_CAP:
        why = (
            f"{wish.requests} requests of {usual:,} tokens do not fit the pool together with an "
            "answer each; run fewer at once."
        )
    elif level is Risk.SOME:
        why = f"{row.headroom_gib:.2f} GiB of headroom may hold; less chunk or context is safer."
    else:
        why = f"{row.headroom_gib:.2f} GiB of headroom beside such a chunk has been seen to hold."
    demand = kv_demand(Ask((usual,)), max(cap, LEAST_CAP), limits)
    return Advice(
        row=row,
        risk=level,
        context_length=length,
        prompt=usual,
        requests=wish.requests,
        max_output=max(cap, 0),
        default_output=max(0, min(default_cap(Ask((usual,)), limits), cap)),
        max_running=max(1, limits.kv_tokens // demand),
        reached=length >= wanted and level is not Risk.HIGH and cap >= LEAST_CAP,
        why=why,
    )


def _for_context(chain: Chain, context: int) -> float:
    """The smallest fraction on the grid that holds it; above TOP where none does."""
    needed = chain.fraction_for(math.ceil(context / STEP) * STEP)
    return max(1, math.ceil(round(needed * GRID, 6))) / GRID


def _safest(chain: Chain, chunk_gib: float) -> float:
    """The largest fraction on the grid of low risk; else the least bad with a pool."""
    grid = [step / GRID for step in range(int(TOP * GRID), 0, -1)]
    useful = [f for f in grid if chain.context(f) > 0]
    safe = (f for f in useful if risk(chain.headroom(f), chunk_gib) is Risk.LOW)
    return next(safe, useful[-1] if useful else TOP)


def _limits(chain: Chain, row: Row, context: int) -> PoolLimits:
    kv = row.pool_tokens - chain.page - math.ceil(row.pool_tokens * SLACK)
    return PoolLimits(kv_tokens=max(0, kv), page=chain.page, context=context)


def _cap_for(limits: PoolLimits, prompt: int, requests: int, context: int) -> int:
    """What each of `requests` may write: a multiple of 1,024 where it is that much."""
    share = limits.kv_tokens // requests // limits.page * limits.page
    cap = min(share - pages(prompt, limits.page) - limits.page, context - prompt - 2)
    cap = min(cap, MOST)
    return cap // STEP * STEP if cap >= STEP else cap
