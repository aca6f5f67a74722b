"""The one place where a request's end is told: a log line, metrics, a record, each once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.core.model import Granted, Outcome
from gateway.observe.log import request_line
from gateway.observe.recent import Recent
from gateway.observe.shadow import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.core.model import Transition
    from gateway.observe.log import Teller
    from gateway.observe.metrics import Metrics
    from gateway.observe.record import Record
    from gateway.observe.recorder import RecordWriter


@dataclass(slots=True)
class Totals:
    """Since the start. `rejected` counts refusals by code, before and after waiting alike;
    `answered_here` what needed no server and was not admitted (Ollama's question to load a model, an
    embedding of nothing)."""

    admitted: int = 0
    completed: int = 0
    answered_here: int = 0
    cancelled: int = 0
    failed: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The `totals` of /status."""
        return {
            "admitted": self.admitted,
            "completed": self.completed,
            "answered_here": self.answered_here,
            "rejected": dict(self.rejected),
            "cancelled": self.cancelled,
            "failed": self.failed,
        }


class Journal:
    """Tells of transitions and ends. No method raises: a request never fails for being told."""

    def __init__(self, log: Teller, metrics: Metrics, records: RecordWriter) -> None:
        self.totals = Totals()
        self.shadow = Tally()
        self.recent = Recent()
        self.metrics = metrics
        self.records = records
        self.on_end: Callable[[Record], None] | None = None
        """Told of each request's end, once, besides."""
        self._log = log

    def transition(self, transition: Transition) -> None:
        """Count one transition of the core."""
        if isinstance(transition, Granted):
            self.totals.admitted += 1
        self.metrics.on_transition(transition)

    def request(self, record: Record) -> None:
        """Tell how a request ended. A second call for the same record is ignored and counted."""
        if record.told:
            self.metrics.own_error("told_twice")
            return
        record.told = True
        self._count(record)
        self._try("log", lambda: request_line(self._log, record))
        self._try("record", lambda: self.records.write(record))
        self._try("recent", lambda: self.recent.count(record))
        self.metrics.on_request(record)
        if (on_end := self.on_end) is not None:
            self._try("evidence", lambda: on_end(record))

    def _count(self, record: Record) -> None:
        self.shadow.count(record)
        match record.outcome:
            case Outcome.COMPLETED if record.backend is None:
                self.totals.answered_here += 1
            case Outcome.COMPLETED:
                self.totals.completed += 1
            case Outcome.CANCELLED:
                self.totals.cancelled += 1
            case Outcome.FAILED:
                self.totals.failed += 1
            case Outcome.REJECTED | Outcome.EVICTED:
                code = "unknown" if record.code is None else record.code.value
                self.totals.rejected[code] = self.totals.rejected.get(code, 0) + 1
            case None:
                self.metrics.own_error("no_outcome")

    def _try(self, part: str, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:  # noqa: BLE001  # a closed stream or a bug here must not reach the relay
            self.metrics.own_error(part)
