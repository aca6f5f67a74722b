"""What `admission: shadow` adds up."""

from __future__ import annotations

from gateway.core.model import Code
from gateway.observe.shadow import RECENT, Tally

from .made_up import finished


def test_each_verdict_is_counted_and_waits_of_what_would_be_refused_are_not() -> None:
    tally = Tally()
    tally.count(finished())
    assert not any(tally.to_dict().values())
    for wait_ms in range(1000, 101_000, 1000):
        tally.count(finished(shadow="wait", shadow_wait_ms=float(wait_ms)))
    tally.count(finished(shadow="undecided"))
    late = {"shadow": "refuse", "shadow_code": Code.QUEUE_TIMEOUT, "shadow_wait_ms": 9e9}
    tally.count(finished(**late))
    assert tally.to_dict() == {
        "would_admit": 0,
        "would_wait": 100,
        "would_refuse": {"queue_timeout": 1},
        "undecided": 1,
        "wait_s_p50": 50.0,
        "wait_s_p99": 99.0,
    }


def test_percentiles_are_of_the_last_ones() -> None:
    tally = Tally()
    tally.count(finished(shadow="wait", shadow_wait_ms=9e9))
    for _ in range(RECENT):
        tally.count(finished(shadow="admit", shadow_wait_ms=0.0))
    seen = tally.to_dict()
    assert (seen["wait_s_p50"], seen["wait_s_p99"]) == (0.0, 0.0)
    assert seen["would_admit"] == RECENT
