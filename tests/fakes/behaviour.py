"""How the fake engine treats one generation: a value a test writes down.

`Behaviour()` answers at once and whole. Each field bends one thing; they combine. Positions are
counted in events of the stream (one token each); for an answer that is not streamed they are the
head (0) and the body (anything more).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

QUEUE_FULL = "The request queue is full."


@dataclass(frozen=True)
class Behaviour:
    """Times in seconds, sizes in bytes, lengths in tokens."""

    tokens: int | None = None
    """Output per sequence; never above the cap in the body. None: the cap, at most 8."""
    head_delay_s: float = 0.0
    """Silence before the first byte of the answer."""
    gap_s: float = 0.0
    """Silence between two events."""
    hold: asyncio.Event | None = None
    """Wait for this before event `hold_at`."""
    hold_at: int = 0
    """0: before the head is sent."""
    never: bool = False
    """Accept the request and never answer it."""
    reset_at: int | None = None
    """RST after this many events."""
    close_at: int | None = None
    """FIN after this many events: no last chunk, no [DONE], no error."""
    error: tuple[int, str] | None = None
    """Status and message, in SGLang's error body."""
    error_at: int | None = None
    """None: as the engine does it (a 503 on a stream comes as 200 + first event, all else as
    an HTTP status). A number: as an event after that many events."""
    raw: bytes | None = None
    """These bytes instead of any answer, then close (after `hold`, where `hold_at` is not 0)."""
    close_connection: bool = False
    """Say `connection: close` and do it."""
    gzip: bool = False
    """Compress an answer that is not streamed, asked or not."""
    pad: int = 0
    """Extra text in each event."""


def queue_full() -> Behaviour:
    """The engine's `--max-queued-requests` is reached: 503, or 200 + error event on a stream."""
    return Behaviour(error=(503, QUEUE_FULL))


def refuse(status: int, message: str) -> Behaviour:
    """An error before any output."""
    return Behaviour(error=(status, message))
