"""What is remembered of deaths: bounded, forgetting, and never in the way of clean service."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.quarantine import (
    FENCE,
    FIRST_STEP,
    FORGET_S,
    HOLD_S,
    LONGEST_HOLD_S,
    LOOP,
    PROOF,
    STRIKES,
    WITHIN_S,
    CrashLoop,
    Quarantine,
    Ramp,
)

MARKS = st.integers(0, 8).map(lambda n: bytes([n]))
STEP = st.one_of(
    st.tuples(st.just("died"), st.lists(MARKS, max_size=9)),
    st.tuples(st.just("served"), MARKS),
    st.tuples(st.just("waited"), st.floats(0, 2 * FORGET_S)),
)


@given(st.lists(STEP, max_size=60))
def test_refused_exactly_after_two_deaths_without_service_between(steps) -> None:
    """Against a model that remembers everything."""
    quarantine, now = Quarantine(), 0.0
    history: dict[bytes, list[float]] = {}
    for what, value in steps:
        if what == "waited":
            now += value
        elif what == "served":
            quarantine.served(value, now)
            history.pop(value, None)
        else:
            quarantine.died(value, now)
            for mark in set(value):
                before = history.get(mark, [])
                kept = before if before and now - before[-1] <= FORGET_S else []
                history[mark] = [*kept, now]
        for mark in (bytes([n]) for n in range(9)):
            known = history.get(mark, [])
            count = len(known) if known and now - known[-1] <= FORGET_S else 0
            assert quarantine.deaths(mark, now) == count
            assert quarantine.refuses(mark, now) == (count >= STRIKES)


@given(st.integers(1, 20), st.lists(st.lists(st.binary(max_size=2), max_size=30), max_size=20))
def test_memory_is_bounded_and_the_oldest_go_first(keep: int, deaths) -> None:
    quarantine = Quarantine(keep=keep)
    last: list[bytes] = []
    for now, marks in enumerate(deaths):
        quarantine.died(marks, float(now))
        last = [m for m in last if m not in marks] + list(dict.fromkeys(marks))
        assert len(quarantine) <= keep
        for mark in last[-keep:]:
            assert quarantine.deaths(mark, float(now)) >= 1


def test_what_is_forgotten_takes_no_memory() -> None:
    quarantine = Quarantine()
    quarantine.died([b"a", b"b"], 0.0)
    quarantine.died([b"c"], FORGET_S + 1)
    assert len(quarantine) == 1


FULL = st.integers(1, 100_000)
RAMP_STEP = st.one_of(st.just(("clean", 0)), st.tuples(st.just("died"), st.integers(0, 200_000)))


@given(FULL, st.lists(RAMP_STEP, max_size=200))
def test_a_ramp_stays_below_what_the_server_died_of(full: int, steps) -> None:
    ramp = Ramp(full)
    ramp.died(0, full)
    lowest, since = None, 0
    for what, in_prefill in steps:
        before = ramp.allowed
        if what == "clean":
            ramp.prefilled()
            since += 1
            assert ramp.allowed >= before, "clean service never costs anything"
        else:
            ramp.died(in_prefill, full)
            since = 0
            assert ramp.allowed == 1, "each start begins with one prompt at a time"
            if in_prefill:
                fence = max(FIRST_STEP, int(in_prefill * FENCE))
                lowest = fence if lowest is None else min(lowest, fence)
        assert 1 <= ramp.allowed <= full
        if lowest is not None and since < PROOF:
            assert ramp.allowed <= max(lowest, int(lowest / FENCE) + 1, before)
    for _ in range(20_000):
        if ramp.done:
            break
        ramp.prefilled()
    assert ramp.done, "clean service opens it again, in the end wholly"


def test_a_fence_moves_only_after_its_proof() -> None:
    ramp = Ramp(full=40_000)
    ramp.died(12_000, 40_000)
    for _ in range(4):
        ramp.prefilled()
    assert ramp.allowed == 9_000
    for _ in range(PROOF - 1):
        ramp.prefilled()
    assert ramp.allowed == 9_000
    ramp.prefilled()
    assert 9_000 < ramp.allowed <= 12_000


@given(st.lists(st.floats(0, 2 * WITHIN_S), max_size=30))
def test_a_crash_loop_is_left_alone_and_nothing_else_is(gaps) -> None:
    loop, now, deaths = CrashLoop(), 0.0, []
    for gap in gaps:
        now += gap
        loop.died(now)
        deaths.append(now)
        recent = sum(now - at <= WITHIN_S for at in deaths)
        pause = loop.returned(now)
        assert (pause > 0) == (recent >= LOOP)
        assert pause <= LONGEST_HOLD_S
        if recent == LOOP:
            assert pause == HOLD_S
        assert loop.until == now + pause
        assert len(loop.deaths) == recent
