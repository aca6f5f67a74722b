"""What is said to be refused again would be: asked for real in that very state, it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import crowd
from gateway.core.model import Ask, ClientRule, Code, PoolLimits, QueueRule, Quota, Ticket

from .desk import GPU0, GPU1, Desk, rid

SMALL = PoolLimits(kv_tokens=100, slots=8)
BOUND = ClientRule("bound", max_waiting=1)
METERED = ClientRule("metered", quota=Quota(50, 100.0))
A, B = ClientRule("a"), ClientRule("b", weight=3.0)


def ticket(client: ClientRule = A, prompt: int = 30, cap: int = 30, body: int = 0) -> Ticket:
    return Ticket(rid("?"), client, Ask((prompt,), 1, cap), (GPU0,), body)


def look(desk: Desk, one: Ticket, then: frozenset | None = None):
    opened = crowd.opened(desk.core.books) if then is None else then
    return crowd.still_refused(desk.core, one, opened, desk.now)


def full(**queue: int) -> Desk:
    """Two run, and the queue has what it takes."""
    desk = Desk(QueueRule(**{"max_requests": 2, **queue}), gpu0=SMALL)
    for name in ("one", "two", "three"):
        desk.ask(name, 40, 40, client=A)
    return desk


def test_a_full_queue_refuses_again() -> None:
    desk = full()
    found = look(desk, ticket())
    assert found is not None
    assert (found.code, found.position, found.needed) == (Code.QUEUE_FULL, 3, 61)
    desk.ask("?", 30, 30, client=A)
    assert desk.refused["?"].code is Code.QUEUE_FULL


@pytest.mark.parametrize("bound", [{"max_tokens": 200}, {"max_bytes": 10}])
def test_so_do_its_other_bounds(bound) -> None:
    desk = full(max_requests=50, **bound)
    found = look(desk, ticket(body=11))
    assert found is not None
    assert found.code is Code.QUEUE_FULL


def test_what_fits_now_is_asked_in_however_long_the_line_is() -> None:
    desk = full()
    assert look(desk, ticket(prompt=5, cap=5)) is None
    desk.ask("?", 5, 5, client=A)
    assert "?" in desk.running


def test_room_in_line_is_asked_for() -> None:
    desk = full(max_requests=3)
    assert look(desk, ticket()) is None


def test_a_longer_line_of_another_gives_way() -> None:
    desk = full()
    desk.ask("mine", 40, 40, client=B)
    assert desk.refused.keys() == {"three"}
    assert look(desk, ticket(A)) is not None
    assert look(desk, ticket(B)) is None, "it would push out another's"


def test_ones_own_bound() -> None:
    desk = Desk(gpu0=SMALL)
    for name in ("one", "two"):
        desk.ask(name, 40, 40, client=BOUND)
    found = look(desk, ticket(BOUND))
    assert found is not None
    assert found.code is Code.CLIENT_LIMIT
    assert look(desk, ticket(A)) is None


def test_a_quota_that_is_used_up() -> None:
    desk = Desk(gpu0=SMALL)
    desk.ask("one", 40, 10, client=METERED)
    desk.first_token("one")
    desk.core.true_up(rid("one"), 10)
    desk.finish("one")
    found = look(desk, ticket(METERED))
    assert found is not None
    assert found.code is Code.QUOTA_EXCEEDED
    assert found.retry_after_s is not None
    desk.now += 101
    assert look(desk, ticket(METERED)) is None


def test_what_may_have_changed_is_asked_anew() -> None:
    desk = full()
    then = crowd.opened(desk.core.books)
    desk.pool("gpu1", SMALL)
    assert look(desk, ticket(), then) is None, "another pool has opened"
    assert look(desk, ticket(), then | {GPU1}) is not None
    due = desk.core.next_wakeup()
    assert due is not None
    desk.now = due
    assert look(desk, ticket()) is None, "a timer is due"


def test_nobody_is_told_to_come_later_while_the_gate_goes_down_or_no_server_is_there() -> None:
    desk = full()
    desk.take(desk.core.set_open(GPU0, desk.now, is_open=False))
    assert look(desk, ticket()) is None
    desk = Desk(gpu0=SMALL)
    desk.ask("one", 40, 30, client=METERED)
    assert look(desk, ticket(METERED)) is not None
    desk.take(desk.core.drain(desk.now))
    assert look(desk, ticket(METERED)) is None


def test_a_longer_time_keeps_its_place_for_as_long() -> None:
    """Who honours it is not worse off than who was told a shorter one."""
    desk = full()
    late = replace(ticket(), id=rid("late"), stretch=8.0)
    desk.take(desk.core.submit(late, desk.now))
    assert desk.refused["late"].retry_after_s == 40
    desk.now += 50
    assert desk.core._recall.place(late, desk.now) is not None


ASK = st.tuples(
    st.just("ask"),
    st.sampled_from([A, B, BOUND, METERED]),
    st.tuples(st.sampled_from([5, 20, 60]), st.sampled_from([5, 20, 30])),
)
STEP = st.one_of(
    ASK,
    ASK,
    st.tuples(st.just("finish"), st.integers(0, 5), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 20.0]), st.none()),
    st.tuples(st.just("pause"), st.sampled_from([0.0, 1.0]), st.none()),
    st.tuples(st.just("look"), st.integers(0, 5), st.none()),
)


@given(
    st.lists(STEP, min_size=10, max_size=50),
    st.integers(1, 4),
    st.integers(60, 400),
    st.booleans(),
)
def test_never_wrong(steps, requests: int, tokens: int, forecast: bool) -> None:
    """In any state, for any request that was refused: it is refused, for that reason."""
    queue = QueueRule(max_requests=requests, max_tokens=tokens, max_wait_s=15.0)
    desk = Desk(queue, gpu0=replace(SMALL, forecast=forecast))
    asked: dict[str, Ticket] = {}
    for i, (what, which, sizes) in enumerate(steps):
        name = f"r{i}"
        match what:
            case "ask":
                asked[name] = ticket(which, *sizes)
                desk.take(desk.core.submit(replace(asked[name], id=rid(name)), desk.now))
            case "finish" if which < len(desk.running):
                desk.finish(list(desk.running)[which])
            case "wait":
                desk.wait(which)
            case "pause":
                desk.take(desk.core.pause(GPU0, desk.now, which))
            case "look" if desk.refused.keys() & asked.keys():
                refused = [one for one in desk.refused if one in asked]
                again = asked[refused[which % len(refused)]]
                found = look(desk, again)
                running = set(desk.running)
                desk.take(desk.core.submit(replace(again, id=rid(name)), desk.now))
                if found is not None:
                    assert desk.refused[name].code is found.code
                    assert set(desk.running) == running
            case _:
                pass


def test_it_is_judged_by_where_it_needs_least() -> None:
    """As who waits is: the other pool has larger pages."""
    desk = Desk(
        QueueRule(max_requests=50, max_tokens=203), gpu0=SMALL, gpu1=PoolLimits(200, page=32)
    )
    for name in ("one", "two", "three", "four"):
        desk.ask(name, 40, 40, client=A, to=(GPU0, GPU1))
    assert desk.waiting == ["three", "four"]
    fits = Ticket(rid("?"), A, Ask((20,), 1, 20), (GPU0, GPU1))
    assert look(desk, fits) is None
    desk.ask("?", 20, 20, client=A, to=(GPU0, GPU1))
    assert "?" in desk.waiting
