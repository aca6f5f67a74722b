"""Several servers: balancers choose as they should, and one gate for all is worth its place."""

from __future__ import annotations

import pytest

from gateway.lab import fleet
from gateway.lab.cells import FLEET, Cell, gate_of, played, run_cell
from gateway.lab.evaluate import evaluate
from gateway.lab.flights import Fate, Flight
from gateway.lab.scenarios import SCENARIOS
from gateway.lab.simulate import simulate
from gateway.lab.traces import Arrival, Trace
from gateway.twin.profiles import TINY_CPU

AGENTS = "two-cards-agents"


def flight(number: int, client: str = "c") -> Flight:
    return Flight(f"r{number}", Arrival(float(number), 100, 10, client))


def test_round_robin_goes_round() -> None:
    route = fleet.round_robin()
    assert [route(flight(n), [0, 0, 0]) for n in range(5)] == [0, 1, 2, 0, 1]


def test_least_connections_are_counted_through_starts_ends_and_refusals() -> None:
    assert fleet.least_connections(flight(0), [2, 1, 1]) == 1
    gate = gate_of("least-connections", SCENARIOS[AGENTS], 0)
    trace = Trace("alike", tuple(Arrival(0.2 * n, 300, 50, "c") for n in range(40)))
    run = simulate(trace, gate, (TINY_CPU, TINY_CPU), seconds=120.0)
    assert all(each.fate is Fate.SERVED for each in run.flights)
    assert gate._busy == [0, 0]
    assert abs(sum(each.server for each in run.flights) - 20) <= 4


def test_a_static_split_is_by_client() -> None:
    where = {c: fleet.static_split(flight(0, c), [9, 0]) for c in ("a", "b", "c", "d", "e")}
    assert set(where.values()) == {0, 1}
    assert all(
        fleet.static_split(flight(n, c), [0, 9]) == s for c, s in where.items() for n in (1, 2)
    )


@pytest.mark.parametrize("policy", FLEET)
def test_each_runs(policy) -> None:
    values = run_cell(Cell(AGENTS, policy, 0, 600.0, patient=False)).values
    assert values["goodput_share"] > 0
    assert values["crashes"] == 0


def test_a_server_that_dies_takes_only_its_own_and_the_other_goes_on() -> None:
    scenario = SCENARIOS[AGENTS]
    tight = scenario.fleet[0].with_(
        activations=scenario.fleet[0].activations.__class__(
            headroom=0.4 * (1 << 30), per_token=145 * 1024, per_context=5 * 1024
        )
    )
    for policy in ("round-robin", "kvgate"):
        run = simulate(
            scenario.arrivals(0, 900.0),
            gate_of(policy, scenario, 0),
            (tight, scenario.fleet[1]),
            seconds=900.0,
        )
        lost = [each for each in run.flights if each.fate is Fate.LOST]
        assert run.crashes > 0
        assert {each.server for each in lost} == {0}
        assert any(each.server == 1 and each.fate is Fate.SERVED for each in run.flights)


def test_one_gate_that_knows_beginnings_is_worth_its_place() -> None:
    goods: dict[str, list[float]] = {}
    hits: dict[str, list[float]] = {}
    for policy in ("least-connections", "kvgate", "kvgate-no-affinity"):
        for seed in range(3):
            values = run_cell(Cell(AGENTS, policy, seed, 1800.0, patient=False)).values
            goods.setdefault(policy, []).append(values["goodput_share"])
            hits.setdefault(policy, []).append(values["cache_hit_share"])
    good = {policy: sum(each) / 3 for policy, each in goods.items()}
    hit = {policy: sum(each) / 3 for policy, each in hits.items()}
    assert good["kvgate"] > 1.15 * good["least-connections"]
    assert good["kvgate"] > 1.05 * good["kvgate-no-affinity"]
    assert hit["kvgate"] > hit["kvgate-no-affinity"] + 0.05


def test_balancers_are_for_several_servers_only() -> None:
    assert played("azure-conv-1.5x", ["mirror", "round-robin", "kvgate"]) == ["mirror", "kvgate"]
    assert played(AGENTS, ["mirror", "round-robin", "kvgate"]) == ["round-robin", "kvgate"]
    result = evaluate([AGENTS], ["round-robin", "mirror"], seeds=1, quick=True, workers=1)
    assert {row["policy"] for row in result["rows"]} == {"round-robin"}
    assert result["config"]["scenarios"][AGENTS]["servers"] == ["rtx3090-27b", "rtx3090-27b-gpu1"]
