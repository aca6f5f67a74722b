"""A pool: its ledger, whether work may start there, and where its server is in what it was sent.

Whatever a server sends comes with the end of one of its steps. From when that was, and from what was sent
to it, `predict` says what a request sent now would wait for (see `ttft`); its first token lets that learn.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.core.compiling import Compiling
from gateway.core.prefix import Prefixes
from gateway.core.ttft import LEAST_S, TtftModel

if TYPE_CHECKING:
    from gateway.core.flows import Entry
    from gateway.core.hold import Hold
    from gateway.core.ledger import PoolLedger
    from gateway.core.model import Demand, Grammar, Lead, RequestId, Ticket
    from gateway.core.ttft import Prediction

PREFILL_RATE = 1_000.0
"""Prompt tokens per second assumed until one was measured: the low end of a 24 GB card with a
27B model."""

LEARN = 0.2
"""Weight of the newest prefill-rate sample: five samples forget a cold start."""


@dataclass(slots=True)
class Pool:
    """A pool's ledger and whether work may start there."""

    ledger: PoolLedger
    open: bool = False
    paused_until: float = 0.0
    fence: RequestId | None = None
    prefill_rate: float = PREFILL_RATE
    ttft: TtftModel = field(default_factory=lambda: TtftModel(PREFILL_RATE))
    prefixes: Prefixes = field(default_factory=Prefixes)
    compiling: Compiling = field(default_factory=Compiling)
    kinds: Counter[str] = field(default_factory=Counter)  # requests held, by adapter
    scores: int = 0  # requests held that ask for scores
    grants: int = 0  # since a forecast was last watched
    pacing: bool = False  # a PACE timer is set
    looked: float = 0.0  # when the last window of pace began
    started: int = 0  # requests, so far
    until: float = math.inf  # how long the ceiling holds; after that nothing is granted
    read_by: float = 0.0  # when all prompts sent so far were predicted to be read
    counted: tuple[int, float] | None = None  # by its engine: prompt tokens read, and in what time
    whole: list[float] = field(default_factory=list)
    """Of answers in one piece that have come, seconds per token: what no window has judged yet."""
    heard: float = -math.inf  # when the server was last heard: one of its steps ended then

    def fits(self, demand: Demand, entry: Entry) -> bool:
        """Whether there is room for all that a request needs."""
        return self.seats(entry.ticket) and self.ledger.fits(demand, entry.lengths)

    def only_prefill_lacks(self, demand: Demand, entry: Entry) -> bool:
        """Whether it would start as soon as the prompts in prefill are in."""
        return self.seats(entry.ticket) and self.ledger.only_prefill_lacks(demand, entry.lengths)

    def seats(self, ticket: Ticket) -> bool:
        """Whether the server takes this request beside those it runs: its adapter is one of them or one more than
        there are, and it is of their sort. Before 0.5.17 its scheduler may end where there are more adapters
        (sgl-project/sglang#23141, #25865); since then they wait within it, before everybody else."""
        if self.keeps_apart(ticket):
            return False
        return ticket.adapter in self.kinds or len(self.kinds) < self.ledger.limits.kinds

    def keeps_apart(self, ticket: Ticket) -> bool:
        """Whether it runs words and this asks for scores, or the other way, which would be its end."""
        others = len(self.ledger.holds) - self.scores if ticket.scores else self.scores
        return others > 0 and self.ledger.limits.scores_apart

    def compiles(self, grammar: Grammar | None, demand: Demand, now: float) -> bool:
        """Whether a request with this grammar may start as far as that goes (see `compiling`).

        Prompts that wait for grammars take nothing of the prefill budget, and are all read when these are
        done: so they are no more than the budget either.
        """
        if grammar is None or not self.compiling.is_new(grammar):
            return True
        limits = self.ledger.limits
        wait = sum(
            hold.demand.prefill
            for hold in self.ledger.holds.values()
            if hold.prefilling and hold.compile_s is not None
        )
        if wait and wait + demand.prefill > limits.prefill_tokens:
            return False
        return self.compiling.fits(grammar, limits.compile_s, now)

    def reading(self, demand: Demand, lead: Lead) -> tuple[int, int]:
        """Of a request's prompt tokens: (what its server may have in its cache, what it likely reads)."""
        hoped = min(self.prefixes.known(lead), demand.prefill)
        likely = int(hoped * self.prefixes.trust)
        return hoped, max(demand.prefill - likely, min(demand.prefill, 1))

    def predict(self, demand: Demand, left: int, now: float) -> Prediction:
        """When the first token would come of a request sent now that has `left` tokens to be read."""
        if self.ledger.uncached:
            wait, rest = max(0.0, self.read_by - now), 0.0
        else:
            wait, rest = 0.0, self._rest(now) if self.ledger.holds else 0.0
        return self.ttft.predict(left, demand.prefill, wait, rest, timely=now == self.heard)

    def reads(self, demand: Demand, left: int, now: float, *, waits: bool = False) -> Prediction:
        """The same, and it is sent: what comes after it waits until it is read; unless that `waits` for its
        grammar, and nobody for it."""
        told = self.predict(demand, left, now)
        if not waits:
            self.read_by = max(self.read_by, now + told.likely)
        return told

    def reads_less(self, now: float) -> None:
        """A prompt is read, or gone: what is waited for is no more than what the others take, each alone.
        One that left at once, or that the server had in a cache nobody knew of, is not waited for."""
        left_s, least_s = 0.0, self.read_by - now
        for hold in self.ledger.holds.values() if self.ledger.uncached else ():
            if left_s >= least_s:
                return  # it is no less: hundreds may be read at once, and each step ends some
            if hold.prefilling and hold.compile_s is None and hold.prediction is not None:
                left_s += self.ttft.alone_s(hold.prediction)
        self.read_by = min(self.read_by, now + left_s)

    def has_read(self, hold: Hold, now: float) -> None:
        """The first token of a request came: learn from it."""
        self.heard = now
        if not hold.timed or hold.compile_s is not None:
            return
        took = max(now - hold.since, LEAST_S)
        self.prefill_rate += LEARN * (hold.uncached / took - self.prefill_rate)
        if hold.prediction is not None:
            self.ttft.learn(hold.prediction, took, now)

    def read_in(self, told: Prediction, left: int) -> float:
        """Seconds until a prompt of which nobody sees the first token is taken to be read: as predicted, but no
        longer than at the pace of all so far. Of small ones predictions learn little of how long a large one takes."""
        return min(told.likely, told.wait_s + left / max(self.prefill_rate, 1.0))

    def reads_at(self, tokens: float, seconds: float, now: float, *, slower: bool = False) -> None:
        """So many prompt tokens were read in so long at most, or, where it may be `slower` than believed, just
        so long (see `unseen`). Nothing is to be learned of it where first tokens tell."""
        if tokens <= 0 or self.ttft.tested(now):
            return
        rate = tokens / max(seconds, LEAST_S)
        self.prefill_rate = rate if slower else max(rate, self.prefill_rate)
        self.ttft.reads_at(rate, slower=slower)

    def first_token_s(self, demand: Demand, lead: Lead, now: float) -> float:
        """The same in seconds, as is likely."""
        return self.predict(demand, self.reading(demand, lead)[1], now).likely

    def alone_s(self, demand: Demand, lead: Lead) -> float:
        """The same for one that has the server for itself."""
        return self.ttft.predict(self.reading(demand, lead)[1], demand.prefill, 0.0, 0.0).likely

    def _rest(self, now: float) -> float:
        """Seconds that the decode step in progress likely goes on."""
        step, since = 1.0 / self.ledger.pace.tokens_per_s, now - self.heard
        return step - since if since < step else step / 2.0
