"""The laboratory finds what is known: at full length, several seeds, as a reader would run it."""

import pytest

from gateway.lab.evaluate import evaluate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEEDS = 3


@pytest.fixture(scope="module")
def median():
    """(scenario, policy, metric) -> median over the seeds."""
    grid = {
        "azure-conv-1.5x": ["none", "mirror", "oracle"],
        "azure-conv-cap4096": ["worst-case", "mirror", "oracle"],
        "length-shift": ["mirror", "oracle"],
        "headroom": ["none", "mirror", "kvgate"],
        "incident-a": ["none", "kvgate"],
    }
    found = {}
    for name, policies in grid.items():
        for row in evaluate([name], policies, seeds=SEEDS, workers=2)["rows"]:
            found[name, row["policy"], row["metric"]] = row["median"]
    return found


def test_no_gate_collapses_at_one_and_a_half_times_the_load(median):
    assert median["azure-conv-1.5x", "none", "goodput_vs_oracle"] < 0.05


def test_worst_case_at_cap_4096_wastes_half_of_what_the_mirror_serves(median):
    worst, mirror = (
        median["azure-conv-cap4096", policy, "goodput_rps"] for policy in ("worst-case", "mirror")
    )
    assert worst <= 0.5 * mirror


def test_the_mirror_is_as_good_as_the_oracle_where_memory_binds(median):
    assert 0.95 <= median["azure-conv-1.5x", "mirror", "goodput_vs_oracle"] <= 1.05


def test_retractions_come_when_outputs_double(median):
    key = "retractions_per_1000_after"
    assert median["length-shift", "mirror", key] > 20
    assert median["length-shift", "oracle", key] == 0


def test_contexts_that_meet_kill_the_box_and_one_giant_at_a_time_does_not(median):
    assert median["headroom", "none", "crashes"] >= 1
    assert median["headroom", "mirror", "crashes"] >= 1, "the pool is not the reason"
    assert median["headroom", "kvgate", "crashes"] == 0


def test_incident_a_kills_without_a_gate_only(median):
    assert median["incident-a", "none", "crashes"] >= 1
    assert median["incident-a", "kvgate", "crashes"] == 0
