"""What is heard of other processes: facts stay until their window ends, what is held only while it is fresh."""

from __future__ import annotations

from gateway.core.others import FRESH_S, MOST, Others, Use, Words


def said(at: float, until: float = 1e6, **clients: Use) -> Words:
    return Words(at, until, clients)


def test_what_all_the_others_hold_is_added_up() -> None:
    others = Others()
    others.heard("one", said(100.0, anyone=Use(held=30), idle=Use()))
    others.heard("two", said(100.0, anyone=Use(held=12)))
    others.look(100.0)
    assert others.held == {"anyone": 42}
    others.heard("two", said(101.0, anyone=Use(held=1)))
    others.look(101.0)
    assert others.held == {"anyone": 31}


def test_who_has_fallen_silent_holds_nothing_any_more() -> None:
    others = Others()
    others.heard("one", said(100.0, anyone=Use(held=30, under_way=5)))
    others.heard("two", said(103.0, anyone=Use(held=12, under_way=7)))
    others.look(100.0 + FRESH_S)
    assert (others.fresh(100.0 + FRESH_S), others.held) == (2, {"anyone": 42})
    late = 100.5 + FRESH_S
    others.look(late)
    assert (others.fresh(late), others.held) == (1, {"anyone": 12})
    assert others.use("anyone", 60.0, late).under_way == 7


def test_what_was_used_counts_until_its_window_ends() -> None:
    others = Others()
    others.heard("one", said(100.0, anyone=Use(used=30, began=90.0)))
    others.heard("two", said(100.0, anyone=Use(used=12, began=80.0)))
    others.heard("three", said(100.0, anyone=Use(used=5)))  # no window is open there
    others.heard("four", said(100.0, other=Use(used=99, began=99.0)))
    assert others.use("anyone", 60.0, 139.9) == Use(used=42, began=80.0)
    assert others.use("anyone", 60.0, 140.0) == Use(used=30, began=90.0)
    assert others.use("anyone", 60.0, 150.0) == Use()


def test_what_is_over_is_forgotten_and_of_too_many_the_oldest() -> None:
    others = Others()
    others.heard("ends", said(100.0, until=110.0))
    others.look(109.0)
    assert len(others) == 1
    others.look(110.0)
    assert len(others) == 0
    for number in range(MOST + 1):
        others.heard(f"n{number}", said(200.0 - number, anyone=Use(used=number, began=199.0)))
    assert len(others) == MOST
    assert others.use("anyone", 60.0, 200.0).used == sum(range(MOST))
