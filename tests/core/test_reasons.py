"""Why it waited so long: each of the reasons that is not want of room is told by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.amount import NOTHING, Amount
from gateway.core.model import ClientRule, PoolLimits, QueueRule
from gateway.core.quarantine import TRIAL
from tests.core.desk import GPU0, Desk, rid

LIMITS = PoolLimits(kv_tokens=1_000)


def waited(desk: Desk, name: str = "late") -> str:
    desk.wait(30.0)
    return desk.refused[name].message


@pytest.fixture
def desk() -> Desk:
    return Desk(QueueRule(max_wait_s=30.0), gpu0=LIMITS)


def test_room_is_said_where_room_is_what_lacks(desk: Desk) -> None:
    desk.ask("one", 10, 900)
    desk.ask("late", 10, 200)
    assert waited(desk) == "waited 30 s for room on a server"


def test_a_gate_without_a_share(desk: Desk) -> None:
    desk.take(desk.core.ceiling(GPU0, NOTHING, desk.now))
    desk.ask("late", 10, 10)
    assert waited(desk) == (
        "waited 30 s for this gate's share of a server, of which it has none now (see its leases)"
    )


def test_a_gate_with_a_small_share_lacks_room(desk: Desk) -> None:
    desk.take(desk.core.ceiling(GPU0, Amount(15, 500, 8), desk.now))
    desk.ask("late", 10, 10)
    assert waited(desk) == "waited 30 s for room on a server"


def test_a_server_that_went_away(desk: Desk) -> None:
    desk.ask("one", 10, 900)
    desk.ask("late", 10, 200)
    desk.take(desk.core.set_open(GPU0, desk.now, is_open=False))
    assert waited(desk) == "waited 30 s for its server, which is not ready"


def test_a_server_that_says_it_is_full(desk: Desk) -> None:
    desk.ask("late", 10, 10)
    desk.take(desk.core.requeue(rid("late"), desk.now, pause_s=60.0))
    assert waited(desk) == "waited 30 s for a server that takes nothing new for the moment"


def test_a_client_at_its_own_limit(desk: Desk) -> None:
    rule = ClientRule("a", max_inflight=1)
    desk.ask("one", 10, 10, client=rule)
    desk.ask("late", 10, 10, client=rule)
    assert waited(desk) == "waited 30 s for its client's own requests to end"


def test_a_server_on_trial(desk: Desk) -> None:
    desk.pool("gpu0", replace(LIMITS, trial=TRIAL, prefill_tokens=1))
    desk.ask("one", 10, 10)
    desk.ask("late", 10, 10)
    assert waited(desk) == (
        "waited 30 s for a server that has been reached anew and gets few requests until it "
        "answers one"
    )


def test_a_clients_share_while_another_waits(desk: Desk) -> None:
    for number in range(6):
        desk.ask(f"a{number}", 10, 100, client="a")
    for name in ("b", "b2"):
        desk.ask(name, 10, 300, client="b")
    desk.ask("late", 10, 5, client="a")
    assert waited(desk) == "waited 30 s for its client's share of the server"
    assert desk.refused["b2"].message == "waited 30 s for room on a server"
