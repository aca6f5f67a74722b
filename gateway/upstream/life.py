"""Words and numbers of a server's life: its states, the pace of questions, what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.upstream.facts import ServerFacts
    from gateway.upstream.loads import LoadsFacts


class Life(StrEnum):
    """Where a server is in its life. The words are part of /status."""

    CONNECTING = "connecting"  # never reached since the gate started
    STARTING = "starting"  # it answers that it is still loading
    READY = "ready"
    STALLED = "stalled"  # its door answers, its scheduler does not move
    DOWN = "down"  # it was ready, and is not


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how long, in seconds."""

    loads_s: float = 1.0
    """Between polls of loads; the ledger decides, loads only confirm."""
    loads_wanted_s: float = 0.2
    """The same while an abandoned request waits to be confirmed gone: a stream is freed within
    0.03 s of its abort, so slower polls would be most of the wait."""
    probe_s: float = 5.0
    """Between questions of any kind at least; and between loads that go through the scheduler."""
    retry_s: float = 0.5
    """After a question failed, before the next."""
    ask_s: float = 3.0
    """Limit for one poll. SGLang tokenizes on its HTTP loop, so seconds of delay are no fault."""
    discover_s: float = 10.0
    """Limit for one request of a discovery, which may wait behind a long prefill step."""
    backoff_s: tuple[float, float] = (0.2, 2.0)
    """Between discoveries that failed: first and longest pause. A model loads for minutes; two
    seconds late is not noticed, and asking a shut door costs nothing."""
    silent_for_s: float = 10.0
    """How long an open door may stay silent. Twice the 5.4 s a dying server takes to shut it."""
    cut_off_s: float = 60.0
    """How long there may be no way to a server that was there before what it held is given up. As
    long as the kernel keeps a connection that nobody answers on (30 + 3 × 10 s):
    sooner, a switch that starts anew would end answers that go on when it is back."""
    stale_after_s: float = 10.0
    """Age at which loads are called stale."""
    stall_s: float = 30.0
    """How long a server with work may show no sign of its scheduler; see `Limits.stall_s`."""


@dataclass(frozen=True, slots=True)
class WatchView:
    """What is known now, for people. Times are the loop's clock, seconds."""

    state: Life
    since: float
    error: str | None  # the last thing that went wrong, in words; None once all is well
    facts: ServerFacts | None  # of the last start that was seen
    starts: int  # starts seen by this watch
    loads: LoadsFacts | None
    loads_age_s: float | None  # since they came; how old they were then is in them
    metrics_stale: bool  # loads are offered but old; the gate goes on by its own ledger
