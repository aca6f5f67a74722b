"""The demonstration, cut short: the same acts, a minute of the box in seconds of ours."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from gateway.cli import demo
from gateway.demo import report
from gateway.demo.tally import Side, Tally

if TYPE_CHECKING:
    from pathlib import Path


def tally(**changes) -> Tally:
    side = Side(10, 8, 1, 0, 1, 0, wait_p50=0.5, wait_p99=2.0, tokens=1000)
    base = {
        "title": "x",
        "seconds": 60.0,
        "people": side,
        "agents": side,
        "crashes": 0,
        "down_s": 0.0,
        "retractions": 0,
        "queue_inside": 0,
        "promised": 50_000,
        "pool": 67_375,
        "deaths": (),
    }
    return Tally(**(base | changes))


def test_a_minute_of_the_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the gate more is promised than there is; with it never, and nobody is thrown out."""
    monkeypatch.setattr(demo, "SPEED", 40.0)
    path = tmp_path / "numbers.json"
    assert demo.run(["--seconds", "60", "--seed", "2", "--json", str(path)]) == 0
    numbers = json.loads(path.read_text())
    assert numbers["without"]["promised"] > numbers["without"]["pool"]
    assert numbers["gate"]["promised"] <= numbers["gate"]["pool"]
    assert numbers["gate"]["crashes"] == numbers["gate"]["retractions"] == 0
    asked = [numbers[act]["people"]["asked"] for act in ("alone", "without", "gate")]
    assert asked[0] == asked[1] == asked[2] > 0, "the same people in every act"
    said = capsys.readouterr().out
    assert "kvgate serve --backend" in said
    assert "most tokens promised at once" in said
    log = re.search(r"log of this show: (\S+)", said)
    assert log is not None
    with open(log[1], encoding="utf-8") as lines:  # noqa: PTH123
        assert any('"event":"request"' in line or "request" in line for line in lines)


@pytest.mark.parametrize("seconds", ["0", "-1", "59", "nan", "inf"])
def test_a_show_too_short_to_show_anything_is_refused(seconds, capsys) -> None:
    assert demo.run([f"--seconds={seconds}"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "60 or more" in err


def test_the_table_has_a_column_an_act() -> None:
    lines = report.table([tally(title="alone"), tally(title="with the gate")]).splitlines()
    assert lines[0].split() == ["alone", "with", "the", "gate"]
    assert any(line.split()[-1] == "67,375" for line in lines)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"crashes": 1}, "died (one crash)"), ({"retractions": 3}, "3 requests"), ({}, None)],
)
def test_a_broken_promise_is_said(changes, words) -> None:
    said = report.verdict(tally(**changes))
    assert (said is None) if words is None else (said is not None and words in said)
