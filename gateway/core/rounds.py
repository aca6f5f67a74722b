"""What happens by the clock alone: windows of decoding speed, and time in which nobody looked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.pace import FEWEST, WINDOW_S

if TYPE_CHECKING:
    from gateway.core.ledger import PoolLedger
    from gateway.core.pools import Pool

LOOK_S = 0.25
"""While something waits, forecasts are looked at again this often: a stream gives ten tokens
meanwhile, and the engine's ratio falls by a hundredth."""

LEAST_TOKENS = 16
"""A stream with fewer tokens shows its start, not its pace."""


UNSEEN = 1.25
"""Times the usual speed at which an answer in one piece is taken to grow. The usual speed itself meets the sum of all
(1.006 of it), but not each: what the gate then lets go waits within the engine. In the laboratory, a 24 GB card at 1.5 times
its capacity where nobody streams, goodput was 0.91 of that with streams at 1.0, 0.98 at 1.25, 1.0 at 1.5; with long
thoughts 0.96 at 1.25, 0.91 at 1.5 (medians of two or three seeds)."""

SILENT = 2
"""Windows in a row without a token from which a stream counts as silent: pieces may hold dozens of tokens, and
slow servers send one in seconds."""


def window(place: Pool, now: float) -> None:
    """A pace window of a pool is over: how fast has each stream that decodes been so far?

    Over its life, as its client sees it: in five seconds one long prefill would be all there is.

    Answers that are not streamed show no tokens; they are taken to decode as the others do, and each tells how fast it
    was when it has come: where nobody streams, all that is known of the speed. So is a stream
    that shows none while its server decodes: engines keep the arguments of a tool back until they are whole,
    thousands of tokens that then come as one piece.
    """
    ledger = place.ledger
    decodes = _decodes(ledger)
    seconds = max(now - place.looked, 0.0)
    place.looked = now
    tpots: list[float] = []
    unseen = 0
    for ident, hold in ledger.holds.items():
        ledger.follow(ident, hold)
        if hold.prefilling or hold.lingering:
            continue
        if not hold.streamed:
            spent = now - hold.decoding_since
            most = hold.demand.slots * hold.demand.cap
            guess = int(spent * ledger.pace.tokens_per_s * UNSEEN) * hold.demand.slots
            ledger.grew(hold, min(guess, most))
            unseen += 1
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
    crowd = len(tpots) + max(unseen, len(place.whole))
    if len(tpots) + len(place.whole) >= min(FEWEST, crowd):
        tpots += place.whole
        place.whole = []
    ledger.pace.window(tpots, ledger.slots, crowd)
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
