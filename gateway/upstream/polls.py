"""The loads of a server that is in use: what it last said of them, how old that is, when to ask again.

Where they do not say anything, or go through the scheduler, it is asked rarely; often where somebody waits
to see a request gone; and soon after a question that failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.upstream.discover import SNAPSHOT_SINCE

if TYPE_CHECKING:
    from gateway.upstream.facts import Version
    from gateway.upstream.life import Pace
    from gateway.upstream.loads import LoadsFacts


class Polls:
    """Times are the loop's clock."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.last: LoadsFacts | None = None
        """None: there are none of this start."""
        self._at = 0.0  # when those came
        self.offered = True
        """Whether this server has loads to tell, as far as is known."""
        self.cheap = True
        """Whether they are read without the scheduler."""
        self._answered = True  # the last question was
        self._fast_until = 0.0

    def begin(self, version: Version | None) -> None:
        """The server was met anew: nothing that it said before holds. One of unknown version is taken for a
        recent one."""
        self.last = None
        self.offered = self._answered = True
        self.cheap = version is None or version >= SNAPSHOT_SINCE

    def want(self, until: float) -> None:
        """Ask often until then."""
        self._fast_until = max(self._fast_until, until)

    def came(self, loads: LoadsFacts | None, now: float) -> LoadsFacts | None:
        """The answer, None: it has none to tell. What it said before."""
        before = self.last
        self._answered = self.offered = loads is not None
        if loads is not None:
            self.last, self._at = loads, now
        return before

    def failed(self) -> None:
        """No answer."""
        self._answered = False

    def age_s(self, now: float) -> float | None:
        """Since they came; None where there are none."""
        return None if self.last is None else now - self._at

    def interval_s(self, now: float, *, failing: bool) -> float:
        """From the last question to the next."""
        pace = self._pace
        if failing:
            return pace.retry_s
        if not self.offered:
            return pace.probe_s
        if now < self._fast_until:
            return pace.loads_wanted_s
        return pace.loads_s if self.cheap and self._answered else pace.probe_s

    def stale(self, now: float, since: float) -> bool:
        """Loads are offered, and the last ones are old or describe a standstill; of a server in use `since`
        then.

        An idle scheduler publishes no snapshots, so the age of one that shows no work says nothing.
        """
        if not self.offered:
            return False
        limit = self._pace.stale_after_s
        if self.last is None:
            return now - since > limit
        busy = self.last.running + self.last.waiting > 0
        snapshot_age = (self.last.age_s or 0.0) if busy else 0.0
        return now - self._at + snapshot_age > limit
