"""What other processes of the gate say of themselves: who used how much, and what died with whom.

Budgets of servers are shared by leases, exactly. What is here is shared by hearsay: each process writes
down now and then what its clients have used and hold, and which requests were in flight at deaths, and
reads what the others wrote. Nothing waits for it, so it is always some moments old. That is enough for
what counts in hours (a quota) or in deaths (the quarantine); how much may slip through is said there,
and tested.

Clocks differ between machines, so what is written down are ages. Times in here are this process's own.

What is a fact stays one: tokens that were used count until their window ends, a death for as long as
deaths count, also when their writer is gone or the store is. What is only so at a moment (tokens held
and under way) counts for `FRESH_S` after it was written, and no longer: whoever has fallen silent must
not keep a client from its own limits for ever. Pure: `now` is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FRESH_S = 5.0
"""How long what somebody held counts after he said so. He says it each second: three times may be lost."""

MOST = 64
"""Writers that are remembered; whoever wrote longest ago goes first. More than gates and workers that
anybody runs, with some that ended since."""

CLIENTS = 256
"""Clients in one document; those with least go first. A policy of so many with limits has not been seen."""

MARKS = 256
"""Marks in one document: of requests in flight at two deaths first, then of the latest; the others go. A
full queue dies once; all of it is some 15 kB."""


@dataclass(frozen=True, slots=True)
class Use:
    """Tokens of one client at one process."""

    used: int = 0  # charged in the window that is open
    began: float | None = None  # when that window did; None: none is open
    under_way: int = 0  # held by its requests, or needed by those that wait, where it has a quota
    held: int = 0  # reserved by its running requests

    @property
    def tokens(self) -> int:
        """What counts when there is not room for all."""
        return self.used + max(self.under_way, self.held)


@dataclass(frozen=True, slots=True)
class Strikes:
    """Deaths at which a request was in flight."""

    deaths: int
    last: float
    start: str = ""
    """Which start of which server the last one ended: the same death has the same for all who saw it."""


@dataclass(frozen=True, slots=True)
class Words:
    """What one process says of itself, written at `at`."""

    at: float
    until: float  # after that nothing in it is of any more use
    clients: Mapping[str, Use] = field(default_factory=dict)
    strikes: Mapping[bytes, Strikes] = field(default_factory=dict)
    served: Mapping[bytes, float] = field(default_factory=dict)
    """Requests that others have strikes of, by when they were answered here."""

    def bounded(self) -> Words:
        """So much of it as others are told."""
        most = sorted(self.clients, key=lambda who: self.clients[who].tokens, reverse=True)
        worst = sorted(
            self.strikes,
            key=lambda mark: (self.strikes[mark].deaths > 1, self.strikes[mark].last),
            reverse=True,
        )
        latest = sorted(self.served, key=lambda mark: self.served[mark], reverse=True)
        return Words(
            self.at,
            self.until,
            {who: self.clients[who] for who in most[:CLIENTS]},
            {mark: self.strikes[mark] for mark in worst[:MARKS]},
            {mark: self.served[mark] for mark in latest[:MARKS]},
        )


class Others:
    """The latest words of each. One for all that counts them."""

    def __init__(self) -> None:
        self._of: dict[str, Words] = {}
        self.held: dict[str, int] = {}
        """Tokens that each client holds elsewhere, as of the last `look`."""

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Words]:
        return iter(self._of.values())

    def heard(self, who: str, words: Words) -> None:
        """What `who` says now; what he said before is replaced."""
        self._of[who] = words
        if len(self._of) > MOST:
            del self._of[min(self._of, key=lambda one: self._of[one].at)]

    def fresh(self, now: float) -> int:
        """How many have spoken of late."""
        return sum(now - words.at <= FRESH_S for words in self)

    def look(self, now: float) -> None:
        """Add up anew what is held, and forget what is over."""
        for who in [who for who, words in self._of.items() if words.until <= now]:
            del self._of[who]
        held: dict[str, int] = {}
        for words in self:
            if now - words.at <= FRESH_S:
                for who, use in words.clients.items():
                    if use.held:
                        held[who] = held.get(who, 0) + use.held
        self.held = held

    def use(self, client: str, window_s: float, now: float) -> Use:
        """What a client with a quota has used and has under way elsewhere, and when the earliest of the
        windows that are open began."""
        used = under_way = 0
        began: float | None = None
        for words in self:
            if (use := words.clients.get(client)) is None:
                continue
            if use.began is not None and now < use.began + window_s:
                used += use.used
                began = use.began if began is None else min(began, use.began)
            if now - words.at <= FRESH_S:
                under_way += use.under_way
        return Use(used, began, under_way)

    def struck(self, mark: bytes) -> Iterator[Strikes]:
        """What others have against a request."""
        return (words.strikes[mark] for words in self if mark in words.strikes)

    def served(self, mark: bytes) -> float | None:
        """When others answered it last."""
        times = [words.served[mark] for words in self if mark in words.served]
        return max(times, default=None)

    @property
    def knows_strikes(self) -> bool:
        """Whether anything is held against any request."""
        return any(words.strikes for words in self)
