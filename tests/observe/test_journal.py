"""The journal: each end told once, everywhere, whatever breaks."""

from __future__ import annotations

from typing import Any

import structlog
from structlog.testing import CapturingLogger

from gateway.core.model import Code, Demand, Grant, Granted, Outcome, PoolId, RequestId
from gateway.observe.journal import Journal
from gateway.observe.metrics import Metrics
from gateway.observe.record import Record
from gateway.observe.recorder import RecordWriter

from .made_up import finished, refused


def journal(log: Any = None) -> tuple[Journal, CapturingLogger]:
    captured = CapturingLogger()
    wrapped = structlog.wrap_logger(captured, processors=[], wrapper_class=structlog.BoundLogger)
    records = RecordWriter(None, recent=9, max_bytes=1, keep=0, warn=lambda event, **facts: None)
    return Journal(log or wrapped, Metrics(["gpu0"], ["agents"]), records), captured


def errors(told: Journal) -> dict[str, float]:
    return {
        sample.labels["part"]: sample.value
        for metric in told.metrics.registry.collect()
        if metric.name == "kvgate_observe_errors"
        for sample in metric.samples
    }


def test_a_request_is_told_once_to_log_metrics_and_records() -> None:
    told, log = journal()
    record = finished()
    told.request(record)
    told.request(record)
    assert [call.method_name for call in log.calls] == ["info"]
    assert [values["id"] for values in told.records.recent()] == ["r1"]
    assert told.totals.completed == 1
    assert errors(told) == {"told_twice": 1}


def test_totals_are_those_of_status() -> None:
    told, _ = journal()
    told.transition(
        Granted(
            Grant(
                RequestId("r"), PoolId("gpu0"), Demand(1, 2, 3, 4), None, injected=False, queued_s=0
            )
        )
    )
    for record in (
        finished(),
        finished(backend=None),
        finished(outcome=Outcome.FAILED),
        finished(outcome=Outcome.CANCELLED),
        refused(Code.QUEUE_FULL),
        refused(Code.QUEUE_FULL),
        refused(Code.QUEUE_TIMEOUT, outcome=Outcome.EVICTED),
    ):
        told.request(record)
    assert told.totals.to_dict() == {
        "admitted": 1,
        "completed": 1,
        "answered_here": 1,
        "rejected": {"queue_full": 2, "queue_timeout": 1},
        "cancelled": 1,
        "failed": 1,
    }
    assert errors(told) == {}


def test_a_broken_log_does_not_stop_the_rest() -> None:
    class Broken:
        def info(self, event: str, **facts: object) -> None:
            raise OSError

    told, _ = journal(Broken())
    told.request(finished())
    assert len(told.records.recent()) == 1
    assert told.totals.completed == 1
    assert errors(told) == {"log": 1}


def test_a_record_without_an_outcome_is_noticed() -> None:
    told, _ = journal()
    told.request(Record("r"))
    assert errors(told) == {"no_outcome": 1}
