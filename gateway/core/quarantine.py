"""What is remembered of a server's deaths, so that the next start does not die of the same.

Three memories, each a few numbers:

- `Quarantine`: *which requests* were in flight. One that was there at two deaths, and was not
  served in between, is refused from then on. Deaths at which it was in flight at other processes of the
  gate count as well, once they are heard of (see `others`); one that several of them saw is one.
- `Ramp`: *how much prefill* was under way, and whether the server has generated anything since it
  was reached. Until it has, it is on trial: one prompt at a time, `TRIAL` sequences at most. After a
  death it then doubles with each prompt that comes through, and stops below what was in prefill at
  the death, until that much has been served cleanly often enough. Prefill scratch memory is what
  kills the process, and no pool accounts for it.
- `CrashLoop`: *how often*. A server that dies again and again under load is left alone for longer
  and longer pauses, so that an operator finds it standing still instead of dying.

Pure: `now` is passed in, seconds of any monotonic clock; requests are known by marks (digests made
elsewhere), never by their words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.core.others import Others, Strikes

if TYPE_CHECKING:
    from collections.abc import Iterable

STRIKES = 2
"""Deaths at which a request was in flight before it is refused. One is chance: at the death of a
busy server dozens are in flight and one is the cause; all of them are put back."""

FORGET_S = 3600.0
"""How long a death counts against a request. An agent that repeats a request for ever has changed
it within an hour, or its operator has."""

ECHO_S = 60.0
"""Within this, two processes that saw the same start of a server end mean one death: as long as one of
them may find no way to it before it gives up (`Pace.cut_off_s`), and all others know sooner. SGLang before
0.5.17 with a pinned seed starts alike each time: there two deaths within it that two processes saw count
as one, and a request may be in flight at a third."""

KEEP = 4096
"""Most requests remembered, the oldest go first: 16 deaths of a full queue (256), half a MB."""

FIRST_STEP = 2048
"""Prompt tokens in prefill after the first one came through alone: one chunk of a small card."""

FENCE = 0.75
"""The part of what was in prefill at a death that is allowed until it is proven safe."""

PROOF = 16
"""Prompts that must come through at the fence before it moves, by a third: back to the state of the
death after 16 of them, which on a busy server is a minute, and 16 chances to be wrong."""

TRIAL = 4
"""Sequences that may run on a server that has generated nothing since it was reached. One prompt at a
time is the rule, but of an answer in one piece nothing is seen before its end: its prompt counts as
read after the time that takes, and the next one may begin. Four of those, and no more, are what a
server that answers nothing may swallow; the proof (a first token, or the engine's own count of
prefilled tokens) is normally there before the second."""

LOOP = 3
"""Deaths under load within `WITHIN_S` that make a crash loop. Two can be one cause and its echo."""

WITHIN_S = 600.0
"""A restart takes 15-60 s; three of them under the same load fit, and three unrelated ones do not."""

HOLD_S = 60.0
"""First pause. It doubles with each further death: one minute gives clients that only retry
(SDKs: twice within seconds) time to give up."""

LONGEST_HOLD_S = 600.0
"""Longest pause: a probe every ten minutes costs little and finds a repaired server soon enough."""


class Quarantine:
    """Marks of requests that were in flight when a server died. Bounded, and it forgets."""

    def __init__(
        self, others: Others | None = None, *, keep: int = KEEP, forget_s: float = FORGET_S
    ) -> None:
        self._keep = keep
        self._forget_s = forget_s
        self._others = Others() if others is None else others
        self._marks: dict[bytes, Strikes] = {}  # the longest unchanged first
        self._served: dict[bytes, float] = {}  # while others have something against them

    def __len__(self) -> int:
        return len(self._marks)

    def __bool__(self) -> bool:
        return bool(self._marks) or self._others.knows_strikes

    @property
    def strikes(self) -> dict[bytes, Strikes]:
        """What is remembered here, for others."""
        return dict(self._marks)

    def answered(self, now: float) -> dict[bytes, float]:
        """What was answered here that others have something against."""
        old = [mark for mark, at in self._served.items() if now - at > self._forget_s]
        for mark in old:
            del self._served[mark]
        return dict(self._served)

    def died(self, marks: Iterable[bytes], now: float, start: str = "") -> None:
        """A server died with these in flight; each counts once, however often it is there. `start`
        names which start of which server that was."""
        death = Strikes(1, now, start)
        for mark in dict.fromkeys(marks):
            before = self._count(mark, now, apart_from=death)
            self._marks.pop(mark, None)
            self._marks[mark] = Strikes(before + 1, now, start)
        self._drop(now)

    def served(self, mark: bytes, now: float) -> None:
        """This request was answered to its end: it is not what the server died of."""
        self._marks.pop(mark, None)
        if any(True for _ in self._others.struck(mark)):
            self._served.pop(mark, None)
            self._served[mark] = now
            while len(self._served) > self._keep:
                del self._served[next(iter(self._served))]

    def forget(self) -> None:
        """Marks are made in another way from now on: none of these will be met again."""
        self._marks.clear()
        self._served.clear()

    def deaths(self, mark: bytes, now: float) -> int:
        """How many deaths count against it."""
        return self._count(mark, now)

    def refuses(self, mark: bytes, now: float) -> bool:
        """Whether it was in flight too often."""
        return self.deaths(mark, now) >= STRIKES

    def _count(self, mark: bytes, now: float, *, apart_from: Strikes | None = None) -> int:
        """At least so many different deaths. Whoever strikes adds to what he has heard of, so the most
        that one says is true; beside that, last deaths that are not the same are different ones."""
        known = list(self._others.struck(mark))
        if (mine := self._marks.get(mark)) is not None:
            known.append(mine)
        served = (self._served.get(mark), self._others.served(mark))
        since = max((at for at in served if at is not None), default=-math.inf)
        most, apart = 0, list[Strikes]()
        for one in sorted(known, key=lambda one: one.last):
            if now - one.last > self._forget_s or one.last <= since:
                continue
            if apart_from is not None and one is not mine and _same(one, apart_from):
                most = max(most, one.deaths - 1)
                continue
            most = max(most, one.deaths)
            if not any(_same(one, other) for other in apart):
                apart.append(one)
        return max(most, len(apart))

    def _drop(self, now: float) -> None:
        while self._marks:
            mark = next(iter(self._marks))
            if len(self._marks) <= self._keep and now - self._marks[mark].last <= self._forget_s:
                return
            del self._marks[mark]


def _same(one: Strikes, other: Strikes) -> bool:
    """Whether two processes mean the same death with their last one."""
    return one.start == other.start and abs(one.last - other.last) <= ECHO_S


@dataclass(slots=True)
class Ramp:
    """How much a server may be sent since it was reached: prompt tokens in prefill at once, up to
    `full`, and sequences while it is on trial.

    Without a death `allowed` is all from the start, and the ramp is over with the first proof.
    `fence` is how far it may go before that is proven (None: nothing was in prefill when it died).
    """

    full: int
    fence: int | None = None
    allowed: int = 1  # one prompt at a time: a prompt larger than the limit goes alone
    clean: int = field(default=0, repr=False)  # prompts that came through at the fence
    proven: bool = True  # it has generated since it was reached

    @property
    def done(self) -> bool:
        """Whether the server may take all again."""
        return self.proven and self.allowed >= self.full

    @property
    def limit(self) -> int:
        """How far it may grow now."""
        return self.full if self.fence is None else min(self.full, self.fence)

    @property
    def prefill(self) -> int:
        """Prompt tokens that may be in prefill at once now."""
        return min(self.allowed, self.full) if self.proven else 1

    @property
    def sequences(self) -> int | None:
        """Sequences that may run at once now; None: as many as ever."""
        return None if self.proven else TRIAL

    def reached(self) -> None:
        """It was reached, or began to move, and has generated nothing since."""
        self.proven = False

    def generated(self) -> None:
        """It has generated something since it was reached."""
        self.proven = True

    def prefilled(self) -> None:
        """One more prompt came through."""
        self.generated()
        if self.allowed < self.limit:
            self.allowed = min(max(2 * self.allowed, FIRST_STEP), self.limit)
            return
        if self.done or self.fence is None:
            return
        self.clean += 1
        if self.clean >= PROOF:
            self.clean = 0
            self.fence = max(self.fence + 1, int(self.fence / FENCE))
            self.allowed = self.limit

    def died(self, in_prefill: int, full: int) -> None:
        """The server died again, with so many prompt tokens in prefill."""
        self.full, self.allowed, self.clean, self.proven = full, 1, 0, False
        if in_prefill:
            fence = max(FIRST_STEP, int(in_prefill * FENCE))
            self.fence = fence if self.fence is None else min(self.fence, fence)


@dataclass(slots=True)
class CrashLoop:
    """Deaths under load of one server, and until when it is left alone."""

    deaths: list[float] = field(default_factory=list)  # those within the last `WITHIN_S`
    until: float = 0.0

    def died(self, now: float) -> None:
        """It died with work in flight."""
        self.deaths = [*(at for at in self.deaths if now - at <= WITHIN_S), now]

    def returned(self, now: float) -> float:
        """It is back: how many seconds to leave it alone; 0 for a server that does not loop."""
        recent = sum(now - at <= WITHIN_S for at in self.deaths)
        pause = 0.0
        if recent >= LOOP:
            # Deaths beyond the 16th change nothing: the pause is at its longest long before.
            pause = min(HOLD_S * 2.0 ** min(recent - LOOP, 16), LONGEST_HOLD_S)
        self.until = now + pause
        return pause
