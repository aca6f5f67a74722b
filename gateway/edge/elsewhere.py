"""What an engine already runs when this gate reaches it, charged until it is gone.

A gate that starts in front of a busy engine (its predecessor was killed, somebody asks the engine
directly, the network was cut and is back) knows nothing of what runs there, and would promise the
pool a second time. The engine's own count is taken instead: at first contact all of it, then ever
less, as those requests end. What comes later past the gate is not charged: a count that is a second
old can not tell it from ours.

Pure: loads in, a charge out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.upstream.loads import RankLoad

GROWS = 4096
SHARE = 8
"""What a request that runs already may still generate: 4,096 tokens, the most the engine itself
plans for (0.5.6-0.5.23), and on small pools an eighth of the pool."""

RECENT = 3
"""Polls for which the most of ours counts: a snapshot of the engine is up to two polls old, and may
show requests that have ended since."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What runs on one pool and is not ours."""

    kv: int = 0  # tokens, with what it may still take
    requests: int = 0


class Elsewhere:
    """Of one pool, since its server was last reached."""

    def __init__(self, pool_tokens: int) -> None:
        self.charge = Charge()
        self._grows = min(GROWS, pool_tokens // SHARE)
        self._most: int | None = None  # what it ran at the last look; None: never looked
        self._ours: deque[int] = deque(maxlen=RECENT)

    @property
    def over(self) -> bool:
        """Whether all of it has ended."""
        return self._most == 0

    def took(self, load: RankLoad, ours: int, our_tokens: int) -> Charge:
        """The engine's count has come; by our books `ours` sequences with `our_tokens` run there."""
        self._ours.append(ours)
        others = max(0, load.running + load.waiting - max(self._ours))
        self._most = others if self._most is None else min(others, self._most)
        tokens = max(load.total - our_tokens, self._most) + self._most * self._grows
        self.charge = Charge(tokens, self._most) if self._most else Charge()
        return self.charge
