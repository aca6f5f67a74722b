"""Incident C on the modelled box (four L20, 262K context): half an hour with all that happened.

Two people work on their own. At 11:34 nine agents wake with histories that are in no cache: a
backlog of input. They go on, each turn with some thousand tokens of tool output, eight or nine
writing at once. At 11:48 sixteen short jobs come to a box that runs ten at a time, the article's
remedy. Then the cards idle with their memory full, and near the end the process dies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.observe.looks import CardLook

from .watched import Agent

if TYPE_CHECKING:
    from gateway.twin.engine import Engine

SECONDS = 1800.0
SLOTS = 10
"""--max-running-requests after the article's change."""
KILL_AT = 1665.0
MINUTE = 60.0
GIB = 1 << 30


def people() -> list[Agent]:
    """Everybody, in order of their first request."""
    return [
        *(Agent(f"person{i}", 10.0 * i, 21 * MINUTE, 8_000, 1_024, 300, 10.0) for i in range(2)),
        *(
            Agent(f"agent{i}", 4 * MINUTE + i, 15 * MINUTE, 60_000 + 4_096 * i, 4_096, 500, 4.0)
            for i in range(9)
        ),
        *(
            Agent(f"job{i}", 18 * MINUTE + i / 4, 22 * MINUTE, 4_000, 512, 900, 0.5, most=16_000)
            for i in range(16)
        ),
        Agent("late", 27 * MINUTE, 30 * MINUTE, 8_000, 1_024, 2_000, 5.0),
    ]


def cards(engine: Engine) -> tuple[CardLook, ...]:
    """Four cards as nvidia-smi showed them: 41 of 46 GB taken whatever goes on, busy while it works.
    The twin has no cards; this is no more than whether its engine is in a step."""
    busy = 97.0 if engine.running else 0.0
    return tuple(CardLook(i, "NVIDIA L20", busy, 41 * GIB, 46 * GIB) for i in range(4))
