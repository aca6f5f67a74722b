"""The range each signal took over a run: whether a policy that reads it could have acted at all.

A policy whose signal never came near its limit is no policy; a report that does not show the range
cannot tell the two apart. Signals are looked at when something is decided, which is when a policy
reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gateway.lab.simulate import Run

SIGNALS = {
    "pool_used": "tokens in use over the pool",
    "promised": "prompt and cap in force of everything in flight over the pool",
    "new_token_ratio": "the engine's own share of a cap it reserves",
    "running": "requests in the engine's batch",
    "waiting_inside": "requests in the engine's own queue",
    "in_flight": "requests let through and not ended",
}

READS: dict[str, tuple[str, ...]] = {
    "none": (),
    "fixed": ("in_flight",),
    "worst-case": ("promised",),
    "worst-case-capped": ("promised",),
    "per-request-quantile": ("pool_used", "new_token_ratio"),
    "mirror": ("pool_used", "new_token_ratio"),
    "past-future": ("pool_used", "new_token_ratio"),
    "vtc": ("pool_used", "new_token_ratio"),
    "kvgate": ("pool_used", "promised", "in_flight"),
    "kvgate-no-forecast": ("promised", "in_flight"),
    "kvgate-no-pace": ("pool_used", "promised", "in_flight"),
    "kvgate-no-shares": ("pool_used", "promised", "in_flight"),
    "kvgate-no-affinity": ("pool_used", "promised", "in_flight"),
    "kvgate-apart": ("pool_used", "promised", "in_flight"),
    "round-robin": (),
    "least-connections": ("in_flight",),
    "static-split": (),
    "oracle": ("pool_used", "new_token_ratio"),
    "oracle-mcsf": ("pool_used", "new_token_ratio"),
}


def ranges(run: Run) -> dict[str, tuple[float, float, float]]:
    """(least, median, most) of each of SIGNALS over the decisions of `run`; empty without any."""
    sights = [flight.sight for flight in run.flights if flight.sight is not None]
    if not sights:
        return {}
    out = {}
    for name in SIGNALS:
        values = np.array([getattr(sight, name) for sight in sights], dtype=np.float64)
        out[name] = (float(values.min()), float(np.median(values)), float(values.max()))
    return out
