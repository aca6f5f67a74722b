"""The retry budget: storms are damped, who comes when told is never counted, nothing grows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import retries
from gateway.core.retries import DOUBLINGS, RESERVE, SHARE, TTL_S, Again, Budgets, longer_s

WAIT_S = 5.0


def mark(of: object) -> bytes:
    return str(of).encode()


def ask(
    budget: Budgets,
    now: float,
    of: object = 0,
    *,
    client: str = "a",
    wait_s: float = WAIT_S,
    says_so: bool = False,
    served: bool = False,
) -> Again | None:
    """A request that is refused, unless it is served, as the edge tells of it."""
    again = None
    if budget.knows(client, now):
        again = budget.met(client, mark(of), now, arrived=now, says_so=says_so)
    if not served:
        level = 0 if again is None else again.level
        wait_s = min(wait_s * 2.0**level, 60.0)
        budget.refused(client, mark(of), wait_s, now, again=again)
    return again


def levels(found: list[Again | None]) -> list[int]:
    return [0 if one is None else one.level for one in found]


def test_nine_tries_of_one_call_within_ten_seconds() -> None:
    """O04: three tries of an SDK in three tries of an agent."""
    budget = Budgets()
    found = [ask(budget, 0.9 * i) for i in range(9)]
    assert found[0] is None
    assert [one.early for one in found[1:] if one] == [True] * 8
    told = levels(found)
    assert told[: 1 + RESERVE] == [0] * (1 + RESERVE)
    assert told == sorted(told)
    assert told[-1] >= 2


def test_at_once_each_try_beyond_the_budget_doubles_up_to_the_most() -> None:
    budget = Budgets()
    found = levels([ask(budget, 0.01 * i) for i in range(14)])
    assert found == [0] * 5 + [1, 2, 3, 4, 5, 6, 6, 6, 6]


@pytest.mark.parametrize("wait_s", [1.0, 5.0, 60.0])
def test_a_client_that_comes_when_told_to_is_never_counted(wait_s: float) -> None:
    budget, now = Budgets(), 0.0
    for _ in range(200):
        again = ask(budget, now, wait_s=wait_s)
        assert again is None or (not again.early and again.level == 0)
        now += retries.EARLY * wait_s  # clients round down
    early = ask(budget, now - 0.5 * wait_s, wait_s=wait_s)
    assert early is not None
    assert (early.early, early.level) == (True, 0), "all of its budget is there"


def test_what_was_admitted_is_not_counted() -> None:
    budget = Budgets()
    ask(budget, 0.0)
    found = [ask(budget, 0.1 * i, served=True) for i in range(1, 40)]
    assert levels(found) == [0] * 39


def test_one_that_was_under_way_when_another_was_refused_is_no_retry() -> None:
    budget = Budgets()
    for i in range(20):
        if budget.knows("a", 1.0):
            again = budget.met("a", mark(0), 1.0, arrived=0.9, says_so=False)
            assert again is None, i
        budget.refused("a", mark(0), WAIT_S, 1.0, again=None)


def test_a_retry_by_its_own_word_counts_only_while_every_time_told_is_ahead() -> None:
    budget = Budgets()
    assert ask(budget, 0.0, 0, wait_s=10.0) is None
    again = ask(budget, 1.0, 1, says_so=True)
    assert again is not None
    assert again.early
    assert again.told is None
    assert ask(budget, 1.0, 2) is None, "without it, it is a new one"
    # One was told 5 s at 1.0: whose retry this is cannot be said any more.
    assert ask(budget, 7.0, 3, says_so=True) is None
    assert ask(Budgets(), 0.0, 4, says_so=True) is None, "and none was refused here"


def test_clients_have_budgets_of_their_own() -> None:
    budget = Budgets()
    for i in range(20):
        ask(budget, 0.01 * i)
    assert ask(budget, 0.3, client="b") is None
    again = ask(budget, 0.4, client="b")
    assert again is not None
    assert again.level == 0


def test_a_client_that_asks_much_may_retry_a_share_of_it() -> None:
    budget = Budgets()
    found = []
    for i in range(400):
        ask(budget, i * 0.05, i)
        if i % 5 == 4:  # as many as SHARE allows
            found.append(ask(budget, i * 0.05 + 0.01, i))
    assert levels(found) == [0] * len(found)


def test_who_stops_is_as_before() -> None:
    budget = Budgets()
    for i in range(1_000):
        ask(budget, 0.01 * i)
    recovery_s = TTL_S * math.log((RESERVE + DOUBLINGS) / (RESERVE - 0.5))
    again = ask(budget, 10.0 + recovery_s, served=True)
    assert again is not None
    assert again.early
    assert again.level == 0
    assert not budget.knows("a", 10.0 + 60.0 + retries.KEEP_S + 1.0)
    assert not budget._clients


def test_a_body_without_a_mark_is_known_by_its_word_only() -> None:
    budget = Budgets()
    budget.refused("a", None, WAIT_S, 0.0, again=None)
    assert budget.knows("a", 1.0)
    assert budget.met("a", None, 1.0, arrived=1.0, says_so=False) is None
    assert not budget._clients["a"].told


def test_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(retries, "MARKS", 8)
    monkeypatch.setattr(retries, "CLIENTS", 4)
    budget = Budgets()
    for i in range(100):
        ask(budget, 0.0, i)
    assert [int(of) for of in budget._clients["a"].told] == list(range(92, 100))
    for i in range(100):
        ask(budget, 0.0, client=f"c{i}")
    assert list(budget._clients) == ["c96", "c97", "c98", "c99"]
    assert budget.met("c99", mark(0), 1.0, arrived=1.0, says_so=False) is not None


STEPS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 4),  # which request
        st.sampled_from([0.0, 0.01, 0.3, 1.0, 2.0, 7.0, 60.0]),  # since the step before
        st.booleans(),  # says that it is a retry
        st.booleans(),  # served
    ),
    max_size=80,
)


@given(STEPS, st.integers(1, 9), st.floats(1.0, 60.0))
def test_the_bound_holds_and_levels_are_within_theirs(steps, reserve: int, wait_s: float) -> None:
    """Early retries refused at the usual price: at most e × (reserve + ½ + SHARE × new ones, fading)."""
    budget, now = Budgets(reserve), 0.0
    usual: dict[str, list[float]] = {"a": [], "b": []}
    new: dict[str, list[float]] = {"a": [], "b": []}
    due: dict[tuple[str, int], float] = {}
    for client, of, passed, says_so, served in steps:
        now += passed
        before = due.get((client, of))
        again = ask(budget, now, of, client=client, wait_s=wait_s, says_so=says_so, served=served)
        level = 0 if again is None else again.level
        assert 0 <= level <= DOUBLINGS
        if again is None or not again.early:
            assert level == 0
            new[client].append(now)
        elif not level and not served:
            usual[client].append(now)
        if again is not None and again.told is not None and again.early:
            assert before is not None
            assert now < before
        if not served:
            due[client, of] = now + retries.EARLY * min(wait_s * 2.0**level, 60.0)
        fading = sum(math.exp((at - now) / TTL_S) for at in new[client])
        lately = [at for at in usual[client] if now - at < TTL_S]
        # What was new before the client was first refused is not looked at, and so at most more.
        assert len(lately) <= math.e * (reserve + 0.5 + SHARE * (fading * math.e + 1))


@given(st.floats(1.0, 60.0), st.integers(0, DOUBLINGS), st.floats(0.0, 1.0, exclude_max=True))
def test_the_longer_time_is_told_in_whole_seconds_and_is_what_sdks_obey(
    usual_s: float, level: int, jitter: float
) -> None:
    told = retries.Told(0.0, 60.0, usual_s)
    seconds = longer_s(told, level, jitter)
    assert seconds == int(seconds)
    assert 1 <= seconds <= 59
    assert seconds <= math.ceil(longer_s(told, min(level + 1, DOUBLINGS), 0.0))
    assert seconds >= 0.75 * min(usual_s * 2.0**level, 59.0)


def test_what_was_cut_at_the_most_is_remembered_whole() -> None:
    """20 s doubled twice are told as 59: the next is not counted from 15."""
    budget = Budgets(1)
    for i in range(6):
        ask(budget, 0.01 * i, wait_s=20.0)
    again = budget.met("a", mark(0), 1.0, arrived=1.0, says_so=False)
    assert again is not None
    assert again.told is not None
    assert (again.told.wait_s, again.told.usual_s, again.told.times) == (60.0, 20.0, 6)
