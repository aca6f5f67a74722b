"""The grid: the known results come out, and rows are what scripts rely on."""

import json

import numpy as np
import pytest

from gateway.lab.evaluate import POLICIES, Cell, evaluate, interval, run_cell
from gateway.lab.history import History, peak
from gateway.lab.scenarios import SCENARIOS


def cell(scenario, policy, seconds):
    return run_cell(Cell(scenario, policy, 0, seconds))


def test_no_gate_collapses_at_one_and_a_half_times_the_load():
    none, mirror = (cell("azure-conv-1.5x", policy, 900.0) for policy in ("none", "mirror"))
    assert none["goodput_rps"] < 0.2 * mirror["goodput_rps"]


def test_worst_case_wastes_the_pool_when_caps_are_large():
    worst, mirror = (
        cell("azure-conv-cap4096", policy, 600.0) for policy in ("worst-case", "mirror")
    )
    assert worst["goodput_rps"] <= 0.5 * mirror["goodput_rps"]
    assert worst["kv_utilisation"] < 0.5 * mirror["kv_utilisation"]


def test_the_mirror_is_close_to_the_oracle_where_memory_binds():
    mirror, oracle = (cell("reasoning", policy, 1800.0) for policy in ("mirror", "oracle"))
    assert 0.9 <= mirror["goodput_rps"] / oracle["goodput_rps"] <= 1.02


def test_retractions_come_when_outputs_double():
    shifted, oracle = (cell("length-shift", policy, 1800.0) for policy in ("mirror", "oracle"))
    assert shifted["retractions_per_1000"] > 10
    assert oracle["retractions_per_1000"] == 0


def test_incident_a_kills_without_a_gate_and_not_with_ours():
    bare, ours = (cell("incident-a", policy, 3600.0) for policy in ("none", "kvgate"))
    assert bare["crashes"] >= 1
    assert bare["lost"] >= 3
    assert ours["crashes"] == ours["lost"] == 0
    assert ours["goodput_rps"] > bare["goodput_rps"]


def test_the_grid_in_parallel_gives_rows_for_scripts():
    heard = []
    result = evaluate(
        ["incident-a"],
        ["none", "fixed", "kvgate", "oracle"],
        seeds=2,
        quick=True,
        workers=2,
        progress=lambda done, total: heard.append((done, total)),
    )
    text = json.dumps(result, allow_nan=False)
    rows = json.loads(text)["rows"]
    assert {tuple(row) for row in rows} == {
        ("scenario", "policy", "metric", "median", "low", "high", "seeds")
    }
    assert {row["policy"] for row in rows} == {"none", "fixed", "kvgate", "oracle"}
    by = {(row["policy"], row["metric"]): row for row in rows}
    assert by["oracle", "goodput_vs_oracle"]["median"] == 1.0
    assert by["fixed", "limit"]["median"] in {8, 16, 32, 64}
    assert all(row["low"] <= row["median"] <= row["high"] for row in rows)
    assert heard[-1] == (14, 14)
    assert result["config"]["scenarios"]["incident-a"]["pool"] == 67_375


def test_an_unknown_policy_names_the_known_ones():
    with pytest.raises(KeyError, match="worst-case-capped"):
        evaluate(["incident-a"], ["magic"], seeds=1)


def test_every_policy_of_the_contract_runs():
    for policy in POLICIES:
        name = "fixed-8" if policy == "fixed" else policy
        assert cell("incident-a", name, 900.0)["kv_utilisation"] > 0


def test_a_run_too_short_to_measure_says_so():
    with pytest.raises(ValueError, match="takes more than 400 s"):
        cell("incident-a", "none", 300.0)


def test_every_scenario_has_arrivals_that_a_seed_repeats():
    for scenario in SCENARIOS.values():
        one, again, other = (scenario.arrivals(seed, 200.0) for seed in (1, 1, 2))
        assert one == again != other
        assert all(0 <= item.at < 200 for item in one.arrivals)


def test_the_interval_holds_the_median_and_repeats():
    median, low, high = interval([3.0, 1.0, 2.0, 10.0, 2.5])
    assert (median, low <= median <= high) == (2.5, True)
    assert interval([3.0, 1.0, 2.0, 10.0, 2.5]) == (median, low, high)
    assert interval([4.0]) == (4.0, 4.0, 4.0)


def test_the_peak_is_that_of_playing_it_out():
    rng = np.random.default_rng(3)
    for _ in range(50):
        held = rng.integers(1, 100, 6).astype(float)
        left = rng.integers(1, 60, 6).astype(float)
        played = max(
            sum(h + t for h, r in zip(held, left, strict=True) if r >= t) for t in range(1, 61)
        )
        assert peak(held, left) == played


def test_history_borrows_until_a_client_has_enough():
    history = History()
    for length in range(1, 60):
        history.add("much", length)
    history.add("new", 5)
    assert history.lengths("new").max() == 59
    assert len(history.beyond("much", 50)) == 9
    assert History().lengths("much") is None
