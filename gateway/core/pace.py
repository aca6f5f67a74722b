"""How many may decode at once: the speed of a stream as a limit.

Theory. On a big pool with short outputs memory never runs out, and 200 streams decode at once, each
unbearably slow (incident C). What is wanted is time per output token (TPOT) below a target. Each
WINDOW_S the TPOT that three of four decoding streams keep is compared with it: above, the
slots are cut to 85 % of what runs, or by as much as it is too slow, to half at most; below 90 % of it
and with the slots taken, more are tried, the more the further below. So it settles without knowing the
machine.

A slow machine must not be starved by a target it can never reach, so the target is at least
SLOWEST times the best this server has shown with few streams. Where it has only been seen crowded,
the cuts themselves lead there.
"""

from __future__ import annotations

import math

WINDOW_S = 5.0
SLOWEST = 3.0  # times the best seen with few streams
FEW = 8  # streams: a decode step reads all weights once, and eight contexts beside them are little
LEAST_SLOTS = (
    4  # fewer leave a batch engine idle; what four cannot have in time no limit gives them
)
DOWN, HALF = 0.85, 0.5
UP = 0.3
"""Times how far the streams are below the target: 3 % near it, 15 % at half of it, so that a cut made
in the crush of a start is made good within a minute."""

ROOM = 0.9
TAKEN = 0.6
"""Part of the slots in use from which they count as all taken: a client beside others may hold two
thirds of them (see flows), and the rest is kept for newcomers on purpose."""

LEVEL = 0.75
"""Three of four streams. At nine of ten, prefills of a runaway cut the slots to half of what its
victims and itself could use; the big pool of short answers is the same under both."""
SMOOTH = 0.4
"""Weight of the newest window: one long prefill stops every stream for seconds and means nothing."""

FEWEST = 2  # streams below which a percentile is no percentile
LEARN = 0.2


class Pace:
    """Slots and speed of one pool."""

    def __init__(self) -> None:
        self.target_s: float | None = None  # None: speed is measured, nothing is limited
        self.slots = math.inf
        self.tokens_per_s = 20.0
        """Of one stream. Assumed until measured: a 27B model on a 24 GB card under load."""
        self._worst: float | None = None  # smoothed over windows, since the last change
        self._best = math.inf  # seconds per token; not seen yet

    def window(self, tpots: list[float], running: int, crowd: int | None = None) -> None:
        """What each decoding stream has needed per token so far, seconds; `running` are held. `crowd` decoded together,
        where those whose speed is known are not all."""
        if not tpots:
            return
        tpots.sort()
        median = tpots[len(tpots) // 2]
        if (len(tpots) if crowd is None else crowd) <= FEW:
            self._best = min(self._best, tpots[0])
        self.tokens_per_s += LEARN * (1.0 / max(median, 1e-4) - self.tokens_per_s)
        if len(tpots) < FEWEST or self.target_s is None:
            return
        newest = tpots[min(len(tpots) - 1, int(LEVEL * len(tpots)))]
        before = newest if self._worst is None else self._worst
        worst = before + SMOOTH * (newest - before)
        self._worst = worst
        alone = 0.0 if self._best == math.inf else self._best
        target = max(self.target_s, SLOWEST * alone)
        if min(worst, newest) > target:
            if running > self.slots:
                return  # the last cut has not taken effect: those that run finish
            self.slots = max(
                LEAST_SLOTS, math.floor(running * max(HALF, min(DOWN, target / worst)))
            )
            self._worst = None
        elif worst < ROOM * target and running >= TAKEN * self.slots:
            self.slots += max(1, math.floor(UP * (1.0 - worst / target) * self.slots))
