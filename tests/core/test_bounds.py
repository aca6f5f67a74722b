"""What may wait in the queue for no pool yet: seen, bounded, and fair like all else that waits."""

from __future__ import annotations

import pytest

from gateway.core.appetite import appetite
from gateway.core.bounds import bound_passed
from gateway.core.model import (
    Ask,
    ClientRule,
    Code,
    Outcome,
    PoolLimits,
    QueueRule,
    Refused,
    Ticket,
    Transition,
)
from gateway.core.sums import LedgerError
from tests.core.desk import GPU0, Desk, rid

ONE = PoolLimits(kv_tokens=100)


def attend(
    desk: Desk, name: str, client: ClientRule | str = "anyone", body: int = 10
) -> list[Transition]:
    rule = ClientRule(client) if isinstance(client, str) else client
    return desk.take(desk.core.attend(Ticket(rid(name), rule, Ask(()), (), body), desk.now))


def leave(desk: Desk, name: str) -> list[Transition]:
    return desk.take(desk.core.leave(rid(name), desk.now))


def aside(desk: Desk) -> int:
    return desk.core.view(desk.now).queue.aside


def test_it_is_seen_where_all_that_waits_is() -> None:
    desk = Desk()
    attend(desk, "a", body=10)
    desk.wait(2)
    attend(desk, "b", "other", body=20)
    view = desk.core.view(desk.now)
    assert (view.queue.requests, view.queue.aside, view.queue.tokens) == (2, 2, 0)
    assert (view.queue.bytes, view.queue.oldest_s) == (30, 2.0)
    assert {client.name: client.waiting for client in view.clients} == {"anyone": 1, "other": 1}
    assert leave(desk, "a") == leave(desk, "b") == []
    view = desk.core.view(desk.now)
    assert (view.queue.requests, view.queue.aside, view.queue.bytes) == (0, 0, 0)
    assert view.clients == ()


def test_it_is_then_submitted_as_what_it_is() -> None:
    desk = Desk(gpu0=ONE)
    attend(desk, "a")
    leave(desk, "a")
    desk.ask("a", 1, 90)
    assert "a" in desk.running


def test_it_takes_no_room_and_stops_nobody() -> None:
    desk = Desk(gpu0=ONE)
    attend(desk, "a")
    desk.ask("runs", 1, 90)
    assert "runs" in desk.running
    desk.ask("next", 1, 90)
    attend(desk, "b")
    desk.finish("runs")
    assert "next" in desk.running
    assert aside(desk) == 2


def test_one_that_waits_for_room_is_what_a_share_is_asked_for() -> None:
    """What waits for no pool makes nobody else's request smaller."""
    desk = Desk(gpu0=PoolLimits(kv_tokens=1000, slots=1))
    desk.ask("runs", 1, 90)
    desk.ask("next", 1, 90)
    before = appetite(desk.core.books, GPU0, desk.now)
    attend(desk, "a")
    assert appetite(desk.core.books, GPU0, desk.now) == before


def test_a_change_of_limits_does_not_find_it_a_pool() -> None:
    desk = Desk(gpu0=ONE)
    attend(desk, "a")
    desk.pool("gpu0", PoolLimits(kv_tokens=50))
    desk.pool("gpu1", ONE)
    assert aside(desk) == 1
    assert not desk.running


def test_the_queue_takes_only_so_many() -> None:
    desk = Desk(QueueRule(max_requests=2))
    attend(desk, "a")
    attend(desk, "b")
    attend(desk, "c")
    refusal = desk.refused["c"]
    assert refusal.code is Code.QUEUE_FULL
    assert refusal.message == "2 requests are waiting, which is all the queue takes"
    assert refusal.retry_after_s is not None
    assert aside(desk) == 2


@pytest.mark.parametrize(
    ("own", "requests", "tokens", "size", "code"),
    [
        (2, 4, 100, 1000, None),  # each bound reached, none passed
        (3, 4, 100, 1000, Code.CLIENT_LIMIT),
        (2, 5, 100, 1000, Code.QUEUE_FULL),
        (2, 4, 101, 1000, Code.QUEUE_FULL),
        (2, 4, 100, 1001, Code.QUEUE_FULL),
        (3, 5, 101, 1001, Code.CLIENT_LIMIT),  # that of its own client is told first
    ],
)
def test_a_bound_is_the_most_that_may_wait(
    own: int, requests: int, tokens: int, size: int, code: Code | None
) -> None:
    rule = QueueRule(max_requests=4, max_tokens=100, max_bytes=1000)
    client = ClientRule("few", max_waiting=2)
    assert bound_passed(rule, client, own, requests=requests, tokens=tokens, size=size) is code


def test_the_queue_takes_only_so_many_bytes() -> None:
    desk = Desk(QueueRule(max_bytes=100))
    attend(desk, "a", body=60)
    attend(desk, "b", body=60)
    assert desk.refused["b"].code is Code.QUEUE_FULL
    attend(desk, "c", body=40)
    assert "c" not in desk.refused


def test_together_with_what_waits_for_room() -> None:
    desk = Desk(QueueRule(max_requests=2), gpu0=ONE)
    desk.ask("runs", 1, 90)
    desk.ask("waits", 1, 90)
    attend(desk, "a")
    attend(desk, "b")
    assert list(desk.refused) == ["b"]
    desk.ask("another", 1, 90)
    assert list(desk.refused) == ["b", "another"]


def test_a_flood_gives_way_to_somebody_else() -> None:
    desk = Desk(QueueRule(max_requests=3))
    for name in "abc":
        attend(desk, name, "flood")
    desk.wait(1)
    told = attend(desk, "d", "other")
    assert [(one.id, one.queued_s) for one in told if isinstance(one, Refused)] == [("c", 1.0)]
    assert aside(desk) == 3


def test_a_client_s_own_bound() -> None:
    desk = Desk()
    rule = ClientRule("few", max_waiting=1)
    attend(desk, "a", rule)
    attend(desk, "b", rule)
    assert desk.refused["b"].code is Code.CLIENT_LIMIT
    assert aside(desk) == 1


def test_when_there_will_be_room_is_not_known_for_it() -> None:
    """Its own requests elsewhere end at a rate that says nothing of a server nobody has seen."""
    desk = Desk(QueueRule(max_requests=1), gpu0=ONE)
    desk.ask("done", 1, 40)
    desk.ask("runs", 1, 40)
    desk.wait(1)
    desk.finish("done")
    attend(desk, "a")
    attend(desk, "b")
    assert (desk.refused["b"].eta_s, desk.refused["b"].retry_after_s) == (None, 5.0)


def test_it_keeps_no_place_for_one_of_whom_no_size_is_known() -> None:
    """Its sizes are what it would be known by when it comes back."""
    desk = Desk(QueueRule(max_requests=1))
    attend(desk, "a")
    attend(desk, "b")
    assert not desk.core._recall._places


def test_it_waits_no_longer_than_anybody_may() -> None:
    desk = Desk(QueueRule(max_wait_s=3.0))
    attend(desk, "a")
    desk.wait(3.1)
    assert desk.refused["a"].code is Code.QUEUE_TIMEOUT
    assert desk.refused["a"].message == "waited 3 s for its server, which is not ready"
    assert leave(desk, "a") == []


def test_a_gate_that_goes_down_sends_it_away() -> None:
    desk = Desk()
    attend(desk, "a")
    desk.take(desk.core.drain(desk.now))
    attend(desk, "b")
    assert {name: one.code for name, one in desk.refused.items()} == {
        "a": Code.DRAINING,
        "b": Code.DRAINING,
    }
    assert not desk.waiting


def test_a_gate_that_stood_still_lets_it_wait_as_long() -> None:
    desk = Desk(QueueRule(max_wait_s=3.0))
    attend(desk, "a")
    desk.now += 500
    desk.core.stood_still(500)
    desk.wait(2.9)
    assert not desk.refused
    desk.wait(0.2)
    assert "a" in desk.refused


@pytest.mark.parametrize("pools", [(GPU0,), ()])
def test_only_for_no_pool_and_only_once(pools: tuple[object, ...]) -> None:
    desk = Desk(gpu0=ONE)
    attend(desk, "a")
    ticket = Ticket(rid("b" if pools else "a"), ClientRule("x"), Ask(()), pools)  # type: ignore[arg-type]
    with pytest.raises(LedgerError):
        desk.core.attend(ticket, desk.now)
    assert desk.core.cancel(rid("a"), desk.now)[0].outcome is Outcome.CANCELLED  # type: ignore[union-attr]
