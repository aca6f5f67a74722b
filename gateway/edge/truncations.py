"""One request again and again, cut each time at a cap of ours.

An agent that takes a cut answer for a failure sends the same again, and each time gets as much as before:
the header tells it why, and this tells the operator. A mark is a keyed digest, see `marks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from gateway.observe.record import Record

TIMES: Final = 3
"""As many are no accident: one retry is what SDKs and people do."""

WITHIN_S: Final = 60.0
"""From the first of them on; longer answers than that are retried by nobody who has not read them."""

MOST: Final = 1_024
"""Requests remembered; the oldest goes. Each is some 200 bytes."""

OURS: Final = frozenset({"clamped", "injected"})
"""Where the cap in force came from, if not from the client: see `Record.cap_source`."""

CUT: Final = frozenset({"length", "max_tokens", "incomplete"})
"""How an answer says that it ended at its cap: SGLang's own and OpenAI's; Anthropic's; responses', of which
SGLang says "completed" all the same."""


@dataclass(slots=True)
class _Seen:
    first: float
    times: int = 0


class Truncations:
    """Of one fleet. Nothing here awaits or raises."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._seen: dict[tuple[str, bytes], _Seen] = {}

    def cut(self, record: Record, mark: Callable[[], bytes], now: float) -> None:
        """An answer was cut at its cap. `mark` tells its request from others, see `marks`."""
        if record.cap_source not in OURS:
            return
        key = (record.client, mark())
        seen = self._seen.get(key)
        if seen is None or now > seen.first + WITHIN_S:
            self._seen.pop(key, None)  # the order is that of the first times
            seen = self._seen[key] = _Seen(now)
            if len(self._seen) > MOST:
                del self._seen[next(iter(self._seen))]
        seen.times += 1
        if seen.times == TIMES:
            self._log.warning(
                "repeated_truncation",
                client=record.client,
                count=seen.times,
                cap=record.cap_forwarded,
                cap_source=record.cap_source,
                reason="the same request was cut at the gate's cap each time; max_output_tokens and "
                "default_output_tokens set it",
            )
