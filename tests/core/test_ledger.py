"""One pool's ledger: all of a demand or nothing, once in, once out."""

from __future__ import annotations

import pytest

from gateway.core.hold import Hold
from gateway.core.ledger import PoolLedger
from gateway.core.model import Demand, LedgerView, PoolId, PoolLimits
from gateway.core.sums import LedgerError
from tests.core.desk import rid

LIMITS = PoolLimits(kv_tokens=1_000, prefill_tokens=300, slots=3)


def ledger() -> PoolLedger:
    return PoolLedger(PoolId("gpu0"), LIMITS)


def hold(kv: int, prefill: int = 10, slots: int = 1, client: str = "a") -> Hold:
    return Hold(client, Demand(1, kv, prefill, slots), prompt=prefill, since=0.0, streamed=True)


def state(of: PoolLedger) -> tuple[int, int, int, dict[str, int]]:
    return of.kv, of.prefill, of.slots, of.by_client


@pytest.mark.parametrize(
    ("kv", "prefill", "slots", "fits"),
    [
        (500, 200, 2, True),  # each exactly to its limit
        (501, 200, 2, False),
        (500, 201, 2, False),
        (500, 200, 3, False),
    ],
)
def test_all_three_ledgers_must_have_room(kv, prefill, slots, fits) -> None:
    of = ledger()
    of.reserve(rid("first"), hold(500, 100, 1))
    assert of.fits(Demand(1, kv, prefill, slots)) is fits


def test_a_prompt_over_the_prefill_budget_runs_alone() -> None:
    of = ledger()
    giant = Demand(1, 500, 400, 1)
    assert of.fits(giant)
    of.reserve(rid("small"), hold(100, 10))
    assert not of.fits(giant)
    of.prefilled(rid("small"), 0.0)
    assert of.fits(giant)


def test_a_refused_reservation_changes_nothing() -> None:
    of = ledger()
    of.reserve(rid("first"), hold(900))
    before = state(of)
    with pytest.raises(LedgerError, match="900 of 1000 held"):
        of.reserve(rid("second"), hold(101))
    with pytest.raises(LedgerError, match="already"):
        of.reserve(rid("first"), hold(1))
    assert state(of) == before
    assert list(of.holds) == ["first"]


def test_release_gives_back_everything_once() -> None:
    of = ledger()
    of.reserve(rid("a"), hold(400, 100, 2, "x"))
    of.reserve(rid("b"), hold(100, 50, 1, "x"))
    of.release(rid("a"))
    assert state(of) == (100, 50, 1, {"x": 100})
    of.release(rid("b"))
    assert state(of) == (0, 0, 0, {})
    with pytest.raises(LedgerError, match="holds nothing"):
        of.release(rid("a"))


def test_prefill_is_given_back_at_the_first_token_or_at_the_end_never_twice() -> None:
    of = ledger()
    of.reserve(rid("a"), hold(400, 100))
    of.reserve(rid("b"), hold(400, 100))
    assert of.prefilled(rid("a"), 0.0)
    assert not of.prefilled(rid("a"), 0.0)
    assert of.prefill == 100
    of.release(rid("a"))
    assert of.prefill == 100
    of.release(rid("b"))
    assert of.prefill == 0


def test_a_counter_that_would_go_below_zero_raises() -> None:
    of = ledger()
    of.reserve(rid("a"), hold(400))
    of.kv = 399  # somebody else's bug
    with pytest.raises(LedgerError, match="kv of gpu0 would go below zero: 399 - 400"):
        of.release(rid("a"))


def test_used_is_what_is_known_to_be_occupied() -> None:
    of = ledger()
    one = hold(400, 100)
    of.reserve(rid("a"), one)
    assert one.used == 0, "nothing before the prompt is in"
    of.prefilled(rid("a"), 0.0)
    one.generated = 50
    assert one.used == 150
    one.generated = 5_000
    assert one.used == 400, "a reservation bounds what it covers"
    kv, prefill, slots = of.views()
    assert (kv, prefill, slots) == (
        LedgerView(1_000, 400, 400),
        LedgerView(300, 0, 0),
        LedgerView(3, 1, 1),
    )


def test_free_goes_negative_after_a_resize_and_nothing_fits() -> None:
    of = ledger()
    of.reserve(rid("a"), hold(400))
    of.resized(PoolLimits(kv_tokens=300))
    assert of.free == -100
    assert not of.fits(Demand(1, 1, 0, 1))
