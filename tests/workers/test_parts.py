"""What adds up, what is divided, and what a worker is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.model import ClientRule
from gateway.policy.compile import client_rules, queue_rule
from gateway.policy.load import load_policy
from gateway.policy.schema import Policy
from gateway.policy.source import Source
from gateway.seat import Seat
from gateway.workers import exposition, sums
from gateway.workers.order import Order


def seat(number: int, of: int) -> Seat:
    return Seat(number, of, ("127.0.0.1", 1), Path("/c"))


@given(st.integers(1, 64), st.integers(1, 10_000))
def test_parts_are_the_whole_and_at_least_one_each(of: int, whole: int) -> None:
    parts = [seat(number, of).part(whole) for number in range(of)]
    assert sum(parts) == max(whole, of)
    assert max(parts) - min(parts) <= 1


def test_bounds_are_divided_and_what_a_request_is_refused_for_is_not() -> None:
    policy = Policy.model_validate(
        {
            "backends": [{"url": "http://a"}],
            "queue": {"max_requests": 101, "max_tokens": 1000, "max_bytes": 100 << 20},
            "clients": [
                {
                    "name": "anyone",
                    "max_inflight": 1,
                    "max_waiting": 5,
                    "max_held_tokens": 900,
                    "quota": {"tokens": 77},
                },
                {"name": "free", "header": [{"name": "x-team", "value": "a"}]},
            ],
        }
    )
    first, second = (queue_rule(policy, seat(number, 2).part) for number in (0, 1))
    assert (first.max_requests, second.max_requests) == (51, 50)
    assert first.max_tokens == 500
    assert first.max_bytes == 64 << 20  # one body of the largest size must find room
    assert queue_rule(policy).max_bytes == 100 << 20
    anyone = client_rules(policy, seat(1, 2).part)["anyone"]
    assert (anyone.max_inflight, anyone.max_waiting) == (1, 2)
    assert anyone.max_held_tokens == 900
    assert anyone.quota is not None
    assert anyone.quota.tokens == 77
    assert client_rules(policy, seat(1, 2).part)["free"] == ClientRule("free")


def test_each_worker_has_files_of_its_own() -> None:
    one = seat(1, 2)
    assert one.file(Path("/v/records.jsonl")) == Path("/v/records.w1.jsonl")
    assert one.file(Path("/v/state")) == Path("/v/state.w1")
    assert one.folder(Path("/v/reports")) == Path("/v/reports/w1")
    assert one.file(None) is one.folder(None) is None


def test_a_worker_serves_by_the_very_policy_its_supervisor_has(tmp_path: Path) -> None:
    """Also one that no file holds any more."""
    path = tmp_path / "p.yaml"
    for shipped in sorted(Path("policies").glob("*.yaml")):
        path.write_text(shipped.read_text())
        env = dict.fromkeys(re.findall(r"key_env: (\w+)", path.read_text()), "k")
        for number, name in enumerate(env):
            env[name] = f"key {number}"
        source = Source(path, ("http://b:1",), "127.0.0.1:0", None, None, 3, env)
        policy = source.load()
        order = Order(1, 3, "w1.1", tmp_path, ("127.0.0.1", 80), 0.5, policy, source)
        line = order.to_line()
        told = Order.of_line(line)
        assert line.count(b"\n") == 1
        assert told.policy == policy
        assert (told.source.path, told.source.backends) == (path, ("http://b:1",))
        assert (told.source.listen, told.source.workers) == ("127.0.0.1:0", 3)
        assert (told.number, told.of, told.replica, told.listen) == (
            1,
            3,
            "w1.1",
            ("127.0.0.1", 80),
        )


def test_metrics_of_two_are_one_exposition() -> None:
    texts = []
    for number in (0, 1):
        registry = CollectorRegistry()
        Gauge("g", "A gauge\nof two lines.", registry=registry).set(number)
        counter = Counter("c", "Counts.", ["why"], registry=registry)
        counter.labels('odd "} 1 {').inc(3 + number)
        if number:
            counter.labels("only here").inc()
        Histogram("h", "Spread.", buckets=(1, 2), registry=registry).observe(1.5)
        texts.append((number, generate_latest(registry).decode()))
    text = exposition.merged(texts) + exposition.gauge("up", "There.", [(0, 1), (1, 0)])
    heads = [tuple(line.split()[:3]) for line in text.splitlines() if line.startswith("#")]
    assert len(set(heads)) == len(heads)
    found = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    assert found["g", (("worker", "1"),)] == 1
    assert found["c_total", (("why", 'odd "} 1 {'), ("worker", "0"))] == 3
    assert found["c_total", (("why", 'odd "} 1 {'), ("worker", "1"))] == 4
    assert found["c_total", (("why", "only here"), ("worker", "1"))] == 1
    assert found["h_bucket", (("le", "2.0"), ("worker", "0"))] == 1
    assert found["up", (("worker", "1"),)] == 0
    assert exposition.merged([]) == ""


def backend(name: str, *, ready: bool, limit: int, state: str = "ready") -> sums.Document:
    ledger = {"limit": limit, "reserved": 1, "used": 1}
    return {
        **dict.fromkeys(sums.OF_THE_SERVER, "x"),
        **dict.fromkeys(sums.ANY, False),
        **dict.fromkeys(sums.ADDED, 2),
        "name": name,
        "state": state,
        "ready": ready,
        "forecast_tokens": None,
        "ledgers": {"kv": ledger, "prefill": ledger, "slots": ledger},
        "deaths": limit,
        "drift_tokens": -limit,
    }


def status(*backends: sums.Document, **more: object) -> sums.Document:
    return {
        "backends": list(backends),
        "queue": {"requests": 1, "tokens": 10, "bytes": 100, "aside": 1, "oldest_s": 1.5},
        "clients": [{"name": "a", "held_tokens": 3, "inflight": 1, "waiting": 0}],
        "quotas": [],
        "totals": {"admitted": 2, "rejected": {"queue_full": 1}},
        "abandoned": 1,
        **more,
    }


def quota(used: int, left: float | None) -> sums.Document:
    return {
        "client": "a",
        "used_tokens": used,
        "under_way_tokens": 1,
        "elsewhere_tokens": 0,
        "quota_tokens": 100,
        "window_s": 60.0,
        "window_left_s": left,
    }


def test_a_quota_is_one_and_used_by_all() -> None:
    """The second has heard of the first, and of ten tokens at another gate."""
    first, second = quota(5, 3.5), quota(7, 1.5) | {"elsewhere_tokens": 5 + 1 + 10}
    (one,) = sums.together([status(quotas=[first]), status(quotas=[second])])["quotas"]
    assert one == {**quota(12, 1.5), "under_way_tokens": 2, "elsewhere_tokens": 10}
    (one,) = sums.together([status(quotas=[quota(5, None)])])["quotas"]
    assert one == quota(5, None)


def test_whether_they_hear_of_each_other_is_told_by_whoever_hears_least() -> None:
    well, deaf = {"others": 2, "error": None}, {"others": 0, "error": "the store sleeps"}
    assert sums.together([status(common=well), status(common=deaf)])["common"] == {
        "others": 0,
        "error": "the store sleeps",
    }
    assert sums.together([status()])["common"] is None


def test_the_status_of_two_is_of_the_form_of_one() -> None:
    told = sums.together(
        [
            status(backend("gpu0", ready=False, limit=5, state="down")),
            status(
                backend("gpu0", ready=True, limit=7),
                backend("gpu1", ready=True, limit=1),
                queue={"requests": 2, "tokens": 0, "bytes": 1, "aside": 2, "oldest_s": 0.5},
                totals={"admitted": 5, "rejected": {"draining": 4}},
                clients=[{"name": "b", "held_tokens": 1, "inflight": 1, "waiting": 2}],
            ),
        ]
    )
    gpu0, gpu1 = told["backends"]
    assert (gpu0["name"], gpu0["state"], gpu0["ready"]) == ("gpu0", "ready", True)
    assert gpu0["ledgers"]["kv"] == {"limit": 12, "reserved": 2, "used": 2}
    assert (gpu0["free_tokens"], gpu0["forecast_tokens"], gpu0["deaths"]) == (4, None, 7)
    assert gpu1["ledgers"]["kv"]["limit"] == 1
    # To each the other's requests are none of its own: what they say does not add up.
    assert (gpu0["drift_tokens"], gpu1["drift_tokens"]) == (None, -1)
    assert told["queue"] == {
        "requests": 3,
        "tokens": 10,
        "bytes": 101,
        "aside": 3,
        "oldest_s": 1.5,
    }
    assert told["totals"] == {"admitted": 7, "rejected": {"queue_full": 1, "draining": 4}}
    assert [(c["name"], c["waiting"]) for c in told["clients"]] == [("a", 0), ("b", 2)]
    assert sums.together([])["backends"] == []


def test_more_workers_than_make_sense_are_a_mistake_in_words() -> None:
    with pytest.raises(Exception, match="workers"):
        load_policy(backends=("http://b:1",), workers=0, env={})
    assert load_policy(backends=("http://b:1",), workers=2, env={}).workers == 2
