"""Decision logs that AdmitPerf reads (PyPI `admitperf`, looked at in 0.0.2), one a run.

A log is JSON lines. A line with `verdict` is a decision and carries who decided (`experiment`,
`run`, `policy`, `params` with their `provenance`), what the signals were, and why. A line with
`outcome` says later what became of a request that was let through. A refusal's `reason` is a word
of AdmitPerf's vocabulary, because reports group by it; ours are translated. Times are simulated
seconds from the start of the run. A signal that nothing supplies is null, never zero.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gateway.lab.disclosure import parameters
from gateway.lab.flights import Fate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gateway.lab.flights import Flight, Sight
    from gateway.lab.measures import Objectives
    from gateway.lab.scenarios import Scenario
    from gateway.lab.simulate import Run

REASONS = {
    "queue_timeout": "capacity_reserved",  # it waited for room that others held
    "no_backend": "capacity_reserved",
    "queue_full": "queue_depth",
    "client_limit": "tenant_quota",
    "deadline_unreachable": "deadline_infeasible",
    "context_length_exceeded": "predicted_length",
}
STATUSES = {"tenant_quota": 429, "rate_limit": 429}  # all other reasons are 503 to AdmitPerf
ADMITTED = 200
CAPACITY = 503

_CARDS = {
    # quantity, structure, what it protects: AdmitPerf's words
    "none": (None, "scalar", "throughput"),
    "fixed": ("batch_state", "scalar", "throughput"),
    "worst-case": ("kv_pressure", "formal-bound", "stability"),
    "worst-case-capped": ("kv_pressure", "formal-bound", "stability"),
    "per-request-quantile": ("predicted_length", "formal-bound", "throughput"),
    "mirror": ("kv_pressure", "scalar", "throughput"),
    "past-future": ("predicted_length", "formal-bound", "throughput"),
    "vtc": ("kv_pressure", "dual-gate", "fairness"),
    "kvgate": ("kv_pressure", "formal-bound", "stability"),
    "oracle": ("predicted_length", "formal-bound", "throughput"),
    "oracle-mcsf": ("predicted_length", "formal-bound", "throughput"),
}


def write_log(run: Run, folder: Path, scenario: Scenario, policy: str, seed: int) -> Path:
    """Write `run` to ``folder/<scenario>/<policy>/r<seed>.jsonl`` and return that path."""
    path = folder / scenario.name / policy / f"r{seed}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for line in lines(run, scenario, policy, seed):
            file.write(json.dumps(line, allow_nan=False) + "\n")
    return path


def lines(run: Run, scenario: Scenario, policy: str, seed: int) -> Iterator[dict[str, Any]]:
    """Decisions and outcomes in the order of time. What was still waiting at the end has neither."""
    heading = _heading(scenario, policy, seed)
    events = []
    for flight in run.flights:
        if flight.sight is None:
            continue
        events.append(heading | _decision(flight, flight.sight))
        if flight.granted is not None and flight.ended is not None:
            events.append(_outcome(flight, flight.ended, scenario.objectives))
    return iter(sorted(events, key=lambda event: float(event["at"])))


def _heading(scenario: Scenario, policy: str, seed: int) -> dict[str, Any]:
    family = "fixed" if policy.startswith("fixed-") else policy
    quantity, structure, protects = _CARDS[family]
    taken = parameters(policy, scenario)
    profile = scenario.box(seed)
    return {
        "experiment": scenario.name,
        "run": f"r{seed}",
        "notes": f"{profile.model}, SGLang {scenario.version}, simulated {profile.name} with a pool "
        f"of {profile.pool} tokens; {scenario.story}; good is TTFT <= {scenario.objectives.ttft:g} s "
        f"and TPOT <= {scenario.objectives.tpot:g} s",
        "policy": policy,
        "baseline": policy == "none",
        "params": {name: one.value for name, one in taken.items()},
        "provenance": {name: one.origin for name, one in taken.items()},
        "card": {
            "unit": "request",
            "setting": "online",
            "slo_awareness": protects,
            "signal_quantity": quantity,
            "signal_structure": structure,
        },
    }


def _decision(flight: Flight, sight: Sight) -> dict[str, Any]:
    refused = flight.granted is None
    reason = REASONS.get(str(flight.code), "capacity_reserved") if refused else None
    status = STATUSES.get(str(reason), CAPACITY) if refused else ADMITTED
    after = flight.retry_after_s
    metrics = {
        "sglang:token_usage": sight.pool_used,
        "sglang:num_queue_reqs": sight.waiting_inside,
        "sglang:num_running_reqs": sight.running,
        "sglang:cache_hit_rate": sight.cache_hits,
        "sglang:new_token_ratio": sight.new_token_ratio,
        "kvgate:promised_share": sight.promised,
        "kvgate:in_flight": sight.in_flight,
    }
    signals = {
        "kv_pressure": min(1.0, sight.pool_used),
        "queue_depth": sight.waiting_inside,
        "running": sight.running,
        "gpu_util": None,
        "prefix_hit_rate": sight.cache_hits,
    }
    return {
        "at": sight.at,
        "request_id": flight.rid,
        "metrics": {name: value for name, value in metrics.items() if value is not None},
        "signals": signals,
        "sources": {
            "kv_pressure": "sglang:token_usage",
            "queue_depth": "sglang:num_queue_reqs",
            "running": "sglang:num_running_reqs",
        },
        "verdict": "reject" if refused else "admit",
        "reason": reason,
        "status": status,
        "retry_after_ms": None if after is None else round(1000 * after),
        "enforced": True,
        "fault": None,
    }


def _outcome(flight: Flight, ended: float, objectives: Objectives) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "ok": objectives.met(flight),
        "status": ADMITTED if flight.fate is Fate.SERVED else CAPACITY,
    }
    if flight.ttft is not None:
        facts["ttft_ms"] = round(1000 * flight.ttft, 3)
    return {"at": ended, "request_id": flight.rid, "outcome": facts}
