"""How much of the pool may be planned with: learned from what went wrong, and forgotten slowly.

Theory. The pool's size is what the server says; what runs it dry is often something else: state
beside the pool, traffic that goes past the gate, an engine that holds pages longer than it tells.
None of it can be computed from outside, but it shows:

- a *retraction* means that the pool was fuller than planned: plan with RETRACTED of it from now on;
- a *death* with the pool in use to more than LEAST_SHARE: plan with DIED of what was in use then
  (how much prefill was under way is remembered in `quarantine.Ramp`);
- *clean service* gives back GROWTH_PER_S of the pool, so that one bad hour does not cost the week.
  Only time with work in flight counts.
"""

from __future__ import annotations

from dataclasses import dataclass

RETRACTED = 0.98
DIED = 0.95
LEAST_SHARE = 0.7
"""Below that the pool is not the problem: SGLang's own estimate leaves 0.3 free at its start."""

GROWTH_PER_S = 0.02 / 600
"""Two hundredths in ten minutes: a retraction is forgiven before lunch, a death in an hour or two."""


@dataclass(slots=True)
class Envelope:
    """What was learned of one pool."""

    share: float = 1.0  # of the KV pool

    def retracted(self) -> None:
        """The engine took memory back from requests under way."""
        self.share = max(LEAST_SHARE, self.share * RETRACTED)

    def died(self, used_share: float) -> None:
        """The server died with so much of its pool in use."""
        if used_share > LEAST_SHARE:
            self.share = max(LEAST_SHARE, min(self.share, DIED * used_share))

    def served(self, seconds: float) -> None:
        """So long with work in flight and nothing wrong."""
        self.share = min(1.0, self.share + GROWTH_PER_S * seconds)
