"""What cap a request gets on one pool, and what that makes it demand.

The cap bounds the worst case: whatever the client sent, the engine is told a number, and the
ledger holds that number. Three rules, in this order:

1. *Room.* What the context, the pool and policy leave for the output of one sequence.
2. *Want.* The client's own cap; where it sent none, the pool's default.
3. The cap is the smaller of the two. If the room is less than a useful output the request is
   refused with the numbers instead of being answered with a stub.

KV demand = sum over prompts × n of pages(prompt) + pages(cap) + one page (+ what speculative
decoding looks ahead). The engine charges a candidate ceil_page(prompt) + cap + page (sglang
0.5.12-0.5.23, PrefillAdder), so what is admitted here never waits for memory there.

Under forecast the charge is the same with the expected output in place of the cap. The cap stays:
it bounds the worst case, the forecast prices the likely one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway.core.mirror import CLIP
from gateway.core.model import Ask, Code, Demand, PoolLimits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.core.lengths import Lengths

EDGE = 2
"""Tokens left free at the end of the context. The engine clips the output to
max_req_len - prompt - 1 with max_req_len = context - 1 (0.5.6-0.5.23): asking for more returns
fewer tokens than promised, and one more is a 400."""

SHARE = 4
"""A request without a cap may take a quarter of the pool, prompts and pages included, so that
four such requests run at once."""

FLOOR_SHARE = 8
LEAST_DEFAULT = 8_192
"""... but its output is never cut below 8,192 tokens (an eighth of the pool where that is less):
a whole source file written by an agent fits, and 93 % of the outputs of a reasoning model do
(ServeGen deepseek-r1: p90 6,821)."""

MOST_DEFAULT = 16_384
"""Above the p99 (14,446) of those reasoning outputs; more is a promise nobody asked for."""

TAIL, TAIL_ROOM = 0.999, 1.25
"""Under forecast a client's own tail replaces the default once it is known: a quarter above the
length that one answer in a thousand passes. The engine reserves by the cap (see mirror)."""

LEAST_TAIL = 2_048
"""... but never below: an answer of a new kind must not be cut because the others were short."""

TAIL_KNOWN = 100.0
"""Answers (fading, see lengths: at most 300) before a tail is its client's own."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a request can never run on a pool."""

    code: Code
    needed: int
    available: int
    what: str  # the limit in words: "context", "KV pool", "running requests", ...


def pages(tokens: int, page: int) -> int:
    """Tokens rounded up to whole pages."""
    return -(-tokens // page) * page


def kv_demand(ask: Ask, cap: int, limits: PoolLimits) -> int:
    """KV tokens that `ask` with output `cap` may come to occupy, in whole pages."""
    page = limits.page
    each = pages(cap + limits.speculative, page) + page
    if len(ask.prompts) == 1:
        return ask.n * (pages(ask.prompts[0], page) + each)
    return ask.n * sum(pages(prompt, page) + each for prompt in ask.prompts)


def default_cap(ask: Ask, limits: PoolLimits, lengths: Lengths | None = None) -> int:
    """The cap for a request that brought none (before room is considered)."""
    if limits.default_output is not None:
        return limits.default_output
    if ask.usual is not None:
        return ask.usual
    if lengths is not None and lengths.finished >= TAIL_KNOWN:
        tail = math.ceil(TAIL_ROOM * lengths.quantile(TAIL))
        return min(max(tail, LEAST_TAIL), MOST_DEFAULT)
    share = _room_in(limits.kv_tokens // SHARE, ask, limits)
    least = min(LEAST_DEFAULT, limits.kv_tokens // ask.sequences // FLOOR_SHARE)
    return min(max(share, least), MOST_DEFAULT)


def decide(
    ask: Ask,
    limits: PoolLimits,
    client_tokens: int | None = None,
    lengths: Lengths | None = None,
) -> Demand | Misfit:
    """The demand of `ask` on a pool with `limits`, or why it can never run there.

    `client_tokens` is the most KV this client may ever hold (None: no such limit). `lengths` is
    what is known of its answers, for pools that forecast.
    """
    if not limits.forecast:
        lengths = None
    if ask.sequences > limits.slots:
        return Misfit(Code.INVALID_REQUEST, ask.sequences, limits.slots, "running requests")
    longest_allowed, what = _longest_allowed(ask, limits)
    if ask.longest > longest_allowed:
        return Misfit(Code.CONTEXT_LENGTH_EXCEEDED, ask.longest, longest_allowed, what)

    kv_tokens, what_kv = limits.kv_tokens, "KV pool"
    if client_tokens is not None and client_tokens < kv_tokens:
        kv_tokens, what_kv = client_tokens, "client's share of the KV pool"
    room_context = limits.context - EDGE - limits.speculative - ask.longest
    room_pool = _room_in(kv_tokens, ask, limits)
    room = min(room_context, room_pool)
    wanted = default_cap(ask, limits, lengths) if ask.cap is None else ask.cap
    if limits.max_output is not None:
        wanted = min(wanted, limits.max_output)
    floor = _floor(ask.cap, wanted, limits.useful_floor)
    if room < floor:
        if room_pool <= room_context:
            needed = kv_demand(ask, floor, limits)
            return Misfit(Code.CONTEXT_LENGTH_EXCEEDED, needed, kv_tokens, what_kv)
        needed = ask.longest + floor + EDGE + limits.speculative
        return Misfit(Code.CONTEXT_LENGTH_EXCEEDED, needed, limits.context, "context")
    return _demand(ask, min(wanted, room), limits, lengths)


def _longest_allowed(ask: Ask, limits: PoolLimits) -> tuple[int, str]:
    """The longest prompt that may be sent, and what says so."""
    # The engine refuses prompt >= max_req_input_len.
    known = [(limits.max_input - 1, "longest input")]
    if limits.max_prompt is not None:
        known.append((limits.max_prompt, "longest prompt allowed"))
    if ask.images and limits.max_image_prompt is not None:
        known.append((limits.max_image_prompt, "longest prompt allowed with images in it"))
    return min(known)


def longest_prompt(
    ask: Ask,
    limits: PoolLimits,
    client_tokens: int | None = None,
    lengths: Lengths | None = None,
) -> int:
    """The longest prompt with which `ask`, of one prompt, fits a pool and leaves a real answer room.

    0 where none does. Room is LEAST_TAIL (an eighth of context and pool where that is less), or half
    of what the client asked for: a prompt that was shortened should not be answered with a stub.
    """
    small = min(limits.kv_tokens, limits.context) // FLOOR_SHARE
    roomy = replace(limits, useful_floor=max(limits.useful_floor, min(LEAST_TAIL, small)))

    def too_long(prompt: int) -> bool:
        wanted = replace(ask, prompts=(prompt,))
        return isinstance(decide(wanted, roomy, client_tokens, lengths), Misfit)

    most = min(limits.context, limits.kv_tokens)
    return max(0, bisect_left(range(most + 1), x=True, lo=1, key=too_long) - 1)


def _demand(ask: Ask, cap: int, limits: PoolLimits, lengths: Lengths | None) -> Demand:
    """All ledgers of `ask` with output `cap`."""
    prefill = ask.n * sum(ask.prompts)
    worst = kv_demand(ask, cap, limits)
    if lengths is None:
        return Demand(cap=cap, kv=worst, prefill=prefill, slots=ask.sequences)
    prompt_kv = kv_demand(ask, 0, limits)
    return Demand(
        cap=cap,
        kv=kv_demand(ask, min(cap, math.ceil(lengths.mean(cap))), limits),
        prefill=prefill,
        slots=ask.sequences,
        worst=worst,
        start=prompt_kv + ask.sequences * min(cap, CLIP),
        prompt_kv=prompt_kv,
    )


def closest(misfits: Iterable[Misfit]) -> Misfit | None:
    """The misfit that came nearest to fitting: the one worth telling the client about."""
    return min(misfits, key=lambda m: m.needed - m.available, default=None)


def _room_in(kv_tokens: int, ask: Ask, limits: PoolLimits) -> int:
    """Largest cap with which `ask` fits into `kv_tokens`; negative when not even the prompts do."""
    page = limits.page
    prompts = ask.n * sum(pages(prompt, page) for prompt in ask.prompts)
    each = (kv_tokens - prompts) // ask.sequences - page
    return each // page * page - limits.speculative


def _floor(asked: int | None, wanted: int, useful: int) -> int:
    """The smallest output worth starting: a client that asked for little gets as little as half."""
    if asked is None:
        return min(useful, wanted)
    return min(useful, (wanted + 1) // 2)
