"""Metrics: closed label sets, right numbers, and a scrape that works whatever is broken."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.model import (
    Code,
    Demand,
    Ended,
    Grant,
    Granted,
    Lingering,
    Outcome,
    PoolId,
    PoolLimits,
    Queued,
    QuotaView,
    Refusal,
    Refused,
    Release,
    Released,
    RequestId,
    Resized,
    Transition,
    View,
)
from gateway.observe.metrics import UPSTREAM_CODES, Metrics
from gateway.observe.record import OTHER, PHASES, Record, Retry, Verdict
from gateway.observe.view import EngineView

from .made_up import finished, refused, view

BACKENDS = ("gpu0", "gpu1")
CLIENTS = ("agents", "anyone")
DEMAND = Demand(cap=1, kv=2, prefill=3, slots=4)


def metrics() -> Metrics:
    return Metrics(BACKENDS, CLIENTS)


def samples(m: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """All samples as (name, label values in order of label name) → value."""
    text, _ = m.render()
    return {
        (s.name, tuple(v for _, v in sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text.decode())
        for s in family.samples
    }


def grant(backend: str = "gpu0", **changes: Any) -> Granted:
    values = {"clamped_from": None, "injected": False, "queued_s": 0.3} | changes
    return Granted(Grant(RequestId("r"), PoolId(backend), DEMAND, **values))


def every_transition(backend: str) -> list[Transition]:
    pool = PoolId(backend, 1)
    return [
        Queued(RequestId("r"), 1, 5),
        grant(backend, injected=True),
        grant(backend, clamped_from=9),
        Refused(RequestId("r"), Refusal(Code.QUEUE_FULL, "full")),
        Refused(RequestId("r"), Refusal(Code.QUEUE_TIMEOUT, "late"), queued_s=120),
        Lingering(RequestId("r"), pool, 1.0),
        *(Released(RequestId("r"), pool, DEMAND, why) for why in Release),
        *(Ended(RequestId("r"), outcome) for outcome in Outcome),
        Resized(pool, None, PoolLimits(5)),
    ]


def test_the_list_above_holds_every_transition() -> None:
    assert {type(t) for t in every_transition("gpu0")} == set(get_args(Transition))


ALLOWED = {
    "backend": {*BACKENDS, OTHER},
    "client": {*CLIENTS, OTHER},
    "code": {*(c.value for c in Code), *UPSTREAM_CODES, "none"},
    "verdict": set(get_args(Verdict)),
    "how": set(get_args(Retry)),
    "source": {"gateway", "upstream"},
    "outcome": {*(o.value for o in Outcome), OTHER},
    "phase": set(PHASES),
    "why": {r.value for r in Release},
    "end": {"granted", "refused"},
    "kind": {"prompt", "output"},
    "direction": {"over", "under"},
    "rank": {"0", "1"},
    "part": {"metrics", "view", "test"},
}
FREE = {"le", "version"}  # bucket bounds of this code, the version of this package

TEXT = st.text(max_size=5)
RECORDS = st.builds(
    Record,
    id=TEXT,
    client=st.sampled_from(CLIENTS) | TEXT,
    backend=st.none() | st.sampled_from(BACKENDS) | TEXT,
    model=TEXT,
    dialect=TEXT,
    reason=TEXT,
    outcome=st.none() | st.sampled_from(Outcome),
    code=st.none() | st.sampled_from(Code),
    upstream_status=st.none() | st.integers(100, 999),
    prompt_tokens=st.none() | st.integers(0, 10),
    usage_prompt_tokens=st.none() | st.integers(0, 10),
    output_tokens=st.none() | st.integers(0, 10),
    queue_ms=st.none() | st.floats(0, 1e6),
    ttft_ms=st.none() | st.floats(0, 1e6),
    tpot_ms=st.none() | st.floats(0, 1e6),
    e2e_ms=st.none() | st.floats(0, 1e6),
    streamed=st.booleans(),
    shadow=st.none() | st.sampled_from(get_args(Verdict)),
    retry=st.none() | st.sampled_from(get_args(Retry)),
    shadow_code=st.none() | st.sampled_from(Code),
)


@given(st.lists(RECORDS, max_size=5), TEXT, TEXT)
def test_every_label_has_a_closed_set_of_values(
    records: list[Record], backend: str, client: str
) -> None:
    m = metrics()
    m.set_view(lambda: view(backend, client))
    m.own_error("test")
    for transition in every_transition(backend):
        m.on_transition(transition)
    for record in records:
        m.on_request(record)
    for metric in m.registry.collect():
        for sample in metric.samples:
            for label, value in sample.labels.items():
                assert label in FREE or value in ALLOWED[label], (sample.name, label, value)
    assert ("kvgate_observe_errors_total", ("metrics",)) not in samples(m)


def test_names_begin_with_kvgate_and_say_their_unit() -> None:
    m = metrics()
    m.set_view(view)
    for transition in every_transition("gpu0"):
        m.on_transition(transition)
    m.on_request(finished())
    for metric in m.registry.collect():
        assert metric.name.startswith(("kvgate_", "process_")), metric.name
        assert metric.documentation
        if metric.type == "histogram":
            assert metric.name.endswith(("_seconds", "_tokens"))
        assert not any(s.name.endswith("_created") for s in metric.samples)


def test_retries_are_counted_by_client_and_how_they_came() -> None:
    m = metrics()
    assert samples(m)["kvgate_retries_total", ("agents", "damped")] == 0, "there from the start"
    for how in get_args(Retry):
        m.on_request(refused(client="agents", retry=how))
    m.on_request(refused(client="stranger", retry="early"))
    got = samples(m)
    assert [got["kvgate_retries_total", ("agents", how)] for how in get_args(Retry)] == [1, 1, 1]
    assert got["kvgate_retries_total", (OTHER, "early")] == 1


def test_transitions_are_counted() -> None:
    m = metrics()
    for transition in every_transition("gpu0"):
        m.on_transition(transition)
    got = samples(m)
    assert got["kvgate_queued_total", ()] == 1
    assert got["kvgate_admitted_total", ("gpu0",)] == 2
    assert got["kvgate_caps_injected_total", ("gpu0",)] == 1
    assert got["kvgate_caps_clamped_total", ("gpu0",)] == 1
    assert got["kvgate_lingered_total", ("gpu0",)] == 1
    assert got["kvgate_resized_total", ("gpu0",)] == 1
    for why in Release:
        assert got["kvgate_released_total", ("gpu0", why.value)] == 1
    assert got["kvgate_queue_seconds_count", ("granted",)] == 2
    assert got["kvgate_queue_seconds_sum", ("granted",)] == 0.6
    assert got["kvgate_queue_seconds_sum", ("refused",)] == 120


def test_ends_are_counted_from_records() -> None:
    m = metrics()
    m.on_request(finished())
    m.on_request(finished(usage_prompt_tokens=18_990, streamed=False))
    m.on_request(refused(Code.UNAUTHORIZED, client="nobody"))
    m.on_request(finished(upstream_status=503, outcome=Outcome.COMPLETED))
    m.on_request(finished(upstream_status=500, outcome=Outcome.FAILED))
    m.on_request(finished(upstream_status=422))
    got = samples(m)
    assert got["kvgate_ended_total", ("agents", "completed", "done")] == 4
    assert got["kvgate_ended_total", ("agents", "failed", "stream")] == 1
    assert got["kvgate_ended_total", (OTHER, "rejected", "door")] == 1
    assert got["kvgate_refused_total", ("unauthorized", "gateway")] == 1
    assert got["kvgate_refused_total", ("queue_full", "gateway")] == 0
    for word in UPSTREAM_CODES:
        assert got["kvgate_refused_total", (word, "upstream")] == 1
    assert got["kvgate_tokens_total", ("agents", "output")] == 5 * 640
    assert got["kvgate_ttft_seconds_count", ("gpu0",)] == 4
    assert got["kvgate_e2e_seconds_sum", ("gpu0",)] == 4 * 16
    assert got["kvgate_count_drift_tokens_total", ("over",)] == 10
    assert got["kvgate_count_drift_tokens_total", ("under",)] == 4 * 4
    assert got["kvgate_undercounted_total", ("gpu0",)] == 4


def test_gauges_are_read_at_the_scrape() -> None:
    m = metrics()
    assert not any(name.startswith("kvgate_kv") for name, _ in samples(m))
    m.set_view(view)
    got = samples(m)
    assert got["kvgate_kv_limit_tokens", ("gpu0", "1")] == 1001
    assert got["kvgate_kv_reserved_tokens", ("gpu0", "0")] == 300
    assert got["kvgate_kv_used_tokens", ("gpu0", "0")] == 200
    assert got["kvgate_kv_lingering_tokens", ("gpu0", "0")] == 70
    assert got["kvgate_prefill_limit_tokens", ("gpu0", "0")] == float("inf")
    assert got["kvgate_prefill_reserved_tokens", ("gpu0", "0")] == 50
    assert got["kvgate_slots_limit", ("gpu0", "0")] == 10
    assert got["kvgate_slots_reserved", ("gpu0", "0")] == 3
    assert [got["kvgate_pool_open", ("gpu0", rank)] for rank in "01"] == [1, 0]
    assert got["kvgate_queue_requests", ()] == 5
    assert got["kvgate_queue_tokens", ()] == 6000
    assert got["kvgate_queue_bytes", ()] == 7000
    assert got["kvgate_queue_oldest_seconds", ()] == 8.5
    assert got["kvgate_client_held_tokens", ("agents",)] == 300
    assert got["kvgate_client_inflight_requests", ("agents",)] == 3
    assert got["kvgate_client_waiting_requests", ("agents",)] == 4


def test_what_engines_say_otherwise_is_told_while_it_is_fresh() -> None:
    m = metrics()
    m.set_view(view)
    m.set_engines(
        lambda: [
            EngineView("gpu0", on_trial=True, drift={0: -500, 1: 20}),
            EngineView("stranger", loads_stale=True, drift={0: 7}),
        ]
    )
    got = samples(m)
    assert got["kvgate_drift_tokens", ("gpu0", "0")] == -500
    assert got["kvgate_drift_tokens", ("gpu0", "1")] == 20
    assert ("kvgate_drift_tokens", (OTHER, "0")) not in got
    assert got["kvgate_server_on_trial", ("gpu0",)] == 1
    assert got["kvgate_loads_stale", ("gpu0",)] == 0
    assert got["kvgate_loads_stale", (OTHER,)] == 1


def test_quotas_are_told_of_the_clients_that_have_one() -> None:
    m = metrics()
    m.set_view(view)
    m.set_quotas(
        lambda: [
            QuotaView("agents", 30, 71, 1000, 3600.0, 12.5),
            QuotaView("stranger", 5, 0, 9, 60.0, None),
        ]
    )
    got = samples(m)
    assert got["kvgate_client_quota_tokens", ("agents",)] == 1000
    assert got["kvgate_client_quota_used_tokens", ("agents",)] == 30
    assert got["kvgate_client_quota_under_way_tokens", ("agents",)] == 71
    assert got["kvgate_client_quota_window_left_seconds", ("agents",)] == 12.5
    assert got["kvgate_client_quota_used_tokens", (OTHER,)] == 5
    assert ("kvgate_client_quota_window_left_seconds", (OTHER,)) not in got


def test_a_view_that_cannot_be_read_costs_the_gauges_only() -> None:
    def broken() -> View:
        raise RuntimeError

    m = metrics()
    m.set_view(broken)
    m.on_transition(grant())
    assert samples(m)["kvgate_admitted_total", ("gpu0",)] == 1
    assert samples(m)["kvgate_observe_errors_total", ("view",)] >= 1


@pytest.mark.parametrize("broken", [object(), None, Refused])
def test_a_broken_record_or_transition_is_counted_and_does_not_raise(broken: Any) -> None:
    m = metrics()
    m.on_request(broken)
    m.on_transition(broken)
    m.on_request(finished(ttft_ms="soon"))
    assert samples(m)["kvgate_observe_errors_total", ("metrics",)] == 2


def test_names_follow_a_reload() -> None:
    m = metrics()
    m.on_transition(grant("new"))
    m.set_names([*BACKENDS, "new"], CLIENTS)
    m.on_transition(grant("new"))
    got = samples(m)
    assert got["kvgate_admitted_total", (OTHER,)] == 1
    assert got["kvgate_admitted_total", ("new",)] == 1


def test_two_gates_in_one_process_do_not_meet() -> None:
    one, two = metrics(), metrics()
    one.on_transition(grant())
    assert samples(one)["kvgate_admitted_total", ("gpu0",)] == 1
    assert ("kvgate_admitted_total", ("gpu0",)) not in samples(two)


def test_the_content_type_is_that_of_the_text_format() -> None:
    assert metrics().render()[1] == "text/plain; version=0.0.4; charset=utf-8"


def test_the_first_death_is_seen_by_a_rate() -> None:
    """Series that alerts ask for begin at 0; Prometheus takes one that begins at 1 for no increase."""
    m = metrics()
    there = samples(m)
    assert there["kvgate_released_total", ("gpu0", "voided")] == 0
    assert there["kvgate_undercounted_total", ("gpu1",)] == 0
    assert there["kvgate_ended_total", ("agents", "failed", "stream")] == 0
    m.set_names(["later"], ["agents"])
    assert samples(m)["kvgate_released_total", ("later", "voided")] == 0
