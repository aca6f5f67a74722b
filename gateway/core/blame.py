"""Whose failures are they: a client's or a server's?

Both look alike from one request: a 500, a reset of a server that lives on, an answer that never
came. Over several they do not. A server that fails one client and serves the others has a client
with a broken request; a server that fails two, or serves nobody, is broken itself. So failures are
attributed to a client before a server:

- `FAILURES` in a row of one client, while somebody else was served within `WITHIN_S` and nobody else
  has failed since: that *client* cools down on this server, for `COOL_S`, doubling up to `LONGEST_S`.
- `FAILURES` since the last answer of anybody, of two clients or more, or where nobody was served:
  the *server* is on probes. It is held for `PROBE_S`, doubling up to `LONGEST_PROBE_S`, and then may
  show with few requests (`quarantine.TRIAL`) whether it generates. Nobody is refused for that: who
  has no other server waits.

One good answer clears its client, and the server. What a 4xx, a full queue or a death explains is
no failure and must not be told here.

Pure: `now` is passed in, seconds of any monotonic clock; clients are names of the policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FAILURES = 5
"""In a row, before anybody is blamed: what Envoy takes for its outlier detection (consecutive_5xx).
SDKs try one request three times; two such requests are needed."""

WITHIN_S = 60.0
"""How long a failure and an answer count. An agent sends its next step within seconds; a minute
without one tells nothing of now."""

COOL_S = 10.0
"""First pause of a client: SDKs that obey Retry-After are back after it, and one that does not has
stopped trying (they retry twice, within seconds)."""

LONGEST_S = 59.0
"""Its longest pause: the largest Retry-After SDKs obey."""

PROBE_S = 1.0
"""First pause of a server: the same as for one that says it is full."""

LONGEST_PROBE_S = 30.0
"""Its longest pause: that much longer than needed is a broken server noticed to be whole again at
most, a quarter of what a request may wait."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is to blame after a failure, and for how many seconds: a client, a server, or nobody."""

    client: str | None = None
    server: bool = False
    pause_s: float = 0.0
    failures: int = 0


NOBODY = Verdict()


@dataclass(slots=True)
class _Streak:
    """Failures of one client since its last answer."""

    last: float
    failures: int = 0
    pauses: int = 0
    until: float = -math.inf  # it cools down

    def counts(self, now: float) -> bool:
        """Whether it is not too long ago."""
        return now - max(self.last, self.until) <= WITHIN_S


@dataclass(slots=True)
class Blame:
    """Of one server. Bounded by the number of clients."""

    _streaks: dict[str, _Streak] = field(default_factory=dict)
    _served: dict[str, float] = field(default_factory=dict)  # when each was served last
    _since: dict[str, int] = field(default_factory=dict)  # failures since anybody was served
    _failed_at: float = -math.inf
    probes: int = 0  # pauses of the server in a row

    def served(self, client: str, now: float) -> None:
        """A request of this client was answered well."""
        self._served[client] = now
        self._streaks.pop(client, None)
        self._since.clear()
        self.probes = 0

    def failed(self, client: str, now: float) -> Verdict:
        """A request of this client failed here."""
        if now - self._failed_at > WITHIN_S:
            self._since.clear()
            self.probes = 0
        self._failed_at = now
        streak = self._streaks.get(client)
        if streak is None or not streak.counts(now):
            streak = self._streaks[client] = _Streak(now)
        streak.last = now
        streak.failures += 1
        self._since[client] = self._since.get(client, 0) + 1
        since = sum(self._since.values())
        others = any(one != client and now - at <= WITHIN_S for one, at in self._served.items())
        if since >= FAILURES and (len(self._since) > 1 or not others):
            pause = _doubled(PROBE_S, self.probes, LONGEST_PROBE_S)
            self.probes += 1
            return Verdict(server=True, pause_s=pause, failures=since)
        # Somebody else is failing as well since the last answer: more of it will tell.
        alone = len(self._since) == 1 and others
        if alone and streak.failures >= FAILURES and streak.until <= now:
            pause = _doubled(COOL_S, streak.pauses, LONGEST_S)
            streak.pauses += 1
            streak.until = now + pause
            return Verdict(client=client, pause_s=pause, failures=streak.failures)
        return NOBODY

    def cooling(self, client: str, now: float) -> tuple[float, int]:
        """Seconds for which this client is not let in here, 0 where it is, and its failures."""
        streak = self._streaks.get(client)
        if streak is None or streak.until <= now:
            return 0.0, 0
        return streak.until - now, streak.failures

    def cooled(self, now: float) -> dict[str, float]:
        """Every client that cools down, and for how many seconds yet."""
        return {
            client: streak.until - now
            for client, streak in self._streaks.items()
            if streak.until > now
        }


def _doubled(first: float, times: int, longest: float) -> float:
    """`first`, doubled so many times, `longest` at most. Beyond 16 doublings nothing changes."""
    return min(first * 2.0 ** min(times, 16), longest)
