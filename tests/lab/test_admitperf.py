"""Our decision logs are ones that AdmitPerf accepts: its own program says so.

The program is that of the environment KVGATE_ADMITPERF names (a directory made by `python -m venv`
with `admitperf` in it), else the one on the path, else it is installed for these tests.
"""

import json
import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

from gateway.lab.admitperf import REASONS, lines
from gateway.lab.cells import Cell, gate_of, run_cell
from gateway.lab.flights import Fate
from gateway.lab.scenarios import SCENARIOS
from gateway.lab.simulate import simulate

SCENARIO = SCENARIOS["azure-conv-1.5x"]
SECONDS = 200.0
VERSION = "admitperf==0.0.2"  # the one these logs were written for


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    for policy in ("none", "kvgate"):
        for seed in range(2):
            run_cell(Cell(SCENARIO.name, policy, seed, SECONDS, str(folder)))
    return folder / SCENARIO.name


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The path of AdmitPerf's command."""
    named = os.environ.get("KVGATE_ADMITPERF")
    if named:
        return Path(named, "bin", "admitperf")
    if found := shutil.which("admitperf"):
        return Path(found)
    home = tmp_path_factory.mktemp("admitperf")
    venv.create(home, with_pip=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, VERSION], check=True, timeout=240)
    return home / "bin" / "admitperf"


@pytest.fixture
def admitperf(program):
    def run(*arguments):
        done = subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=50
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_admitperf_reports_on_our_logs(admitperf, logs):
    code, said = admitperf("report", logs / "kvgate" / "r0.jsonl", "--check")
    assert (code, "LIVE" in said) == (0, True), said
    assert "deadline_infeasible" in said
    assert "outside the vocabulary" not in said
    code, said = admitperf("report", logs / "none" / "r0.jsonl")
    assert (code, "THE BASELINE" in said) == (0, True), said


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_admitperf_compares_our_logs(admitperf, logs):
    code, said = admitperf("compare", logs / "none", logs / "kvgate", "--check")
    assert code == 0, said
    assert "goodput is up" in said
    assert "NO " not in said.partition("CAN YOU TRUST THIS?")[2]
    code, said = admitperf("compare", logs / "none", logs / "none", "--check")
    assert code != 0, "two baselines are no comparison"


def test_every_decision_is_a_line_and_every_end_another(tmp_path):
    run_cell(Cell(SCENARIO.name, "kvgate", 0, SECONDS, str(tmp_path)))
    written = (tmp_path / SCENARIO.name / "kvgate" / "r0.jsonl").read_text()
    run = simulate(
        SCENARIO.arrivals(0, SECONDS),
        gate_of("kvgate", SCENARIO, 0),
        SCENARIO.profile,
        version=SCENARIO.version,
        seconds=SECONDS,
    )
    told = list(lines(run, SCENARIO, "kvgate", 0))
    assert told == [json.loads(line) for line in written.splitlines()]
    decisions = [line for line in told if "verdict" in line]
    outcomes = [line for line in told if "outcome" in line]
    granted = [flight for flight in run.flights if flight.granted is not None]
    refused = [flight for flight in run.flights if flight.fate is Fate.REFUSED]
    assert len(decisions) == len(granted) + len(refused)
    assert len(outcomes) == sum(flight.ended is not None for flight in granted)
    assert [line["at"] for line in told] == sorted(line["at"] for line in told)
    assert all(line["reason"] in REASONS.values() for line in decisions if line["status"] == 503)
    assert all(line["retry_after_ms"] >= 1000 for line in decisions if line["status"] == 503)
    assert all(0 <= line["signals"]["kv_pressure"] <= 1 for line in decisions)
    assert all(set(line["params"]) == set(line["provenance"]) for line in decisions)
    met = sum(SCENARIO.objectives.met(flight) for flight in run.flights)
    assert sum(line["outcome"]["ok"] for line in outcomes) == met > 0
