"""The story of each shipped policy, played in the twin: what happened there, and what happens now."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gateway.lab import arrivals, orders, policies
from gateway.lab.coregate import CoreGate
from gateway.lab.flights import Fate
from gateway.lab.gates import QueueGate
from gateway.lab.simulate import simulate
from gateway.lab.traces import Arrival, Trace
from gateway.policy.load import load_policy
from gateway.policy.schema import Quota
from gateway.twin.profiles import A10_8B, A100_8B, L20X4, RTX3090_GPU0

if TYPE_CHECKING:
    from gateway.lab.flights import Flight
    from gateway.lab.simulate import Run
    from gateway.policy.schema import Policy

pytestmark = pytest.mark.slow

SHIPPED = Path(__file__).parents[2] / "policies"
KEYS = {name: name for name in ("KEY_VISION", "KEY_LANGUAGE", "KEY_ROBOTS", "KEY_SCRIPTS")}


def shipped(name: str) -> Policy:
    return load_policy(SHIPPED / name, env=KEYS)


def with_it(policy: Policy) -> CoreGate:
    return CoreGate(max_wait_s=policy.queue.max_wait_s, policy=policy)


def without() -> QueueGate:
    return QueueGate(policies.Nothing("none"), orders.ByArrival(), max_wait_s=1e9)


def served(run: Run) -> list[Flight]:
    return [flight for flight in run.flights if flight.fate is Fate.SERVED]


def quantile(values: list[float], level: float) -> float:
    return float(np.quantile(np.array(values), level))


def waits_inside(run: Run) -> float:
    """The longest that a request stood in the engine's own queue, seconds."""
    flights = [f for f in run.flights if f.job is not None and f.granted is not None]
    return max((f.job.admitted or run.seconds) - f.granted for f in flights)


def histories(agents: int, seconds: float, start: int, end: int, grow: int, gap: float) -> Trace:
    """Agents whose histories grow turn by turn and never carry a cap; most of each is cached."""
    rng = random.Random(0)
    made = []
    for agent in range(agents):
        base, tokens = 1_000_000 * agent, rng.randint(start, (start + end) // 2)
        at = rng.random() * gap
        while at < seconds:
            output = max(1, int(rng.lognormvariate(np.log(400), 0.7)))
            blocks = tuple(range(base, base + tokens // 512))
            made.append(Arrival(at, tokens, output, f"agent{agent}", blocks))
            tokens += rng.randint(grow // 2, 2 * grow)
            if tokens > end:  # the client begins a new session
                base, tokens = base + 100_000, start
            at += gap * (0.5 + rng.random())
    return Trace("histories", tuple(sorted(made, key=lambda item: item.at)))


def test_single_keeps_the_queue_out_of_the_engine() -> None:
    trace = arrivals.azure(2.7, 1024)(0, 60.0)
    bare = simulate(trace, without(), A10_8B, seconds=60.0)
    gated = simulate(trace, with_it(shipped("single.yaml")), A10_8B, seconds=60.0)
    assert waits_inside(bare) > 20
    assert waits_inside(gated) < 1
    assert gated.retractions == 0
    assert len(served(gated)) >= 0.9 * len(served(bare))


def test_dual_3090_three_agents_no_longer_kill_the_card() -> None:
    trace = arrivals.agents(0, 1200.0)
    bare = simulate(trace, without(), RTX3090_GPU0, seconds=1200.0)
    gated = simulate(trace, with_it(shipped("dual-3090.yaml")), RTX3090_GPU0, seconds=1200.0)
    assert bare.crashes >= 1
    assert gated.crashes == 0
    assert not [flight for flight in gated.flights if flight.fate is Fate.LOST]
    assert len(served(gated)) > len(served(bare))


def test_l20_ten_run_at_a_usable_speed_and_the_rest_wait_outside() -> None:
    trace = histories(8, 900.0, 60_000, 172_000, 3000, 60.0)
    bare = simulate(trace, without(), L20X4, seconds=900.0)
    gated = simulate(trace, with_it(shipped("l20-tp4-262k.yaml")), L20X4, seconds=900.0)

    def slowest(run: Run) -> float:  # seconds a token
        return quantile([flight.tpot for flight in served(run) if flight.tpot], 0.95)

    def whole(run: Run) -> float:
        return quantile([flight.ended - flight.arrival.at for flight in served(run)], 0.95)

    assert max(counters.retractions for counters in bare.counters) == 0, "memory was never short"
    assert waits_inside(bare) > 89
    assert waits_inside(gated) < 5
    assert slowest(bare) > 0.3
    assert slowest(gated) < 0.2
    assert whole(gated) < whole(bare)
    assert len(served(gated)) >= 0.98 * len(served(bare))


WHO = {
    "victim0": "vision",
    "victim1": "language",
    "victim2": "robots",
    "victim3": "anyone",
    "runaway": "scripts",
}


def test_shared_lab_the_script_waits_and_the_groups_do_not() -> None:
    """It fires fourteen times its share and asks for the whole context each time."""
    policy = shipped("shared-lab.yaml")
    (scripts,) = (client for client in policy.clients if client.name == "scripts")
    less = scripts.model_copy(update={"quota": Quota(tokens=60_000)})  # the run is short
    policy = policy.model_copy(
        update={"clients": tuple(less if c is scripts else c for c in policy.clients)}
    )
    box = A10_8B.with_(pool=65_536)
    trace = arrivals.runaway()(0, 120.0).mapped(
        lambda item: replace(
            item, client=WHO[item.client], cap=8192 if item.client == "runaway" else 1024
        )
    )
    quiet = replace(trace, arrivals=tuple(a for a in trace.arrivals if a.client != "scripts"))
    gate = with_it(policy)
    runs = {
        "alone": simulate(quiet, with_it(policy), box, seconds=120.0),
        "bare": simulate(trace, without(), box, seconds=120.0),
        "gated": simulate(trace, gate, box, seconds=120.0),
    }

    def first_token(name: str) -> float:
        groups = {"vision", "language", "robots"}
        return quantile(
            [f.ttft for f in runs[name].flights if f.ttft and f.arrival.client in groups], 0.99
        )

    assert first_token("bare") > 20
    assert first_token("gated") < 3 * first_token("alone")
    groups = [f for f in runs["gated"].flights if f.arrival.client in {"vision", "robots"}]
    assert not [flight for flight in groups if flight.fate is Fate.REFUSED]
    codes = {f.code for f in runs["gated"].flights if f.arrival.client == "scripts" and f.code}
    assert "quota_exceeded" in codes
    assert 60_000 <= gate._admission.meters.used("scripts") < 70_000


def test_agents_run_side_by_side_without_caps() -> None:
    box = A100_8B.with_(pool=200_000)
    trace = histories(8, 600.0, 10_000, 100_000, 2500, 60.0)
    titles = [Arrival(a.at, 600, 20, a.client, cap=32_000) for a in trace.arrivals[::3]]
    both = sorted([*trace.arrivals, *titles], key=lambda item: item.at)
    trace = Trace("agents", tuple(both))
    bare = simulate(trace, without(), box, seconds=600.0)
    capped = simulate(
        trace,
        QueueGate(policies.WorstCase("caps"), orders.ByArrival(), max_wait_s=300),
        box,
        seconds=600.0,
    )
    gated = simulate(trace, with_it(shipped("agents.yaml")), box, seconds=600.0)
    assert waits_inside(bare) > 30
    assert waits_inside(gated) < 2
    assert gated.retractions == 0
    assert not [flight for flight in gated.flights if flight.fate is Fate.REFUSED]
    assert len(served(gated)) >= len(served(bare))
    assert len(served(gated)) > 1.1 * len(served(capped)), "caps in full would waste the pool"
