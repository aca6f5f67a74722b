"""What a replica knows of the others: who has fallen silent, and whether anything of theirs runs.

Theory. A replica that falls silent grants nothing once its lease is over, by its own clock; who looks
on waits for longer than that by *its* own clock, from when it first saw the last sign. So clocks need
not agree, they must only go about equally fast (see `tenant.SURE`). But what the silent one granted may
still run. The engine says how many sequences it runs, and everybody who is there says how many of its
own were surely there; when that accounts for all, nothing else can be running:

    running + waiting of a snapshot - my own - the others' steady ones <= 0

The others' numbers must be of the time of the snapshot. Two facts give that without clocks. What they
wrote at a version after my first write after the snapshot, they wrote after the snapshot was taken; and
what I have read within WINDOW_S of the snapshot was written no later than that; a sequence is called
steady if it was there for WINDOW_S before it was written down. Twice in a row is proof, as an engine's
snapshot may fall between two of its events. Where proof does not come, `PATIENCE_S` later the engine's
own count of what nobody accounts for takes the place of what the table said.

A *fresh* table is one that nobody can have used before: then there are no leases to outlast, and what an
engine runs at first is not of anybody in the table. It is charged at once, by the engine's count of what
nobody accounts for, and ever less as that falls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.amount import NOTHING, Amount

if TYPE_CHECKING:
    from gateway.core.lease import Table

WINDOW_S = 3.0
"""Two rounds of renewal, a second each, and one to spare."""

PROOFS = 2
"""Snapshots in a row that must leave nothing unaccounted for."""

PATIENCE_S = 600.0
"""As long as an abandoned request is waited for (`edge.reaper.STUCK_S`): what then is still
unaccounted for is more likely traffic that goes past all gates, and is charged as that."""

GROWS = 4096
"""Tokens a sequence may still generate: what the engine itself plans for at most (0.5.6-0.5.23)."""

SMALL = 8
"""... and on small pools such a part of the pool, as one gate alone charges it (`edge.elsewhere.SHARE`)."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One snapshot of the engine, as one replica sees it."""

    taken: float  # no later than it was taken, seconds of my clock
    unexplained: int  # sequences that are not surely mine
    tokens: int  # KV tokens in use that are not mine


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may be taken back now."""

    silent: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    unclaimed: Amount | None = None


class Witness:
    """Of one pool. `ttl_s`: how long a lease is, for all of them; `fresh`: see the module."""

    def __init__(self, me: str, ttl_s: float, *, fresh: bool = False) -> None:
        self._me = me
        self._ttl_s = ttl_s
        self._fresh = fresh
        self._epoch: str | None = None
        self._began = 0.0
        self._unclaimed: Amount | None = None
        self._said = 0.0  # when that came to stand in the table
        self._signs: dict[str, tuple[int, float]] = {}  # last seq seen of each, since when
        self._next: Sight | None = None  # not written after yet
        self._sight: tuple[Sight, int] | None = None  # ... written after, at that version
        self._clear: deque[float] = deque(maxlen=PROOFS)  # when the last clear snapshots were taken
        self._left: Sight | None = None  # the last that left something unexplained

    def read(self, table: Table, now: float) -> None:
        """The table as it is now."""
        if table.epoch != self._epoch:
            self._epoch, self._began, self._said = table.epoch, now, now
            self._unclaimed = table.unclaimed
            self._signs.clear()
            self._sight = self._left = None
            if not self._fresh:
                self._next = None
            self._clear.clear()
        if table.unclaimed != self._unclaimed:
            self._unclaimed, self._said = table.unclaimed, now
        for who, entry in table.entries.items():
            seen = self._signs.get(who)
            if seen is None or seen[0] != entry.seq:
                self._signs[who] = (entry.seq, now)
        for who in [who for who in self._signs if who not in table.entries]:
            del self._signs[who]
        self._weigh(table, now)

    def saw(self, sight: Sight) -> None:
        """The engine's count has come."""
        if self._sight is None:
            self._next = sight

    def wrote(self, version: int) -> None:
        """My line was written, at that version: later than what I had seen of the engine."""
        if self._next is not None and self._sight is None:
            self._sight, self._next = (self._next, version), None

    def verdict(self, table: Table, now: float) -> Verdict:
        """Who has fallen silent, and what is known not to be in use any more."""
        since = {who: seen[1] + self._ttl_s for who, seen in self._signs.items() if who != self._me}
        silent = frozenset(who for who, over in since.items() if over <= now)
        gone = frozenset(who for who in silent if self._proves(since[who]))
        unclaimed = None
        known = max(self._began + self._ttl_s, self._said)
        if self._fresh:
            unclaimed = self._of_before(table, now)
        elif table.unclaimed != NOTHING and known <= now and self._proves(known):
            unclaimed = NOTHING
        late = now - PATIENCE_S
        given_up = frozenset(who for who in silent if since[who] <= late)
        if (given_up - gone) or (table.unclaimed is None and unclaimed is None and known <= late):
            gone, unclaimed = gone | given_up, _charge(self._left, GROWS)
        return Verdict(silent, gone, unclaimed)

    @property
    def curious(self) -> bool:
        """Whether a snapshot of the engine is of use now."""
        return self._next is None and self._sight is None

    # ---- inside --------------------------------------------------------------------------------

    def _proves(self, since: float) -> bool:
        """Whether nothing has been unaccounted for, in snapshots that were all taken after that."""
        return len(self._clear) == PROOFS and self._clear[0] >= since

    def _of_before(self, table: Table, now: float) -> Amount | None:
        """What an engine ran before a fresh table was; None: nothing new is known of it."""
        if table.unclaimed == NOTHING:
            return None
        # On a small pool a request that may take 4,096 tokens more would be charged all of it.
        grows = min(GROWS, table.budget().kv // SMALL)
        if self._clear:
            return NOTHING
        if table.unclaimed is None:  # nobody has granted anything: all it runs is of strangers
            seen = self._left or self._next or (self._sight and self._sight[0])
            if seen is not None:
                return _charge(seen, grows)
            return NOTHING if now - self._began >= WINDOW_S else None  # the engine does not say
        return None if self._left is None else _charge(self._left, grows).least(table.unclaimed)

    def _weigh(self, table: Table, now: float) -> None:
        if self._sight is None:
            return
        sight, version = self._sight
        if now > sight.taken + WINDOW_S:
            self._sight = None
            return
        there = {
            who: entry
            for who, entry in table.entries.items()
            if who != self._me and now < self._signs[who][1] + self._ttl_s
        }
        if any(entry.at <= version for entry in there.values()):
            return
        left = sight.unexplained - sum(entry.steady for entry in there.values())
        self._sight = None
        if left > 0:
            self._clear.clear()
            self._left = Sight(sight.taken, left, sight.tokens)
            return
        self._left = None
        self._clear.append(sight.taken)


def _charge(left: Sight | None, grows: int) -> Amount:
    """What a count of sequences that nobody accounts for stands for; nothing where there is none."""
    if left is None or left.unexplained <= 0:
        return NOTHING
    count = left.unexplained
    return Amount(max(left.tokens, count) + count * grows, 0, count)
