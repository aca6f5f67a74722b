"""Prometheus metrics: counted from transitions and records, gauges read from the core at scrape.

Theory of operation: what is going on (queued, admitted, given back) is counted from the core's
transitions as they happen. How requests *ended* is counted from their records, of which there is
exactly one a request, also for those the core never saw (a bad key, a broken body). Gauges are
never stored: a collector reads the core's view when somebody scrapes, so they cannot drift.

Every label's values form a closed set: words of the core, and names of the policy; whatever else
comes counts as `other`. Nothing here raises into its caller; `kvgate_observe_errors_total` counts
what went wrong instead.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from gateway.core.model import (
    Code,
    Granted,
    Lingering,
    Outcome,
    Queued,
    Refused,
    Release,
    Released,
    Resized,
)
from gateway.observe.record import OTHER, PHASES
from gateway.observe.view import ViewCollector
from gateway.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from prometheus_client.metrics_core import Metric

    from gateway.core.model import QuotaView, Transition, View
    from gateway.observe.record import Record
    from gateway.observe.view import EngineView

P = ParamSpec("P")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

UPSTREAM_CODES = ("upstream_busy", "upstream_rejected", "upstream_error")
"""`code` where the server refused: 429 or 503; another 4xx; another 5xx."""

_BUSY_STATUS = frozenset({429, 503})
_FIRST_SERVER_ERROR = 500

# Bucket bounds. Each range is that of what was measured or is allowed, in steps of about 2-2.5.
_WAIT = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 90, 120, 300)
_FIRST_TOKEN = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 900)
_PER_TOKEN = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
_WHOLE = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 3600)
_PROMPT = (64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
_OUTPUT = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


def _guarded(
    method: Callable[Concatenate[Metrics, P], None],
) -> Callable[Concatenate[Metrics, P], None]:
    @functools.wraps(method)
    def guarded(self: Metrics, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:  # noqa: BLE001  # a metric that cannot be counted must not cost a request
            self.own_error("metrics")

    return guarded


class _Registry(CollectorRegistry):
    """Without the `_created` series, which double the output and serve no query here."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


class Metrics:
    """All metrics of one gate, in a registry of its own."""

    def __init__(self, backends: Collection[str], clients: Collection[str]) -> None:
        self.registry = _Registry()
        self._series: dict[tuple[object, ...], Counter] = {}
        self._spread: dict[tuple[object, ...], Histogram] = {}
        self._view = ViewCollector(self.own_error)
        self.registry.register(self._view)
        ProcessCollector(registry=self.registry)
        self._build = self._gauge("build_info", "Constant 1, labelled with the version.", "version")
        self._build.labels(version=VERSION).set(1)
        self._errors = self._counter(
            "observe_errors", "Failures of logging, records and metrics themselves.", "part"
        )
        self._from_transitions()
        self._from_records()
        self.set_names(backends, clients)

    def _from_transitions(self) -> None:
        self._queued = self._counter("queued", "Requests that had to wait.")
        self._admitted = self._counter("admitted", "Requests granted a reservation.", "backend")
        self._injected = self._counter(
            "caps_injected", "Requests without an output cap that were given one.", "backend"
        )
        self._clamped = self._counter(
            "caps_clamped", "Requests whose output cap was lowered.", "backend"
        )
        self._waited = self._histogram(
            "queue_seconds",
            "Time waited, of those granted and those refused after waiting.",
            _WAIT,
            "end",
        )
        self._released = self._counter("released", "Reservations given back.", "backend", "why")
        self._lingered = self._counter(
            "lingered",
            "Reservations kept after the client or the way to the server was lost.",
            "backend",
        )
        self._resized = self._counter(
            "resized", "Changes of a pool's limits, its first reading included.", "backend"
        )

    def _from_records(self) -> None:
        self._ended = self._counter(
            "ended",
            "Requests by how they ended and how far they came.",
            "client",
            "outcome",
            "phase",
        )
        self._refused = self._counter(
            "refused", "Refusals by code and by who refused.", "code", "source"
        )
        self._retries = self._counter(
            "retries",
            "Requests refused before: kept came when told to, early sooner, damped too often so.",
            "client",
            "how",
        )
        self._shadow = self._counter(
            "shadow",
            "What would have become of a request under admission: shadow; code where refused.",
            "verdict",
            "code",
        )
        self._tokens = self._counter(
            "tokens",
            "Prompt tokens as counted here and output tokens as reported.",
            "client",
            "kind",
        )
        self._ttft = self._histogram(
            "ttft_seconds",
            "From arrival to the first byte of the answer, streamed requests only.",
            _FIRST_TOKEN,
            "backend",
        )
        self._tpot = self._histogram(
            "tpot_seconds",
            "Mean time per output token after the first, one sample a request.",
            _PER_TOKEN,
            "backend",
        )
        self._e2e = self._histogram(
            "e2e_seconds", "From arrival to the end, completed requests only.", _WHOLE, "backend"
        )
        self._prompt = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", _PROMPT
        )
        self._output = self._histogram(
            "request_output_tokens", "Output tokens of a request.", _OUTPUT
        )
        self._drift = self._counter(
            "count_drift_tokens",
            "Prompt tokens by which the server's count differed from ours.",
            "direction",
        )
        self._undercounted = self._counter(
            "undercounted",
            "Requests of which the server counted more prompt tokens than we did.",
            "backend",
        )

    def _from_zero(self) -> None:
        """What alerts ask for is there from the start: a rate does not see a series begin above 0."""
        for code in Code:
            self._refused.labels(code.value, "gateway")
        for word in UPSTREAM_CODES:
            self._refused.labels(word, "upstream")
        for backend in self._backends:
            self._undercounted.labels(backend)
            for why in Release:
                self._released.labels(backend, why.value)
        for client in self._clients:
            self._retries.labels(client, "damped")
            for phase in PHASES:
                self._ended.labels(client, Outcome.FAILED.value, phase)

    def set_names(self, backends: Collection[str], clients: Collection[str]) -> None:
        """The names that may become labels, anew at each reload."""
        self._backends = frozenset(backends)
        self._clients = frozenset(clients)
        self._view.set_names(self._backends, self._clients)
        self._from_zero()

    def set_view(self, view: Callable[[], View]) -> None:
        """Where the gauges come from; called at each scrape."""
        self._view.source = view

    def set_engines(self, engines: Callable[[], Iterable[EngineView]]) -> None:
        """The same for what is told of servers beside the books."""
        self._view.engines = engines

    def set_quotas(self, quotas: Callable[[], Iterable[QuotaView]]) -> None:
        """The same for the clients that have a quota."""
        self._view.quotas = quotas

    def render(self) -> tuple[bytes, str]:
        """The scrape: body and content type."""
        return generate_latest(self.registry), CONTENT_TYPE

    def own_error(self, part: str) -> None:
        """Count a failure of observation itself; `part` is a word of the caller's code."""
        self._errors.labels(part=part).inc()

    @_guarded
    def on_transition(self, transition: Transition) -> None:
        """Count one transition of the core. `Ended` is not counted: its record will be."""
        match transition:
            case Queued():
                self._queued.inc()
            case Granted(grant):
                backend = self._backend(grant.pool.backend)
                self._count(self._admitted, backend)
                self._observe(self._waited, grant.queued_s, "granted")
                if grant.injected:
                    self._count(self._injected, backend)
                if grant.clamped_from is not None:
                    self._count(self._clamped, backend)
            case Refused(queued_s=float() | int() as waited):
                self._observe(self._waited, waited, "refused")
            case Lingering(pool=pool):
                self._count(self._lingered, self._backend(pool.backend))
            case Released(pool=pool, why=why):
                self._count(self._released, self._backend(pool.backend), why.value)
            case Resized(pool=pool):
                self._count(self._resized, self._backend(pool.backend))
            case _:
                pass

    @_guarded
    def on_request(self, record: Record) -> None:
        """Count how one request ended."""
        client = record.client if record.client in self._clients else OTHER
        backend = self._backend(record.backend)
        outcome = OTHER if record.outcome is None else Outcome(record.outcome).value
        self._count(self._ended, client, outcome, record.phase)
        if record.source is not None:
            self._count(self._refused, _code(record), record.source)
        if record.retry is not None:
            self._count(self._retries, client, record.retry)
        if record.shadow is not None:
            code = "none" if record.shadow_code is None else record.shadow_code.value
            self._count(self._shadow, record.shadow, code)
        self._observe_tokens(record, client)
        self._observe_drift(record, backend)
        if record.ttft_ms is not None and record.streamed:
            self._observe(self._ttft, record.ttft_ms / 1000, backend)
        if record.tpot_ms is not None:
            self._observe(self._tpot, record.tpot_ms / 1000, backend)
        if record.e2e_ms is not None and record.outcome is Outcome.COMPLETED:
            self._observe(self._e2e, record.e2e_ms / 1000, backend)

    def _observe_tokens(self, record: Record, client: str) -> None:
        if record.prompt_tokens is not None:
            self._prompt.observe(record.prompt_tokens)
            self._count(self._tokens, client, "prompt", by=record.prompt_tokens)
        if record.output_tokens is not None:
            self._output.observe(record.output_tokens)
            self._count(self._tokens, client, "output", by=record.output_tokens)

    def _observe_drift(self, record: Record, backend: str) -> None:
        drift = record.count_drift
        if not drift:
            return
        self._count(self._drift, "under" if drift > 0 else "over", by=abs(drift))
        if drift > 0:
            self._count(self._undercounted, backend)

    def _backend(self, name: str | None) -> str:
        return name if name is not None and name in self._backends else OTHER

    def _count(self, metric: Counter, *labels: str, by: float = 1) -> None:
        """Add to the series of these labels. Looking a series up costs more than adding to it."""
        key = (metric, *labels)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = metric.labels(*labels) if labels else metric
        series.inc(by)

    def _observe(self, metric: Histogram, value: float, *labels: str) -> None:
        """The same of a histogram."""
        key = (metric, *labels)
        series = self._spread.get(key)
        if series is None:
            series = self._spread[key] = metric.labels(*labels) if labels else metric
        series.observe(value)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"kvgate_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(f"kvgate_{name}", about, labels, registry=self.registry)

    def _histogram(
        self, name: str, about: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"kvgate_{name}", about, labels, buckets=buckets, registry=self.registry)


def _code(record: Record) -> str:
    if record.code is not None:
        return Code(record.code).value
    status = record.upstream_status or 0
    if status in _BUSY_STATUS:
        return "upstream_busy"
    return "upstream_error" if status >= _FIRST_SERVER_ERROR else "upstream_rejected"
