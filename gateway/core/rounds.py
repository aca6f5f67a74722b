"""What happens by the clock alone: windows of decoding speed, and time in which nobody looked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.pace import WINDOW_S

if TYPE_CHECKING:
    from gateway.core.ledger import PoolLedger
    from gateway.core.pools import Pool

LOOK_S = 0.25
"""While something waits, forecasts are looked at again this often: a stream gives ten tokens
meanwhile, and the engine's ratio falls by a hundredth."""

LEAST_TOKENS = 16
"""A stream with fewer tokens shows its start, not its pace."""


SILENT = 2
"""Windows in a row without a token from which a stream counts as silent: pieces may hold dozens of tokens, and
slow servers send one in seconds."""


def window(place: Pool, now: float) -> None:
    """A pace window of a pool is over: how fast has each stream that decodes been so far?

    Over its life, as its client sees it: in five seconds one long prefill would be all there is.

    Answers that are not streamed show no tokens; they are taken to decode as the others do. So is a stream
    that shows none while its server decodes: engines keep the arguments of a tool back until they are whole,
    thousands of tokens that then come as one piece.
    """
    ledger = place.ledger
    decodes = _decodes(ledger)
    seconds = max(now - place.looked, 0.0)
    place.looked = now
    tpots: list[float] = []
    for ident, hold in ledger.holds.items():
        ledger.follow(ident, hold)
        if hold.prefilling or hold.lingering:
            continue
        if not hold.streamed:
            spent = now - hold.decoding_since
            most = hold.demand.slots * hold.demand.cap
            guess = int(spent * ledger.pace.tokens_per_s) * hold.demand.slots
            ledger.grew(hold, min(guess, most))
            continue
        hold.silent = hold.silent + 1 if hold.seen == hold.looked else 0
        hold.looked = hold.seen
        if hold.silent and hold.timed:
            if decodes and hold.silent >= SILENT:
                more = int(seconds * ledger.pace.tokens_per_s) * hold.demand.slots
                most = hold.demand.slots * hold.demand.cap
                ledger.grew(hold, min(hold.generated + more, most))
            continue
        if hold.timed and hold.each >= LEAST_TOKENS:
            tpots.append((now - hold.decoding_since) / hold.each)
    ledger.pace.window(tpots, ledger.slots)
    ledger.envelope.served(seconds)


def _decodes(ledger: PoolLedger) -> bool:
    """Whether a server has written anything since the last look, or nothing keeps it from that: while it
    reads a long prompt all its streams are silent."""
    reads = False
    for hold in ledger.holds.values():
        reads = reads or hold.prefilling
        if hold.streamed and not hold.prefilling and hold.seen > max(hold.looked, 0):
            return True
    return not reads


def stood_still(place: Pool, seconds: float) -> None:
    """For so long nobody saw what a pool did. Whether it read and wrote all the while, and what of it
    lies in the sockets, is not known: what was under way tells nothing of its speed any more."""
    place.looked += seconds
    for hold in place.ledger.holds.values():
        hold.timed = False


def window_due(now: float) -> float:
    """When the window that begins now is over."""
    return now + WINDOW_S
