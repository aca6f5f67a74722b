"""A server that writes more than the cap it was sent: then what is reserved bounds nothing there.

Which field binds is known for the versions in use; of another one, or of what stands between, the first
long answer shows it. What it really takes is in the ledger all the same, token by token.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from gateway.observe.record import Record

SLACK: Final = 16
"""Tokens of a sequence above its cap that are no news: where no usage is told, pieces are counted, and one
token may come in two."""

QUIET_S: Final = 60.0
"""Between two lines about one server."""


class Overruns:
    """Of one fleet. Nothing here awaits or raises."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._quiet_until: dict[str, float] = {}

    def look(self, record: Record, now: float) -> None:
        """One answer has come to its end."""
        cap, made, backend = record.cap_forwarded, record.output_tokens, record.backend
        if cap is None or made is None or backend is None:
            return
        if made <= (cap + SLACK) * record.n * record.prompts:
            return
        if now < self._quiet_until.get(backend, -math.inf):
            return
        self._quiet_until[backend] = now + QUIET_S
        self._log.error(
            "cap_not_kept",
            backend=backend,
            dialect=record.dialect,
            cap=cap,
            output_tokens=made,
            reason="the server wrote more than it was told to: reservations do not bound it. Is its "
            "version known here, and nothing between that changes bodies?",
        )
