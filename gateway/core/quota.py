"""Tokens per window: what a client has used, charged when its requests end by what they took.

A window opens with a client's first request after the last one closed, and lasts `window_s`; what
ends in it is charged to it: the prompt, and what was generated. A request is let in while there is
something left, counting what is under way by what the KV ledger holds or expects for it. So a
client may pass its quota by less than one request and what answers come out longer than expected;
a request larger than the quota runs once a window instead of never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.model import QuotaView

if TYPE_CHECKING:
    from gateway.core.model import ClientRule


@dataclass(slots=True)
class _Window:
    began: float
    used: int = 0


@dataclass(frozen=True, slots=True)
class Spent:
    """A quota with nothing left. Tokens; `ends_in_s` until the next window, None where only requests
    under way stand in the way."""

    used: int
    under_way: int
    tokens: int
    ends_in_s: float | None


class Meters:
    """What each client that has a quota has used."""

    def __init__(self) -> None:
        self._of: dict[str, _Window] = {}

    def spent(self, rule: ClientRule, under_way: int, now: float) -> Spent | None:
        """Whether nothing is left for one more request. Opens the window if it is the first."""
        quota = rule.quota
        if quota is None:
            return None
        window = self._window(rule.name, quota.window_s, now)
        if window.used + under_way < quota.tokens:
            return None
        over = window.used >= quota.tokens
        ends_in_s = window.began + quota.window_s - now if over else None
        return Spent(window.used, under_way, quota.tokens, ends_in_s)

    def charge(self, rule: ClientRule, tokens: int, now: float) -> None:
        """A request of this client took so many tokens."""
        if rule.quota is not None:
            self._window(rule.name, rule.quota.window_s, now).used += tokens

    def look(self, rule: ClientRule, under_way: int, now: float) -> QuotaView | None:
        """How a client stands; None without a quota. Looking opens no window."""
        quota = rule.quota
        if quota is None:
            return None
        window = self._of.get(rule.name)
        if window is None or now >= (ends := window.began + quota.window_s):
            return QuotaView(rule.name, 0, under_way, quota.tokens, quota.window_s, None)
        left_s = ends - now
        return QuotaView(rule.name, window.used, under_way, quota.tokens, quota.window_s, left_s)

    def used(self, name: str) -> int:
        """Tokens charged in the client's last window."""
        window = self._of.get(name)
        return 0 if window is None else window.used

    def _window(self, name: str, length_s: float, now: float) -> _Window:
        window = self._of.get(name)
        if window is None or now >= window.began + length_s:
            window = self._of[name] = _Window(now)
        return window
