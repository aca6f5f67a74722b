"""Each class on a twin that really is in that state, through the same eyes as on a live gate; and
incident C's half hour with the files it leaves."""

from __future__ import annotations

import csv
import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from gateway.core.model import ClientRule
from gateway.observe.looks import CardLook, GateLook, ServerLook, columns
from gateway.twin.profiles import A10_8B, A100_8B, L20X4

from . import incident_c
from .watched import Agent, Box, watch

if TYPE_CHECKING:
    from pathlib import Path

LATER = 10_000.0


def told(box: Box, since: str, until: str) -> Counter[str]:
    """Verdicts of the minutes from one time to another."""
    return Counter(kind for at, kind, _ in box.timeline if since <= at <= until)


def test_two_people_are_calm() -> None:
    box = watch(L20X4, [Agent(f"a{i}", i, LATER, 8_000) for i in range(2)], 300)
    assert set(box.classes) == {"calm"}


@pytest.mark.parametrize("gated", [True, False])
def test_agents_that_wake_with_long_histories_are_a_backlog(gated: bool) -> None:
    """Before the gate and without it: then the engine's own queue and count show it."""
    agents = [Agent(f"a{i}", 60 + i, LATER, 90_000) for i in range(6)]
    box = watch(L20X4, agents, 180, gated=gated)
    assert box.classes[:1] + box.classes[2:3] == ["calm", "prefill_backlog"]


def test_many_long_contexts_that_write_at_once_compete() -> None:
    """Read once and written for long: an 80 GB card reads 47 GB of KV a step instead of 16 of
    weights."""
    alone = [Agent("alone", 0, 120, 4_000, out=1_500, think_s=1)]
    crowd = [Agent(f"a{i}", 130, LATER, 42_000, out=9_000, cap=9_000) for i in range(8)]
    box = watch(A100_8B, [*alone, *crowd], 360)
    assert set(box.classes[:2]) == {"calm"}
    assert told(box, "11:33", "11:35") == {"decode_competition": 3}
    assert (
        "requests of 45,626 tokens each decode at once; speed per request fell from 80 to 24"
        in (box.timeline[5][2])
    )


def test_short_jobs_behind_few_slots_are_a_queue_for_computing() -> None:
    jobs = [Agent(f"a{i}", i, LATER, 2_000, out=600, think_s=0.5) for i in range(8)]
    box = watch(L20X4, jobs, 240, slots=3)
    assert told(box, "11:31", "11:33") == {"compute_queue": 3}


def test_a_pool_too_small_for_them_is_exhausted() -> None:
    agents = [Agent(f"a{i}", i, LATER, 6_000, step=0, out=1_200, cap=None) for i in range(9)]
    box = watch(A10_8B, agents, 300)
    assert told(box, "11:31", "11:34") == {"kv_exhaustion": 4}
    assert box.simulation.processes[0].engine.counters.retractions == 0  # they wait here, not there


def test_without_a_gate_the_engine_takes_memory_back() -> None:
    agents = [Agent(f"a{i}", i, LATER, 4_000, step=0, out=2_500, cap=3_000) for i in range(9)]
    box = watch(A10_8B, agents, 300, gated=False)
    assert box.simulation.processes[0].engine.counters.retractions > 0
    assert told(box, "11:31", "11:34") == {"kv_exhaustion": 4}


def test_a_server_that_dies_is_down_and_then_is_not() -> None:
    box = watch(L20X4, [Agent("a", 0, LATER, 8_000, out=4_000)], 300, kill_at=90.0)
    assert box.classes[:5] == ["calm", "engine_down", "engine_down", "calm", "calm"]


def test_a_client_at_its_limit_waits_for_nobody_else() -> None:
    rules = {"a": ClientRule("a", max_inflight=1)}
    agents = [Agent(f"a{i}", i, LATER, 2_000, client="a") for i in range(4)]
    box = watch(L20X4, agents, 180, rules=rules)
    assert set(box.classes[:3]) == {"client_limited"}
    assert "requests of a held back by that client's own limits" in box.timeline[0][2]


# ---- incident C ----------------------------------------------------------------------------------


def test_half_an_hour_of_incident_c(tmp_path: Path) -> None:
    box = watch(
        L20X4,
        incident_c.people(),
        incident_c.SECONDS,
        slots=incident_c.SLOTS,
        kill_at=incident_c.KILL_AT,
        folder=tmp_path,
        cards=incident_c.cards,
    )
    assert told(box, "11:30", "11:33") == {"calm": 4}
    assert told(box, "11:34", "11:39") == {"prefill_backlog": 6}
    assert told(box, "11:40", "11:44")["decode_competition"] >= 2
    assert told(box, "11:48", "11:51") == {"compute_queue": 4}
    idle = [sentence for at, _, sentence in box.timeline if "11:53" <= at <= "11:56"]
    assert all("89 % taken while they idle" in sentence for sentence in idle)
    assert told(box, "11:57", "11:58") == {"engine_down": 2}
    assert told(box, "11:59", "11:59") == {"calm": 1}

    counted = len(box.looks)
    assert counted == 360
    for name, kind, rows in (
        ("gate.csv", GateLook, counted),
        ("servers.csv", ServerLook, counted),
        ("cards.csv", CardLook, 4 * counted),
    ):
        with (tmp_path / name).open(newline="") as file:
            header, *found = csv.reader(file)
        assert header == ["at", *columns(kind)]
        assert len(found) == rows
        assert all(len(row) == len(header) for row in found)
    minutes = [json.loads(line) for line in (tmp_path / "minutes.jsonl").read_text().splitlines()]
    assert [one["verdict"]["class"] for one in minutes] == box.classes[: len(minutes)]
    assert json.loads((tmp_path / "latest.json").read_bytes())["verdict"]["class"] == "calm"
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size < 256 << 10  # half an hour: a week of that is below 90 MB before it is compressed
