"""A ceiling: less of a pool may be granted for a time, and nobody is refused for it."""

from __future__ import annotations

from gateway.core.amount import NOTHING, Amount
from gateway.core.appetite import appetite, holding, steady
from gateway.core.model import Demand, PoolLimits
from tests.core.desk import GPU0, Desk

ALL = Amount(1000, 500, 8)
LIMITS = PoolLimits(kv_tokens=1000, prefill_tokens=500, slots=8)


def desk(ceiling: Amount | None = None) -> Desk:
    made = Desk(gpu0=LIMITS)
    made.take(made.core.ceiling(GPU0, ceiling, made.now))
    return made


def of(made: Desk):
    return appetite(made.core.books, GPU0, made.now)


def test_what_is_above_the_ceiling_waits_and_starts_when_it_rises() -> None:
    made = desk(Amount(300, 500, 8))
    made.ask("a", 100, 100)
    made.ask("large", 400, 400)
    assert list(made.running) == ["a"]
    assert made.waiting == ["large"]
    assert made.refused == {}
    made.finish("a")
    assert made.waiting == ["large"]  # alone, it still may not use what is others'
    ledger = made.core.books.pools[GPU0].ledger
    assert not ledger.fits(Demand(cap=400, kv=801, prefill=400, slots=1))
    assert ledger.fits(Demand(cap=100, kv=300, prefill=199, slots=1))
    made.take(made.core.ceiling(GPU0, ALL, made.now))
    assert list(made.running) == ["large"]


def test_a_ceiling_below_what_is_held_lets_it_finish() -> None:
    made = desk()
    made.ask("a", 100, 100)
    made.take(made.core.ceiling(GPU0, NOTHING, made.now))
    made.ask("b", 10, 10)
    assert made.kv() == 201
    made.finish("a")
    assert made.waiting == ["b"]


def test_when_its_time_is_over_nothing_starts() -> None:
    made = desk()
    made.take(made.core.ceiling(GPU0, ALL, made.now, until=5.0))
    made.wait(4.9)
    made.ask("a", 100, 100)
    made.wait(0.1)
    made.ask("b", 10, 10)
    assert list(made.running) == ["a"]
    assert made.waiting == ["b"]
    made.take(made.core.ceiling(GPU0, ALL, made.now, until=9.0))
    assert made.waiting == []


def test_of_each_ledger() -> None:
    for short in (Amount(1000, 500, 1), Amount(1000, 99, 8)):
        made = desk(short)
        made.ask("a", 60, 10)
        made.ask("b", 60, 10)
        assert made.waiting == ["b"], short


def test_a_giant_needs_all_of_the_prefill_budget() -> None:
    made = desk(Amount(1000, 499, 8))
    made.ask("giant", 700, 100)
    assert made.waiting == ["giant"]
    assert of(made).need == Amount(801, 500, 1)
    made.take(made.core.ceiling(GPU0, ALL, made.now))
    assert made.waiting == []
    assert of(made).held == Amount(801, 500, 1)


def test_a_resize_keeps_the_ceiling() -> None:
    made = desk(Amount(300, 500, 8))
    made.take(made.core.resize(GPU0, PoolLimits(kv_tokens=2000), made.now))
    made.ask("large", 400, 400)
    assert made.waiting == ["large"]


def test_what_is_wanted_is_what_waits_whatever_the_ceiling() -> None:
    """One client alone has all that the gate has, and is not less hungry for that."""
    made = desk(Amount(201, 500, 8))
    for name in "abc":
        made.ask(name, 100, 100)
    wants = of(made)
    assert wants.held == Amount(201, 100, 1)
    assert wants.want == Amount(603, 300, 3)
    assert wants.need == Amount(201, 100, 1)
    assert wants.started == 1
    assert wants.hungry
    made.wait(3.0)
    ledger = made.core.books.pools[GPU0].ledger
    assert (steady(ledger, 0.0), steady(ledger, -1.0)) == (1, 0)
    made.take(made.core.ceiling(GPU0, ALL, made.now))
    assert not of(made).hungry
    assert of(made).need == NOTHING


def test_what_is_held_is_the_worst_case_where_nothing_is_forecast() -> None:
    made = desk()
    made.ask("a", 100, 100)
    made.first_token("a")
    assert holding(made.core.books.pools[GPU0].ledger) == Amount(201, 0, 1)
