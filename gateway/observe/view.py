"""Gauges from the core's view, made when somebody scrapes and kept nowhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.core.model import UNBOUNDED
from gateway.observe.record import OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from gateway.core.model import ClientView, PoolView, QueueView, QuotaView, View

_POOL: tuple[tuple[str, str, Callable[[PoolView], float]], ...] = (
    ("kv_limit_tokens", "KV tokens that may be reserved.", lambda p: p.kv.limit),
    ("kv_reserved_tokens", "KV tokens reserved.", lambda p: p.kv.reserved),
    ("kv_used_tokens", "KV tokens known to be in use.", lambda p: p.kv.used),
    ("kv_lingering_tokens", "KV tokens reserved for abandoned requests.", lambda p: p.lingering),
    ("prefill_limit_tokens", "Prompt tokens that may be in prefill.", lambda p: p.prefill.limit),
    ("prefill_reserved_tokens", "Prompt tokens in prefill.", lambda p: p.prefill.reserved),
    ("slots_limit", "Requests that may run at once.", lambda p: p.slots.limit),
    ("slots_reserved", "Requests running.", lambda p: p.slots.reserved),
    ("pool_open", "1 where requests are admitted, else 0.", lambda p: float(p.open)),
)
_QUEUE: tuple[tuple[str, str, Callable[[QueueView], float]], ...] = (
    ("queue_requests", "Requests waiting.", lambda q: q.requests),
    ("queue_tokens", "KV tokens the waiting requests need.", lambda q: q.tokens),
    ("queue_bytes", "Bytes of the waiting requests' bodies.", lambda q: q.bytes),
    (
        "queue_aside_requests",
        "Of the requests waiting, those that wait only to hear whether a server is there.",
        lambda q: q.aside,
    ),
    ("queue_oldest_seconds", "Age of the longest-waiting request.", lambda q: q.oldest_s),
)
_CLIENT: tuple[tuple[str, str, Callable[[ClientView], float]], ...] = (
    ("client_held_tokens", "KV tokens a client's requests reserve.", lambda c: c.held_tokens),
    ("client_inflight_requests", "A client's running requests.", lambda c: c.inflight),
    ("client_waiting_requests", "A client's waiting requests.", lambda c: c.waiting),
)
_QUOTA: tuple[tuple[str, str, Callable[[QuotaView], float | None]], ...] = (
    ("client_quota_tokens", "Tokens a client may use in a window.", lambda q: q.tokens),
    ("client_quota_used_tokens", "Tokens used in the window that is open.", lambda q: q.used),
    (
        "client_quota_under_way_tokens",
        "Tokens its requests hold, or need and wait for; they count against its quota.",
        lambda q: q.under_way,
    ),
    (
        "client_quota_window_left_seconds",
        "Until the window ends. Not there while none is open.",
        lambda q: q.left_s,
    ),
)
_ENGINE: tuple[tuple[str, str, Callable[[EngineView], float]], ...] = (
    ("server_on_trial", "1 until it has generated since it was reached.", lambda e: e.on_trial),
    (
        "loads_stale",
        "1 where the server's own counts are too old to compare.",
        lambda e: e.loads_stale,
    ),
    (
        "counting_requests",
        "Prompts being counted, or waiting for that; they are in no queue yet.",
        lambda e: e.counting,
    ),
)
_DRIFT = (
    "KV tokens used by the books beyond what the engine counts; negative where it counts more. "
    "Not there while the engine's counts are stale."
)


@dataclass(frozen=True, slots=True)
class EngineView:
    """What is told of one server beside its books."""

    backend: str
    on_trial: bool = False
    loads_stale: bool = False
    counting: int = 0  # prompts
    drift: Mapping[int, int] = field(default_factory=dict)  # KV tokens, by rank


class ViewCollector(Collector):
    """Reads `source` at each scrape. An unreadable view costs the gauges, not the scrape."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        self.source: Callable[[], View] | None = None
        self.engines: Callable[[], Iterable[EngineView]] = tuple
        self.quotas: Callable[[], Iterable[QuotaView]] = tuple
        self._failed = failed
        self._backends: frozenset[str] = frozenset()
        self._clients: frozenset[str] = frozenset()

    def set_names(self, backends: frozenset[str], clients: frozenset[str]) -> None:
        """The names that may become labels."""
        self._backends, self._clients = backends, clients

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read the view."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The gauges of this instant."""
        if self.source is None:
            return []
        try:
            return [
                *self._gauges(self.source()),
                *self._of_engines(list(self.engines())),
                *self._of_quotas(list(self.quotas())),
            ]
        except Exception:  # noqa: BLE001  # the counters must still be scraped
            self._failed("view")
            return []

    def _gauges(self, view: View) -> list[Metric]:
        pools = [
            ((self._known(p.pool.backend, self._backends), str(p.pool.rank)), p) for p in view.pools
        ]
        clients = [((self._known(c.name, self._clients),), c) for c in view.clients]
        return [
            *(
                _family(name, about, ("backend", "rank"), [(k, read(p)) for k, p in pools])
                for name, about, read in _POOL
            ),
            *(_family(name, about, (), [((), read(view.queue))]) for name, about, read in _QUEUE),
            *(
                _family(name, about, ("client",), [(k, read(c)) for k, c in clients])
                for name, about, read in _CLIENT
            ),
        ]

    def _of_engines(self, engines: list[EngineView]) -> list[Metric]:
        names = [self._known(engine.backend, self._backends) for engine in engines]
        drift = [
            ((name, str(rank)), tokens)
            for name, engine in zip(names, engines, strict=True)
            for rank, tokens in engine.drift.items()
            if not engine.loads_stale
        ]
        return [
            _family("drift_tokens", _DRIFT, ("backend", "rank"), drift),
            *(
                _family(
                    name,
                    about,
                    ("backend",),
                    [((who,), float(read(one))) for who, one in zip(names, engines, strict=True)],
                )
                for name, about, read in _ENGINE
            ),
        ]

    def _of_quotas(self, quotas: list[QuotaView]) -> list[Metric]:
        names = [(self._known(quota.client, self._clients),) for quota in quotas]
        return [
            _family(
                name,
                about,
                ("client",),
                [
                    (who, value)
                    for who, one in zip(names, quotas, strict=True)
                    if (value := read(one)) is not None
                ],
            )
            for name, about, read in _QUOTA
        ]

    @staticmethod
    def _known(name: str, names: frozenset[str]) -> str:
        return name if name in names else OTHER


def _family(
    name: str, about: str, labels: Sequence[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    """One gauge. Values of equal labels (several strangers are all `other`) are added up."""
    family = GaugeMetricFamily(f"kvgate_{name}", about, labels=labels)
    sums: dict[tuple[str, ...], float] = {}
    for key, value in values:
        sums[key] = sums.get(key, 0.0) + (value if value < UNBOUNDED else math.inf)
    for key, total in sums.items():
        family.add_metric(key, total)
    return family
