"""How often one client may come back before it was told to, while the gate refuses: a retry budget.

SDKs try each call three times (OpenAI's and Anthropic's: `max_retries` 2), and agents try three times
around the SDK, so that one refused call becomes nine, each read and counted in full. Who comes back
when it was told to does nobody harm and is not meant here, however often. What is bounded are *early*
retries: the same request again (its body, by a keyed digest), or one that says it is a retry
(`x-stainless-retry-count`) while every time this client was told is still ahead.

The budget is Finagle's (`RetryBudget`, 2016): retries may be a share of what is asked anew, over the
last ten seconds, and a reserve on top so that a client that asks little may try at all. Here both are
sums that fade (e to the minus t / TTL_S), two numbers a client:

    early retries, this one included  ≤  reserve + SHARE × requests that were none     (rounded)

gRPC's throttling (proposal A6: tokens that failures take and successes give back) and the SRE book's
(chapter 21: a tenth of a client's requests may be retries) do the same on the side of the caller, who
may leave a call out. A gate can not; what it can do is to make the answer cheap and the time longer.
So beyond the budget the time told doubles with each early retry (`level`), to the 59 s that SDKs obey,
and what is known to find no room still (`crowd`) is told so without being parsed. Nothing is refused
here: a retry for which there is room is admitted, and one that was admitted is not counted.

**Bound: within any TTL_S no more than e × (reserve + ½ + SHARE × the requests that were none, fading)
early retries are refused at the usual price.** And who stops coming early is as before after
TTL_S × ln((reserve + DOUBLINGS) ÷ (reserve − ½)), whatever was before.

Pure: `now` is passed in, seconds of any monotonic clock. Bounded: CLIENTS clients, of each MARKS
requests; the oldest go, and are then taken for new ones. A client is a name of the policy: everybody
who shares it shares its budget.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.core.drainrate import JITTER, LEAST_S, MOST_S
from gateway.core.recall import EARLY, KEEP_S

if TYPE_CHECKING:
    from gateway.core.model import PoolId, Ticket

SHARE = 0.2
"""Early retries for each request that is none. Finagle's default; the SRE book's 0.1 is for callers that
are one's own."""

TTL_S = 10.0
"""How long a request counts: Finagle's default. All tries of an SDK's call are over within it when no time
is obeyed (it waits 0.5 and 1 s), and so are those of two layers."""

RESERVE = 4
"""Early retries without any share: two requests of an SDK that tries each twice more and obeys no time.
Finagle's ten a second are for a service's thousands of calls; nine tries of one call are beyond this."""

DOUBLINGS = 6
"""From 1 s to the 59 s that SDKs obey, and as much as an overdraft may grow: a client that hammered for an
hour is as before as soon as one that did for a minute."""

MARKS = 256
"""Refused requests remembered of one client: as many as the queue takes by default. What is refused beyond
that within a minute is a flood of different ones."""

CLIENTS = 256
"""Clients remembered that were refused lately; with all their requests some 40 MB (618 bytes each)."""


@dataclass(frozen=True, slots=True)
class Told:
    """A request that was refused, and what it was told."""

    at: float
    wait_s: float
    usual_s: float  # what it would have been told within the budget
    times: int = 1  # it was refused
    ticket: Ticket | None = None  # None: what it asks for was not found out
    opened: frozenset[PoolId] = frozenset()  # pools that took work then

    @property
    def due(self) -> float:
        """When it may come back: clients round down."""
        return self.at + EARLY * self.wait_s

    @property
    def until(self) -> float:
        """How long it is remembered."""
        return self.at + self.wait_s + KEEP_S


@dataclass(frozen=True, slots=True)
class Again:
    """A request that comes again."""

    early_s: float = 0.0  # before it may; 0: it came when it was told to
    level: int = 0  # doublings of the time it is told where it is refused; 0: within the budget
    told: Told | None = None  # None: it says itself that it is a retry

    @property
    def early(self) -> bool:
        """Whether it counts against the budget where it is refused."""
        return self.early_s > 0


@dataclass(slots=True)
class _Client:
    at: float
    asked: float = 0.0  # requests that were no early retry, fading
    retried: float = 0.0  # early retries that were refused, fading
    until: float = -math.inf  # it was refused lately, until then
    told: OrderedDict[bytes, Told] = field(default_factory=OrderedDict)

    def fade(self, now: float) -> None:
        keep = math.exp(-max(0.0, now - self.at) / TTL_S)
        self.asked *= keep
        self.retried *= keep
        self.at = max(now, self.at)


class Budgets:
    """Of all clients. `reserve` is the policy's, 1 or more."""

    def __init__(self, reserve: int = RESERVE) -> None:
        self._reserve = reserve
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    def knows(self, client: str, now: float) -> bool:
        """Whether this client was refused lately: else nothing is to be looked for."""
        found = self._clients.get(client)
        if found is None:
            return False
        if found.until < now:
            del self._clients[client]
            return False
        return True

    def met(
        self, client: str, mark: bytes | None, now: float, *, arrived: float, says_so: bool
    ) -> Again | None:
        """A request comes; None: it is none that was refused. `arrived`: when it began to come: a request
        that was under way when another was refused is no answer to that."""
        known = self._clients.get(client)
        if known is None:
            return None
        known.fade(now)
        told = None if mark is None else known.told.get(mark)
        if told is not None and now > told.until:
            told = None
        if told is not None and arrived <= told.at:
            told, says_so = None, False
        early_s = self._early_s(known, told, now, says_so=says_so)
        if early_s <= 0:
            known.asked += 1
            return None if told is None else Again(told=told)
        return Again(early_s, self._level(known), told)

    def refused(
        self,
        client: str,
        mark: bytes | None,
        wait_s: float,
        now: float,
        *,
        again: Again | None,
        ticket: Ticket | None = None,
        opened: frozenset[PoolId] = frozenset(),
    ) -> None:
        """A request was refused and told to come back after `wait_s`. Without a mark it is not known by
        its body."""
        known = self._clients.get(client)
        if known is None:
            known = self._clients[client] = _Client(now, asked=1.0)
            if len(self._clients) > CLIENTS:
                self._clients.popitem(last=False)
        self._clients.move_to_end(client)
        known.fade(now)
        if again is not None and again.early:
            known.retried = min(known.retried + 1, self._may(known) + DOUBLINGS)
        known.until = max(known.until, now + wait_s + KEEP_S)
        if mark is None:
            return
        before = known.told.pop(mark, None)
        level = 0 if again is None else again.level
        usual_s = wait_s / 2.0**level
        if level and before is not None:  # it may have been more than can be told
            usual_s = before.usual_s
        times = 1 if before is None else before.times + 1
        known.told[mark] = Told(now, wait_s, usual_s, times, ticket, opened)
        if len(known.told) > MARKS:
            known.told.popitem(last=False)

    def _may(self, known: _Client) -> float:
        return self._reserve + SHARE * known.asked

    def _level(self, known: _Client) -> int:
        beyond = known.retried + 1 - self._may(known)
        return min(max(0, round(beyond)), DOUBLINGS)

    def _early_s(self, known: _Client, told: Told | None, now: float, *, says_so: bool) -> float:
        """How much too early it comes; 0 where it is none, or may."""
        if told is not None:
            return max(0.0, told.due - now)
        if not says_so:
            return 0.0
        ahead = [one.due for one in known.told.values() if one.until >= now]
        return max(0.0, min(ahead, default=now) - now)


def longer_s(told: Told, level: int, jitter: float) -> float:
    """Seconds to tell a request that was `told` something before, beyond the budget; `jitter` in [0, 1).

    What it would be told usually, doubled `level` times, and up to a quarter less: at the 59 s that are
    the most, all who were refused in one second would come back in one.
    """
    longest = min(max(told.usual_s, LEAST_S) * 2.0**level, MOST_S)
    return float(math.ceil(longest * (1 - JITTER * jitter)))
