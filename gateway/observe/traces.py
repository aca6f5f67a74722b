"""Traces to an OpenTelemetry collector (`pip install kvgate[otel]`), by OTLP over HTTP.

The gate only puts records into a queue. A thread loads the SDK and makes spans (0.2 ms of processor
time a request, too long to lie between an answer and its client); the SDK's batch processor sends them
from another one. Both queues are bounded: no request waits for a trace. A package that is not there, or a collector that
takes nothing, costs the traces and one warning. The SDK's own variables hold beside the policy:
OTEL_EXPORTER_OTLP_HEADERS for a collector's key, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from gateway.observe.background import Background
from gateway.observe.spans import spans
from gateway.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from gateway.observe.background import Warn
    from gateway.observe.record import Record

CLOSE_S: Final = 2.0
"""How long the last spans may take to be sent when the gate stops, seconds, as for the evidence."""

BACKLOG: Final = 2_048
"""Records that may wait: as many as the SDK lets spans wait, and ten seconds of a busy gate while it
is being loaded. What comes on top is dropped."""

BATCH: Final = 16
"""Records taken at once: some 3 ms of work, less than Python lets a thread keep others waiting."""

PATH: Final = "/v1/traces"
"""Where a collector takes traces (OTLP specification, OTLP/HTTP request)."""


class Delivery:
    """The SDK's exporter, with one warning an outage where it would log each batch."""

    def __init__(self, exporter: Any, failure: Any, url: str, warn: Warn) -> None:  # noqa: ANN401
        self._exporter = exporter
        self._failure = failure
        self._url = url
        self._warn = warn
        self._failing = False

    def export(self, batch: Any) -> Any:  # noqa: ANN401  # the SDK's types may not be here
        """Send; never raises. Called from the SDK's thread."""
        try:
            result = self._exporter.export(batch)
        except Exception:  # noqa: BLE001  # whatever a collector answers
            result = self._failure
        failed = result is self._failure
        if failed and not self._failing:
            reason = "the collector does not take them; requests go on without"
            self._warn("traces_not_delivered", url=self._url, reason=reason)
        elif self._failing and not failed:
            self._warn("traces_delivered_again", url=self._url)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        """Send no more."""
        self._exporter.shutdown()


class Traces:
    """`start`, then `stop`, each once; without a `url` neither does anything. `server` tells the URL
    of a server by its name."""

    def __init__(
        self,
        url: str | None,
        log: FilteringBoundLogger,
        server: Callable[[str], str | None],
        *,
        load: Callable[[str], Any] = import_module,
    ) -> None:
        self._url = url
        self._log = log
        self._server = server
        self._load = load
        self._waiting: Background[tuple[Record, str | None]] | None = None
        self._provider: Any = None
        self._tracer: Any = None
        self._api: Any = None
        self._nowhere: Any = None  # the context of a span that has no parent

    def start(self) -> None:
        """Begin. Nothing is waited for."""
        if self._url is not None:
            self._waiting = Background(
                "traces",
                self._url,
                self._write,
                warn=self._log.warning,
                backlog=BACKLOG,
                batch=BATCH,
                on_start=self._begin,
                on_close=self._end,
            )

    def ended(self, record: Record) -> None:
        """A request ended. Never blocks and never raises."""
        if self._waiting is not None:
            server = None if record.backend is None else self._server(record.backend)
            self._waiting.put((record, server))

    async def stop(self) -> None:
        """Send what waits, for up to `CLOSE_S`; a collector that hangs is left behind."""
        if self._waiting is not None:
            await asyncio.to_thread(self._waiting.close, CLOSE_S)

    def use(self, provider: Any) -> None:  # noqa: ANN401
        """Hand spans to this TracerProvider."""
        self._api = self._load("opentelemetry.trace")
        self._nowhere = self._load("opentelemetry.context").Context()
        self._provider = provider
        self._tracer = provider.get_tracer("kvgate", VERSION)

    # ---- in the thread ---------------------------------------------------------------------------

    def _begin(self) -> None:
        """Load the SDK and ask the collector, in a thread, whether it is there."""
        try:
            delivery = self._build(f"{self._url}{PATH}")
        except ImportError:
            self._no_traces("no opentelemetry-sdk and OTLP exporter here: pip install kvgate[otel]")
        except Exception as error:  # noqa: BLE001  # an OTEL_ variable it cannot read, for example
            self._no_traces(f"the OpenTelemetry SDK does not start: {type(error).__name__}")
        else:
            threading.Thread(target=delivery.export, args=([],), name="otlp", daemon=True).start()

    def _build(self, endpoint: str) -> Delivery:
        sdk = self._load("opentelemetry.sdk.trace")
        export = self._load("opentelemetry.sdk.trace.export")
        resources = self._load("opentelemetry.sdk.resources")
        otlp = self._load("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        # It logs every batch that fails, and its retries; `Delivery` tells of an outage once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        ours = resources.Resource.create({"service.name": "kvgate", "service.version": VERSION})
        provider = sdk.TracerProvider(
            resource=ours.merge(resources.OTELResourceDetector().detect()),
            shutdown_on_exit=False,  # it would hold up a process that leaves; see `stop`
        )
        exporter, failure = (
            otlp.OTLPSpanExporter(endpoint=endpoint),
            export.SpanExportResult.FAILURE,
        )
        delivery = Delivery(exporter, failure, endpoint, self._log.warning)
        provider.add_span_processor(export.BatchSpanProcessor(delivery))
        self.use(provider)
        return delivery

    def _no_traces(self, reason: str) -> None:
        self._tracer = None
        self._log.warning("no_traces", reason=reason)

    def _write(self, batch: list[tuple[Record, str | None]]) -> None:
        try:
            for record, server in batch:
                if self._tracer is not None:
                    self._hand_over(record, server)
        except Exception as error:  # noqa: BLE001  # a bug here must not be told for each request
            self._no_traces(f"the OpenTelemetry SDK does not take them: {type(error).__name__}")

    def _hand_over(self, record: Record, server: str | None) -> None:
        context = self._parent(record.traceparent)
        for span in spans(record, server):
            made = self._tracer.start_span(
                span.name,
                context=context,
                kind=self._api.SpanKind[span.kind],
                attributes=span.attributes,
                start_time=span.start,
            )
            if span.error is not None:
                made.set_status(self._api.StatusCode.ERROR, span.error)
            made.end(span.end)
            if span.kind == "CLIENT":  # the first: the others are its children
                context = self._api.set_span_in_context(made, context)

    def _parent(self, traceparent: str | None) -> Any:  # noqa: ANN401
        if traceparent is None:
            return self._nowhere
        _, trace, span, flags = traceparent.split("-")
        parent = self._api.SpanContext(
            int(trace, 16),
            int(span, 16),
            is_remote=True,
            trace_flags=self._api.TraceFlags(int(flags, 16)),
        )
        return self._api.set_span_in_context(self._api.NonRecordingSpan(parent), self._nowhere)

    def _end(self) -> None:
        if self._provider is not None:
            self._provider.shutdown()
