"""What has been promised to each pool: the prompt and the allowed output of everything that runs.

The sum of incident A: three prompts of 19,000 tokens that may each write 32,000 more are a promise
of 153,000 tokens, whatever they write in the end. A request counts from its first word to its end,
in both acts alike; the gate's own ledger counts it from the moment it is sent, and a page more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.demo.client import Exchange
    from gateway.twin.server import TwinServer


@dataclass(slots=True)
class Peak:
    """The most that was promised at once, and the pool it was promised to. Tokens."""

    promised: int = 0
    pool: int = 0
    requests: int = 0


@dataclass(slots=True)
class Promises:
    """Sums by server, and their peaks."""

    servers: Mapping[str, TwinServer]
    peaks: dict[str, Peak] = field(default_factory=dict)
    _running: dict[str, dict[int, int]] = field(default_factory=dict)

    def first_word(self, exchange: Exchange) -> None:
        """A request runs."""
        engine = self.servers[exchange.server].engine
        cap = exchange.cap_told
        if cap is None:
            cap = engine.limits.cap(exchange.prompt, exchange.cap)
        running = self._running.setdefault(exchange.server, {})
        running[id(exchange)] = exchange.prompt + cap
        promised = sum(running.values())
        if promised > self.peaks.setdefault(exchange.server, Peak()).promised:
            self.peaks[exchange.server] = Peak(promised, engine.pool.capacity, len(running))

    def ended(self, exchange: Exchange) -> None:
        """It runs no more."""
        self._running.get(exchange.server, {}).pop(id(exchange), None)
