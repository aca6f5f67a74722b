"""Tokens per window: what a client has used, charged when its requests end by what they took.

A window opens with a client's first request after the last one closed, and lasts `window_s`; what
ends in it is charged to it: the prompt, and what was generated. A request is let in while there is
something left, counting what is under way by what the KV ledger holds or expects for it. So a
client may pass its quota by less than one request and what answers come out longer than expected;
a request larger than the quota runs once a window instead of never.

What its requests used and have under way at other processes of the gate counts as well, as far as it was
heard (`others`). All take the earliest window that is open anywhere for theirs, so that it ends for all
together. **Bound: what a client has used and has under way in all stays below its quota, one request, and
what the other processes let in after they wrote what was heard of them last.** With nobody heard for
`others.FRESH_S` what those have under way is not counted any more, what they used is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.model import QuotaView
from gateway.core.others import Others, Use

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
    elsewhere: int = 0
    """Of those that were used, and where the window has no end to tell of those under way too, how many
    at other processes of the gate."""


class Meters:
    """What each client that has a quota has used."""

    def __init__(self, others: Others | None = None) -> None:
        self._of: dict[str, _Window] = {}
        self._others = Others() if others is None else others

    def spent(self, rule: ClientRule, under_way: int, now: float) -> Spent | None:
        """Whether nothing is left for one more request. Opens the window if it is the first."""
        quota = rule.quota
        if quota is None:
            return None
        window = self._window(rule.name, quota.window_s, now)
        others = self._others.use(rule.name, quota.window_s, now)
        used, under_way = window.used + others.used, under_way + others.under_way
        if used + under_way < quota.tokens:
            return None
        over = used >= quota.tokens
        ends_in_s = window.began + quota.window_s - now if over else None
        elsewhere = others.used if over else others.used + others.under_way
        return Spent(used, under_way, quota.tokens, ends_in_s, elsewhere)

    def charge(self, rule: ClientRule, tokens: int, now: float) -> None:
        """A request of this client took so many tokens."""
        if rule.quota is not None:
            self._window(rule.name, rule.quota.window_s, now).used += tokens

    def look(self, rule: ClientRule, under_way: int, now: float) -> QuotaView | None:
        """How a client stands; None without a quota. Looking opens no window."""
        quota = rule.quota
        if quota is None:
            return None
        mine, others = self._open(rule, now), self._others.use(rule.name, quota.window_s, now)
        begun = [one.began for one in (mine, others) if one is not None and one.began is not None]
        return QuotaView(
            rule.name,
            0 if mine is None else mine.used,
            under_way,
            quota.tokens,
            quota.window_s,
            min(begun) + quota.window_s - now if begun else None,
            others.used + others.under_way,
        )

    def use(self, rule: ClientRule, under_way: int, held: int, now: float) -> Use:
        """What others are to know of a client here."""
        window = self._open(rule, now)
        if window is None:
            return Use(under_way=under_way, held=held)
        return Use(window.used, window.began, under_way, held)

    def used(self, name: str) -> int:
        """Tokens charged in the client's last window."""
        window = self._of.get(name)
        return 0 if window is None else window.used

    def _open(self, rule: ClientRule, now: float) -> _Window | None:
        """The window that is open."""
        window = self._of.get(rule.name)
        if rule.quota is None or window is None or now >= window.began + rule.quota.window_s:
            return None
        return window

    def _window(self, name: str, length_s: float, now: float) -> _Window:
        window = self._of.get(name)
        if window is None or now >= window.began + length_s:
            window = self._of[name] = _Window(now)
        if (began := self._others.use(name, length_s, now).began) is not None:
            window.began = min(window.began, began)
        return window
