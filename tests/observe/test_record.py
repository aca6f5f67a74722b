"""The record: plain numbers, derived words, nothing of the client's."""

from __future__ import annotations

import json

import pytest

from gateway.core.model import Code, Outcome
from gateway.observe.record import OTHER, Record, served_or_other

from .made_up import finished, refused


def test_it_becomes_plain_json() -> None:
    values = json.loads(json.dumps(finished().to_dict()))
    assert values["outcome"] == "completed"
    assert values["tpot_ms"] == 21.46
    assert values["at"].endswith("+00:00")
    assert "told" not in values


@pytest.mark.parametrize(
    ("record", "source"),
    [
        (refused(), "gateway"),
        (finished(), None),
        (finished(upstream_status=503), "upstream"),
        (finished(upstream_status=400), "upstream"),
        (Record("x"), None),
    ],
)
def test_who_refused(record: Record, source: str | None) -> None:
    assert record.source == record.to_dict()["source"] == source


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"outcome": Outcome.REJECTED}, "door"),
        ({"outcome": Outcome.CANCELLED, "queue_ms": 3.0}, "queue"),
        ({"outcome": Outcome.CANCELLED, "queue_ms": 3.0, "kv_reserved": 9}, "prefill"),
        ({"outcome": Outcome.FAILED, "kv_reserved": 9, "ttft_ms": 1.0}, "stream"),
        ({"outcome": Outcome.COMPLETED, "kv_reserved": 9}, "done"),
    ],
)
def test_how_far_it_came(changes: dict[str, object], phase: str) -> None:
    assert Record("x", **changes).phase == phase


def test_drift_is_known_only_with_both_counts() -> None:
    assert finished().count_drift == 4
    assert finished(usage_prompt_tokens=None).count_drift is None
    assert finished(prompt_tokens=None).count_drift is None


def test_a_model_nobody_serves_is_other() -> None:
    assert served_or_other("qwen", {"qwen"}) == "qwen"
    assert served_or_other("my prompt in the wrong field", {"qwen"}) == OTHER
    assert served_or_other(["qwen"], {"qwen"}) == OTHER


def test_every_code_and_outcome_can_be_recorded() -> None:
    for code in Code:
        for outcome in Outcome:
            values = refused(code, outcome=outcome).to_dict()
            assert (values["code"], values["outcome"]) == (code.value, outcome.value)
