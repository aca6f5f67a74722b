"""Which process of a server was met: another start of it, the same again, or one of several in turn.

A gate books the memory of one server for each URL. Where a URL leads to several (a Service with two
replicas, a load balancer, a name with two addresses) each question may meet another of them: taken for
restarts, that would write off what runs and blame requests for deaths that nobody died. A process that
was replaced does not come back. So where one does that was met before, there are several; and where the
loads are another's, twice, though it is still the one that was met.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from gateway.upstream.facts import STARTUP_TIME_SINCE

if TYPE_CHECKING:
    from gateway.upstream.facts import ServerFacts

SEVERAL = (
    "Several servers answer at this address in turn, and the gate books the memory of one: give each "
    "of them a backend with its own address (the pods', not the service's or the balancer's)."
)
"""What their operator is told."""

SEVERAL_S = 600.0
"""How long after one came back several are expected: while servers are replaced one by one behind one
address, both are met for minutes, and then only the new one."""

_MOST_KEYS = 16
"""Remembered: as many servers behind one address, or starts of one."""


class Starts:
    """See the module. `seen`: starts so far."""

    def __init__(self) -> None:
        self.seen = 0
        self._keys: deque[str] = deque(maxlen=_MOST_KEYS)  # the last one met at the end
        self._several_until = self._odd_until = -math.inf

    def met(
        self, facts: ServerFacts, now: float, *, was_shut: bool, loads_of_another: bool = False
    ) -> None:
        """It was asked who it is. `was_shut`: its door was found shut since the last time;
        `loads_of_another`: its loads had seemed to be from another start.

        Where two starts may share a key (see `started_key`) the shut door between them tells them apart.
        """
        key, certain = facts.started_key, _tells(facts)
        if not self._keys or (was_shut and not certain):
            self.seen += 1
        elif key != self._keys[-1]:
            if key in self._keys:
                self._several_until = now + SEVERAL_S
            else:
                self.seen += 1
        elif loads_of_another and certain:
            if now < self._odd_until:
                self._several_until = now + SEVERAL_S
            self._odd_until = now + SEVERAL_S
        if key in self._keys:
            self._keys.remove(key)
        self._keys.append(key)

    def several(self, now: float) -> bool:
        """Whether several servers answer at this address."""
        return now < self._several_until


def _tells(facts: ServerFacts) -> bool:
    """Whether no two starts of this version share a key."""
    return facts.version is not None and facts.version >= STARTUP_TIME_SINCE
