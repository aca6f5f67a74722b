"""Prompts whose first token nobody sees.

Theory. An answer in one piece shows no first token. Its prompt takes its part of the prefill budget until it is
predicted to be read (`ttft`), and where all clients ask so nothing would ever put that prediction right: with
what is assumed at first, 1,000 tokens a second, a card that reads 40,000 would stand still for most of the time.
So these are heard:

- *The engine's counters* (SGLang 0.5.17 and later): tokens read, and the time in which it read. Their ratio is the
  speed; less where prompts are small, as each step has its fixed cost.
- *The engine's count of requests*: where it runs as many sequences as it had been sent, and none waits, it has read
  all that it had been sent. Of those from one on, so many tokens took at most from when that one was sent until then.
- *The whole answer*: its prompt was read by then. Where nothing is generated (embeddings) that is when the first token
  would have come. And it tells how fast it was written, which `pace` and the growth of what runs live by (`rounds`).

These are bounds, but for large counts of the engine's own and for answers of which nothing was generated: a bound is
believed where it says faster, never where slower. Where first tokens of streams are seen (`TtftModel.tested`), these
alone say how fast it is. A belief that is too fast hands prompts over early, which then wait within the engine: their
KV is booked all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.rounds import LEAST_TOKENS

if TYPE_CHECKING:
    from gateway.core.hold import Hold
    from gateway.core.ledger import PoolLedger
    from gateway.core.model import RequestId
    from gateway.core.pools import Pool

COUNTED_TOKENS = 4_096
"""Tokens in a count that says how fast prompts are read, slower too: two of the smallest chunks that SGLang chooses
(2,048). A step has its fixed cost: a genuine 0.5.17 with a small model on two cores counted 11 ms for 2 tokens and 50
for 1,400."""


@dataclass(frozen=True, slots=True)
class Look:
    """What an engine said of a pool, or of one rank of its."""

    at: float  # when it was so, seconds by the clock of decisions
    running: int  # sequences that generate
    waiting: int  # requests within the engine that it has not begun, those it is in the middle of reading left out
    unread: int | None = None  # prompt tokens it has still to read; None: it does not say
    read: int | None = None  # prompt tokens it has read since its start; None: likewise
    read_s: float | None = None  # the time that took, seconds


def looked(pool: Pool, look: Look, now: float) -> bool:
    """The engine said what it holds: give back what prompts took that are read. Whether there were any."""
    counts = _counts(pool, look, now)
    done = _are_read(pool.ledger, look)
    if not done:
        return False
    if not counts:
        left = 0
        for ident in reversed(done):  # the tokens of this one and of all that were sent after it
            hold = pool.ledger.holds[ident]
            left += hold.uncached
            if hold.timed:
                pool.reads_at(left, look.at - hold.since, now)
    for ident in done:
        pool.ledger.prefilled(ident, now)
    pool.reads_less(now)
    return True


def answered(pool: Pool, hold: Hold, now: float, *, scores: bool = False) -> None:
    """A whole answer came to a request. `scores`: of each token of its prompt, which takes longer than to read it."""
    if hold.streamed:
        return
    known = hold.timed and hold.compile_s is None and not hold.prefilling
    if pool.pacing and known and hold.told >= LEAST_TOKENS:
        pool.whole.append((now - hold.decoding_since) / hold.told)
    if hold.demand.cap == 0 and not scores:  # nothing was generated
        pool.has_read(hold, now)
    elif hold.prefilling and hold.timed and hold.compile_s is None and pool.counted is None:
        pool.reads_at(hold.uncached, now - hold.since, now)


def _counts(pool: Pool, look: Look, now: float) -> bool:
    """Learn from the engine's own counters; whether it has any."""
    if look.read is None or not look.read_s:
        return False
    last, last_s = pool.counted or (math.inf, math.inf)
    tokens, seconds = look.read - last, look.read_s - last_s
    begins = tokens < 0 or seconds < 0  # the first look, or another process
    enough = tokens >= COUNTED_TOKENS
    if not begins and seconds > 0.0:
        pool.reads_at(tokens, seconds, now, slower=enough)
    if begins or enough:
        pool.counted = look.read, look.read_s
    return True


def _are_read(ledger: PoolLedger, look: Look) -> list[RequestId]:
    """Requests whose prompts are read for certain and that nobody has told of yet, in the order in which they
    were sent."""
    if look.waiting or look.unread:
        return []
    sent = [(ident, hold) for ident, hold in ledger.holds.items() if hold.since <= look.at]
    if look.running < sum(hold.demand.slots for _, hold in sent):
        return []  # some have not reached it, or it is in the middle of one
    return [
        ident
        for ident, hold in sent
        if hold.prefilling and not hold.streamed and hold.compile_s is None
    ]
