"""Grammars that a server compiles: so much of it at once as leaves it time for everybody's tokens.

Theory. A grammar that a server has not seen is compiled within its scheduler's process, by eight threads that take
the processor from the scheduler; nothing ends that before it is done, not even an abort. Eight grammars of the
size that people write (a `maxLength` of 256: 9 s of one core each) stopped all streams of a machine with two cores
for 13 s, one after the other for 0.7 s (docs/threat-model.md). So it is booked like prefill: what is being
compiled is bounded, in seconds of one core, and one that is larger than the bound goes alone. Who has to wait for
that is passed by those who need no new grammar, as what they take is not what it lacks; by those who need one
that fits beside what is being compiled as well, but not for ever (see `choice`).

What a server has compiled it keeps until it ends (0.5.6-0.5.23), and costs nothing again; the same one twice is
compiled once. A grammar is done when the first token of a request with it comes, or its whole answer. Who
is not streamed shows nothing before that, and who has left shows nothing at all: theirs count until the time that
they likely take is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.core.model import Grammar

KNOWN = 4_096
"""Grammars of one server that are remembered as compiled; a hundred bytes each."""


@dataclass(slots=True)
class _Job:
    seconds: float
    began: float
    until: float  # when it is likely done; inf: a first token will show it
    requests: int  # that wait for it


class Compiling:
    """One pool's."""

    def __init__(self) -> None:
        self._known: dict[int, None] = {}
        self._jobs: dict[int, _Job] = {}

    def under_way(self, now: float) -> int:
        """Grammars that are likely being compiled."""
        return sum(job.until > now for job in self._jobs.values())

    def fits(self, grammar: Grammar, most_s: float, now: float) -> bool:
        """Whether a request with it may start now, where `most_s` seconds of one core may be compiled at once."""
        self._done_by(now)
        if not self._jobs or not self.starts(grammar):
            return True
        return grammar.seconds + sum(job.seconds for job in self._jobs.values()) <= most_s

    def is_new(self, grammar: Grammar) -> bool:
        """Whether no request has shown that it is compiled."""
        return grammar.mark not in self._known

    def begins(self, grammar: Grammar, now: float, *, streamed: bool) -> float:
        """A request with a new grammar is sent. When to look again, inf: when it shows its first token."""
        until = math.inf if streamed else now + grammar.seconds
        job = self._jobs.get(grammar.mark)
        if job is None:
            self._jobs[grammar.mark] = _Job(grammar.seconds, now, until, 1)
            return until
        job.requests += 1
        job.until = max(job.until, until)
        return job.until

    def starts(self, grammar: Grammar | None) -> bool:
        """Whether compiling begins with a request with it."""
        return grammar is not None and self.is_new(grammar) and grammar.mark not in self._jobs

    def done(self, grammar: Grammar) -> None:
        """A request with it has been answered, in part or as a whole: with a token at least. What the engine
        refuses it may refuse for anything, before it looks at the grammar."""
        self._jobs.pop(grammar.mark, None)
        self._known.pop(grammar.mark, None)
        self._known[grammar.mark] = None
        if len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]

    def gone(self, grammar: Grammar, *, begun: bool) -> float:
        """A request with it ended and showed nothing. `begun`: the engine had it. When to look again."""
        job = self._jobs.get(grammar.mark)
        if job is None:
            return math.inf
        job.requests -= 1
        if job.requests > 0:
            return math.inf
        if not begun:
            del self._jobs[grammar.mark]
            return math.inf
        job.until = job.began + job.seconds
        return job.until

    def forget(self) -> None:
        """The server ended, and what it had compiled and was compiling with it."""
        self._known.clear()
        self._jobs.clear()

    def _done_by(self, now: float) -> None:
        for mark in [mark for mark, job in self._jobs.items() if job.until <= now]:
            del self._jobs[mark]
