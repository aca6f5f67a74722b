"""Traces: spans of a record, and what a package or collector that is not there costs."""

from __future__ import annotations

import importlib.util
import itertools
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from structlog.testing import CapturingLogger

from gateway.core.model import Code, Outcome
from gateway.observe.record import Record
from gateway.observe.spans import Span, parent_of, spans
from gateway.observe.traces import Delivery, Traces

from .made_up import finished, refused

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{PARENT}-01"
MS = 1_000_000
AT = datetime(2026, 11, 29, 12, 0, 0, 250_000, tzinfo=UTC)
START = 1_795_953_600_250 * MS
URL = "http://10.0.0.7:30000"

needs_sdk = pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry") is None,
    reason="opentelemetry-sdk is not here: pip install kvgate[otel]",
)


def made(record: Record) -> tuple[Span, dict[str, tuple[int, int]]]:
    """The request's span, and each phase's begin and end in ms after the arrival."""
    whole, *phases = spans(record, URL)
    for before, after in itertools.pairwise(phases):
        assert before.end == after.start
    assert (phases[0].start, phases[-1].end) == (whole.start, whole.end)
    assert all(phase.start <= phase.end for phase in phases)
    return whole, {
        one.name: ((one.start - whole.start) // MS, (one.end - whole.start) // MS) for one in phases
    }


def test_phases_follow_one_another_and_cover_the_request() -> None:
    whole, phases = made(finished(at=AT, door_ms=30.0))
    assert (whole.start, whole.end) == (START, START + 16_000 * MS)
    assert phases == {
        "door": (0, 30),
        "queue": (30, 150),
        "prefill": (150, 2500),
        "decode": (2500, 16_000),
    }


NOT_STREAMED = {"streamed": False, "ttft_ms": None, "door_ms": 30.0}
BEFORE = {"backend": None, "kv_reserved": None, "queue_ms": None, "ttft_ms": None}


@pytest.mark.parametrize(
    ("changes", "phases"),
    [
        (NOT_STREAMED, {"door": 30, "queue": 150, "generate": 16_000}),
        (NOT_STREAMED | {"dialect": "embeddings"}, {"door": 30, "queue": 150, "prefill": 16_000}),
        # `admission: off`: nothing is counted, nothing waits
        ({"queue_ms": None}, {"prefill": 2500, "decode": 16_000}),
        # left while waiting: how long that was is what remains
        (BEFORE | {"door_ms": 30.0, "outcome": Outcome.CANCELLED}, {"door": 30, "queue": 16_000}),
        (BEFORE | {"outcome": Outcome.CANCELLED}, {"door": 16_000}),
        # its second wait was too long
        (
            {"door_ms": 30.0, "queue_ms": 15_970, "ttft_ms": None, "outcome": Outcome.EVICTED},
            {"door": 30, "queue": 16_000},
        ),
        # broke before the first token
        ({"door_ms": 0.0, "ttft_ms": None}, {"door": 0, "queue": 120, "prefill": 16_000}),
        # numbers that cannot be: never a span that ends before it begins
        (
            {"door_ms": 99e3, "queue_ms": 99e3, "ttft_ms": -1.0},
            {"door": 16_000, "queue": 16_000, "prefill": 16_000, "decode": 16_000},
        ),
    ],
)
def test_phases_are_those_it_came_to(changes: dict[str, Any], phases: dict[str, int]) -> None:
    _, found = made(finished(**changes))
    assert {name: end for name, (_, end) in found.items()} == phases


def test_names_are_those_of_the_conventions() -> None:
    whole, *phases = spans(finished(dialect="chat", cap_asked=9000, cached_tokens=12_288), URL)
    assert (whole.name, whole.kind, whole.error) == ("chat qwen", "CLIENT", None)
    assert whole.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sglang",
        "gen_ai.request.model": "qwen",
        "gen_ai.request.max_tokens": 8192,
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 19_004,
        "gen_ai.usage.output_tokens": 640,
        "gen_ai.usage.cache_read.input_tokens": 12_288,
        "gen_ai.response.time_to_first_chunk": 2.5,
        "server.address": "10.0.0.7",
        "server.port": 30_000,
        "http.response.status_code": 200,
        "kvgate.request.id": "r1",
        "kvgate.client": "agents",
        "kvgate.dialect": "chat",
        "kvgate.outcome": "completed",
        "kvgate.backend": "gpu0",
        "kvgate.rank": 0,
        "kvgate.attempts": 1,
        "kvgate.max_tokens.asked": 9000,
        "kvgate.max_tokens.source": "injected",
        "kvgate.kv.reserved": 27_193,
        "kvgate.kv.free": 66_700,
    }
    assert {one.kind for one in phases} == {"INTERNAL"}
    # Who adds up gen_ai.usage over all spans must not count anything twice.
    assert [one.attributes for one in phases] == [{}, {}, {}]


def test_every_attribute_and_phase_is_documented() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text()
    section = docs.partition("## Traces")[2].partition("\n## ")[0]
    full = finished(n=2, cap_asked=1, cached_tokens=1, code=Code.QUEUE_FULL, needed=1, available=1)
    full.position, full.retry_after_s, full.session, full.retry = 1, 1.0, "5e551", "early"
    full.tools_left_out = "web_search=1"
    found = set(spans(full, URL)[0].attributes)
    assert found == set(re.findall(r"`((?:gen_ai|server|http|error|kvgate)\.[a-z_.]+)`", section))


def test_a_refusal_says_what_it_lacked() -> None:
    whole, *phases = spans(refused(e2e_ms=4.0, dialect="text", needed=70_000, available=66_700))
    assert whole.name == "text_completion"
    assert whole.attributes["kvgate.code"] == whole.attributes["error.type"] == "queue_full"
    assert whole.attributes["kvgate.needed"] == 70_000
    assert "server.address" not in whole.attributes
    assert [(one.name, one.error) for one in phases] == [("door", "queue_full")]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"outcome": Outcome.CANCELLED, "upstream_status": None}, None),
        ({"upstream_status": 400}, "400"),
        ({"outcome": Outcome.FAILED, "upstream_status": 503}, "503"),
        ({"outcome": Outcome.FAILED, "reason": "connection reset"}, "upstream_error"),
        ({"outcome": Outcome.EVICTED, "code": Code.QUEUE_TIMEOUT}, "queue_timeout"),
    ],
)
def test_what_went_wrong_is_a_word_of_a_closed_set(changes: Any, error: str | None) -> None:
    whole, *phases = spans(finished(**changes))
    assert whole.error == whole.attributes.get("error.type") == error
    assert [one.error for one in phases[:-1]] == [None] * (len(phases) - 1)
    assert phases[-1].error == error


def test_a_request_that_has_not_ended_has_none() -> None:
    assert spans(Record("x")) == []


@pytest.mark.parametrize(
    ("sent", "parent"),
    [
        ([HEADER], HEADER),
        ([HEADER.replace("00-", "cc-", 1) + "-what-comes-later"], f"cc{HEADER[2:]}"),
        ([], None),
        ([HEADER, HEADER], None),
        ([""], None),
        ([HEADER.upper()], None),
        ([HEADER + "-more"], None),
        ([HEADER + "\n"], None),
        ([HEADER + " "], None),
        ([HEADER.replace("00-", "ff-", 1)], None),
        ([HEADER.replace("00-", "cc-", 1) + "more"], None),
        ([f"00-{'0' * 32}-{PARENT}-01"], None),
        ([f"00-{TRACE}-{'0' * 16}-01"], None),
        ([f"00-{TRACE}-{PARENT}-1"], None),
        ([f"00-{TRACE[:-1]}g-{PARENT}-01"], None),
        ([f"00-{'١' * 32}-{PARENT}-01"], None),
        (["sk-secret-of-somebody"], None),
        (["00-" * 5000], None),
    ],
)
def test_only_a_valid_traceparent_is_a_parent(sent: list[str], parent: str | None) -> None:
    assert parent_of(sent) == parent


# ---- what is not there -----------------------------------------------------------------------


def logger() -> tuple[Any, CapturingLogger]:
    captured = CapturingLogger()
    return structlog.wrap_logger(
        captured, processors=[], wrapper_class=structlog.BoundLogger
    ), captured


def told(log: CapturingLogger) -> list[tuple[str, Any]]:
    return [
        (call.args[0] if call.args else call.kwargs["event"], call.kwargs) for call in log.calls
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ImportError("x"), "pip install kvgate[otel]"), (ValueError("bad: secret"), "ValueError")],
)
async def test_without_the_package_there_is_one_warning_and_no_trace(
    error: Any, reason: str
) -> None:
    def load(name: str) -> Any:
        raise error

    log, calls = logger()
    traces = Traces(URL, log, lambda name: URL, load=load)
    traces.start()
    traces.ended(finished())
    await traces.stop()
    ((event, facts),) = told(calls)
    assert event == "no_traces"
    assert reason in facts["reason"]
    assert "secret" not in str(facts)


async def test_an_sdk_that_breaks_is_told_once_and_left_alone() -> None:
    log, calls = logger()
    traces = Traces(URL, log, lambda name: URL, load=lambda name: SimpleNamespace(Context=dict))
    traces.use(SimpleNamespace(get_tracer=lambda *args: SimpleNamespace()))
    traces._write([(finished(), URL), (finished(), URL)])
    traces._write([(finished(), URL)])
    ((event, facts),) = told(calls)
    assert (event, "AttributeError" in facts["reason"]) == ("no_traces", True)


async def test_without_a_url_nothing_is_loaded() -> None:
    log, calls = logger()
    traces = Traces(None, log, lambda name: URL, load=lambda name: pytest.fail("loaded"))
    traces.start()
    traces.ended(finished())
    await traces.stop()
    assert calls.calls == []


def test_an_outage_is_told_once_and_its_end_once() -> None:
    answers = [None, OSError("gone"), "failure", "failure", None, None, "failure"]

    def export(batch: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    warned = []
    delivery = Delivery(
        SimpleNamespace(export=export), "failure", URL, lambda event, **facts: warned.append(event)
    )
    results = [delivery.export([]) for _ in range(7)]
    assert results == [None, "failure", "failure", "failure", None, None, "failure"]
    again = "traces_not_delivered"
    assert warned == [again, "traces_delivered_again", again]


# ---- the SDK itself --------------------------------------------------------------------------


@needs_sdk
def test_the_sdk_takes_them_under_the_clients_span() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    log, _ = logger()
    traces = Traces(URL, log, {"gpu0": URL}.get)
    traces.use(provider)

    def tell(record: Record) -> None:
        traces._write([(record, URL)])

    tell(finished(at=AT, traceparent=HEADER))
    root, *phases = memory.get_finished_spans()
    assert f"{root.context.trace_id:032x}" == TRACE
    assert f"{root.parent.span_id:016x}" == PARENT
    assert root.parent.is_remote
    assert (root.start_time, root.end_time) == (START, START + 16_000 * MS)
    assert root.attributes["server.address"] == "10.0.0.7"
    assert root.status.is_unset
    assert [one.name for one in phases] == ["queue", "prefill", "decode"]
    assert {one.parent.span_id for one in phases} == {root.context.span_id}
    assert {one.context.trace_id for one in phases} == {root.context.trace_id}

    memory.clear()
    tell(refused(e2e_ms=4.0))
    root, door = memory.get_finished_spans()
    assert root.parent is None
    assert (root.status.status_code.name, root.status.description) == ("ERROR", "queue_full")
    assert door.parent.span_id == root.context.span_id

    memory.clear()  # a client that does not want this one sampled
    tell(finished(traceparent=HEADER[:-1] + "0"))
    assert memory.get_finished_spans() == ()
