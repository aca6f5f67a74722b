"""The grid: the known results come out, and rows are what scripts rely on."""

import json
import random
import re

import numpy as np
import pytest

from gateway.cli import evaluate as command
from gateway.lab import evaluate as grid
from gateway.lab.calibrate import calibrate
from gateway.lab.cells import POLICIES, Cell, run_cell
from gateway.lab.coregate import CoreGate
from gateway.lab.evaluate import evaluate
from gateway.lab.flights import Fate
from gateway.lab.history import WINDOW, History, Window, peak
from gateway.lab.measures import first_retries
from gateway.lab.rows import CONTRACT, interval
from gateway.lab.scenarios import SCENARIOS
from gateway.lab.sights import ranges
from gateway.lab.simulate import simulate
from gateway.lab.traces import Arrival, Trace
from gateway.twin.profiles import TINY_CPU


def cell(scenario, policy, seconds, *, seed=0):
    return run_cell(Cell(scenario, policy, seed, seconds)).values


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
    assert by["fixed", "limit"]["median"] in {8, 32}
    known = [row for row in rows if row["median"] is not None]
    assert all(row["low"] <= row["median"] <= row["high"] for row in known)
    assert all(set(CONTRACT) <= {m for p, m in by if p == policy} for policy, _ in by)
    for row in rows:
        if row["median"] is None:
            assert (row["low"], row["high"], row["seeds"]) == (None, None, 0)
            assert result["config"]["absent"][row["metric"]].startswith("null")
    # Ten cells, two of worst-case for reference, the measuring of the box; VTC is no reference
    # without a runaway.
    assert heard[-1] == (13, 13)
    assert result["config"]["scenarios"]["incident-a"]["pool"] == 67_375


def test_an_unknown_policy_names_the_known_ones():
    with pytest.raises(KeyError, match="worst-case-capped"):
        evaluate(["incident-a"], ["magic"], seeds=1)


def test_every_policy_of_the_contract_runs():
    for policy in POLICIES:
        name = "fixed-8" if policy == "fixed" else policy
        assert cell("incident-a", name, 500.0)["kv_utilisation"] > 0


def test_a_run_too_short_to_measure_says_so():
    with pytest.raises(ValueError, match="takes more than 400 s"):
        cell("incident-a", "none", 300.0)


def test_where_nobody_streams_a_gate_is_worth_as_much():
    """No first token is seen, and no stream's speed: 0.36 where the latter was not learned from answers, 0.86 since."""
    assert cell("no-streams", "kvgate", 150.0, seed=2)["goodput_share"] > 0.7


def test_of_an_answer_in_one_piece_a_gate_hears_nothing_before_its_end():
    class Hears(CoreGate):
        firsts, ends = [], []

        def first_token(self, flight, now):
            self.firsts.append(flight.arrival.streamed)
            return super().first_token(flight, now)

        def ended(self, flight, now):
            if not flight.arrival.streamed:
                self.ends.append(self._admission.books.live(flight.rid).seen)
            return super().ended(flight, now)

    arrivals = tuple(Arrival(0.5 * n, 200, 40, "c", streamed=n % 2 == 0) for n in range(20))
    run = simulate(Trace("mixed", arrivals), Hears(max_wait_s=30.0), TINY_CPU, seconds=120.0)
    assert all(flight.fate is Fate.SERVED for flight in run.flights)
    assert Hears.firsts == [True] * 10
    assert Hears.ends == [0] * 10


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
    assert max(history.lengths("new")) == 59
    assert history.quantile("much", 0.5) == 30
    assert history.quantile_beyond("much", 50, 0.5) == 55
    assert history.draw_beyond("much", 58, random.Random(1)) == 59
    assert history.quantile_beyond("much", 59, 0.5) is None
    assert History().lengths("much") is None


def test_a_window_forgets_the_oldest():
    window = Window()
    for length in [*range(WINDOW), 7]:
        window.add(length)
    assert window.ordered == sorted([*range(1, WINDOW), 7])


@pytest.mark.parametrize(
    ("scenario", "references"),
    [("runaway", {"oracle", "vtc", "worst-case"}), ("incident-a", {"oracle", "worst-case"})],
)
def test_what_others_are_measured_against_runs_along(scenario, references):
    cells = grid._cells({scenario: 500.0}, ["kvgate"], 2, "logs", quick=True)
    assert {cell.policy for cell in cells} == {"kvgate", *references}
    assert {cell.seed for cell in cells} == {0, 1}
    assert {cell.policy for cell in cells if cell.logs} == {"kvgate"}


@pytest.mark.slow  # twelve seconds of processor time
@pytest.mark.timeout(300)
def test_references_run_along_but_are_not_reported():
    result = evaluate(["runaway"], ["kvgate"], seeds=1, quick=True, workers=2)
    assert {row["policy"] for row in result["rows"]} == {"kvgate"}
    by = {row["metric"]: row["median"] for row in result["rows"]}
    assert by["goodput_vs_oracle"] > 0
    assert 0 < by["runaway_vs_vtc"] < 2
    assert by["victim_ttft_p99_vs_alone"] < 1.5
    assert 0 <= by["retry_first_try"] <= 1


def test_the_box_is_measured_before_anybody_is_judged():
    box = calibrate("incident-a", 3600.0)
    assert box.load == pytest.approx(box.offered_rps / box.capacity_rps)
    assert 0.005 < box.capacity_rps < 0.1
    # 19,000 tokens at the 1,300 tokens/s of incident A.
    assert box.ttft_p50 == pytest.approx(19_000 / 1300, rel=0.05)
    assert box.ttft_objective_over_p90 == pytest.approx(300.0 / box.ttft_p90)


def test_a_refused_client_comes_back_once_when_it_was_told_to():
    hog = Trace("hog", (Arrival(0.0, 100, 1900), Arrival(0.1, 100, 10)))
    run = simulate(
        hog.capped(1900),
        CoreGate(max_wait_s=2.0),
        TINY_CPU.with_(name="busy"),
        seconds=60.0,
        honour_retries=True,
    )
    refused, again = run.flights[1], run.retries
    assert refused.fate is Fate.REFUSED
    assert [flight.arrival.at for flight in again] == [
        pytest.approx(refused.ended + refused.retry_after_s)
    ]
    assert first_retries(run) == float(again[0].fate is Fate.SERVED)
    quiet = simulate(hog, CoreGate(max_wait_s=2.0), TINY_CPU, seconds=60.0)
    assert first_retries(quiet) is None


def test_signals_are_seen_when_something_is_decided():
    run = simulate(
        Trace("one", (Arrival(0.0, 100, 500), Arrival(1.0, 100, 10))),
        CoreGate(max_wait_s=2.0),
        TINY_CPU,
        seconds=60.0,
    )
    least, _, most = ranges(run)["in_flight"]
    assert (least, most) == (0.0, 1.0)
    assert 0 < ranges(run)["promised"][2] <= 1.0


def test_the_page_stands_alone_and_fills_the_seven_items(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("r.json", "r.html", "r.md")]
    argv = ["--quick", "--scenario", "incident-a", "--policy", "none", "--policy", "kvgate"]
    argv += ["--seeds", "1", "--json", paths[0], "--html", paths[1], "--markdown", paths[2]]
    assert command.run(argv) == 0
    said = capsys.readouterr().out
    assert "kvgate" in said
    assert " s on " in said, "the wall time"
    html = (tmp_path / "r.html").read_text()
    assert [f"<h3>{number}." in html for number in range(1, 8)] == [True] * 7
    assert "<svg" in html
    assert not re.search(r"(src|href|url\()\s*=?\s*[\"']?(https?:)?//", html)
    assert json.loads((tmp_path / "r.json").read_text())["config"]["wall_s"] > 0
    table = (tmp_path / "r.md").read_text()
    assert "| kvgate |" in table


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--scenario", "moon"], "there are: azure-conv-1.5x"),
        (["--policy", "magic"], "worst-case-capped"),
        (["--seeds", "0"], "at least 1"),
    ],
)
def test_a_wrong_word_is_one_sentence(argv, words, tmp_path, capsys):
    assert command.run([*argv, "--json", str(tmp_path / "x.json")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
