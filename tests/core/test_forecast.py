"""The bound on what a pool will come to, and the stories it exists for."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.confidence import ALARM, ALARM_S, LEAST, MISS, MOST, START, STEP, Confidence
from gateway.core.lengths import EDGES, LengthBook, bucket
from gateway.core.mirror import Mirror
from gateway.core.model import PoolLimits, QueueRule
from gateway.core.outlook import HORIZONS, Outlook, Term
from tests.core.desk import GPU0, Desk, rid

LONG = QueueRule(max_requests=10_000, max_tokens=1 << 40, max_wait_s=1e9)


def forecasting(kv: int, **more: int) -> PoolLimits:
    return PoolLimits(kv_tokens=kv, forecast=True, **more)


# ---- stories -----------------------------------------------------------------------------------


def test_the_first_two_calls_of_an_agent_both_run() -> None:
    """They promise 2 x (19,000 + 32,000) to a pool of 67,375, and both are answered in time."""
    desk = Desk(LONG, gpu0=forecasting(67_375 - 675))
    for name in ("title", "work"):
        desk.ask(name, 19_000, 32_000)
        desk.first_token(name)
    assert list(desk.running) == ["title", "work"]
    declared = Desk(LONG, gpu0=PoolLimits(kv_tokens=67_375 - 675))
    declared.ask("title", 19_000, 32_000)
    declared.ask("work", 19_000, 32_000)
    assert declared.waiting == ["work"]


def test_three_agents_that_name_no_limit_do_not_all_run() -> None:
    """Incident A: 3 x 19,000 tokens of prompt, and a box that died when the pool ran dry."""
    desk = Desk(LONG, gpu0=forecasting(67_375 - 675))
    for name in ("a", "b", "c"):
        desk.ask(name, 19_000, None, client=name)
        desk.first_token(name) if name in desk.running else None
    assert list(desk.running) == ["a", "b"]
    assert desk.running["a"].demand.cap == 8_192
    for tokens in range(500, 8_001, 500):
        for name in ("a", "b"):
            desk.core.true_up(rid(name), tokens)
        desk.wait(10)
    assert desk.waiting == ["c"], "they go on: who has 8,000 may have more"
    desk.finish("a")
    assert "c" in desk.running


def test_two_that_really_grow_stop_the_third_at_once() -> None:
    """A pool that fills past plan admits nothing more, whatever was expected."""
    desk = Desk(LONG, gpu0=forecasting(66_700))
    for name in ("a", "b"):
        desk.ask(name, 19_000, 32_000)
        desk.first_token(name)
        desk.core.true_up(rid(name), 9_000)
    desk.wait(1)
    desk.ask("third", 12_000, 1_000)
    assert desk.waiting == ["third"], "56,000 in use, and who has 9,000 may have 9,000 more"
    desk.finish("a")
    assert "third" in desk.running


def test_more_reserved_than_the_limit_is_growth_beyond_plan_and_admits_nothing() -> None:
    """What /status shows as reserved is what the pool is expected to come to now: the truth, which may
    be above the limit when answers have outgrown what was forecast of them."""
    desk = Desk(LONG, gpu0=forecasting(66_700))
    for name in ("a", "b"):
        desk.ask(name, 19_000, 32_000)
        desk.first_token(name)
        assert desk.core.view(desk.now).pools[0].kv.reserved <= 66_700, (
            "within it at each admission"
        )
    desk.ask("tiny", 10, 16)
    assert "tiny" in desk.running
    desk.finish("tiny")
    for tokens in range(500, 10_001, 500):
        for name in ("a", "b"):
            desk.core.true_up(rid(name), tokens)
        desk.wait(1)
    desk.ask("tiny2", 10, 16)
    kv = desk.core.view(desk.now).pools[0].kv
    assert kv.reserved > kv.limit > kv.used
    assert desk.waiting == ["tiny2"]
    desk.finish("a")
    assert "tiny2" in desk.running
    kv = desk.core.view(desk.now).pools[0].kv
    assert kv.reserved <= kv.limit


def test_what_is_reserved_is_never_shown_below_what_is_in_use() -> None:
    """Also where it was shown before, and nothing has come or gone since: answers grow by themselves."""
    desk = Desk(LONG, gpu0=forecasting(66_700))
    for name in ("a", "b"):
        desk.ask(name, 19_000, 32_000)
        desk.first_token(name)
    for tokens in range(2_000, 12_001, 2_000):
        for name in ("a", "b"):
            desk.core.true_up(rid(name), tokens)
        desk.wait(10)
        kv = desk.core.view(desk.now).pools[0].kv
        assert kv.reserved >= kv.used == 2 * (19_000 + tokens)


def test_where_all_caps_fit_nothing_is_forecast() -> None:
    desk = Desk(LONG, gpu0=forecasting(1_000))
    for i in range(10):
        desk.ask(f"r{i}", 49, 50)
    assert len(desk.running) == 10


def test_room_that_comes_with_time_is_found_without_an_event() -> None:
    """Tokens stream, the engine's ratio falls: nobody ends, and yet the next one fits."""
    desk = Desk(LONG, gpu0=forecasting(9_000))
    for i in range(3):
        desk.ask(f"r{i}", 100, 4_000)
        desk.first_token(f"r{i}")
    held = [name for name in ("r0", "r1", "r2") if name in desk.running]
    assert desk.waiting, "each counts as 0.7 x 4,000 at first"
    for tokens in range(20, 620, 20):
        for name in held:
            desk.core.true_up(rid(name), tokens)
        desk.wait(0.5)
    assert not desk.waiting


def test_answers_without_a_cap_get_their_clients_tail_once_it_is_known() -> None:
    desk = Desk(LONG, gpu0=forecasting(200_000))
    desk.ask("first", 100, None)
    assert desk.running["first"].demand.cap == 16_384, "the usual default"
    for i in range(150):
        desk.ask(f"r{i}", 100, None)
        desk.first_token(f"r{i}")
        desk.core.true_up(rid(f"r{i}"), 3_000)
        desk.finish(f"r{i}")
    desk.ask("known", 100, None)
    assert 3_000 <= desk.running["known"].demand.cap < 16_384
    desk.ask("short", 100, None, client="other")
    assert desk.running["short"].demand.cap == 16_384, "a tail is its client's own"


def test_a_fuller_pool_than_planned_raises_the_alarm() -> None:
    desk = Desk(LONG, gpu0=forecasting(10_000))
    desk.ask("a", 4_000, 5_900)
    desk.first_token("a")
    desk.core.true_up(rid("a"), 5_800)
    desk.wait(1)
    desk.ask("b", 10, 10)  # a decision looks
    ledger = desk.core.books.pools[GPU0].ledger
    assert ledger.confidence.z(desk.now) == START + ALARM
    assert ledger.confidence.z(desk.now + ALARM_S) == START


def test_what_did_not_fit_is_not_weighed_again(monkeypatch) -> None:
    """A full pool and a long line of larger requests: each new one costs no forecast of its own. A
    grant costs one, though it is asked for three times."""
    made = []
    monkeypatch.setattr("gateway.core.ledger.Term", lambda *args: made.append(args) or Term(*args))
    desk = Desk(LONG, gpu0=forecasting(60_000))
    for i in range(40):
        desk.ask(f"r{i}", 1_000, 16_000)
        desk.core.ratio(GPU0, 0.01)  # the engine itself would take more
        if f"r{i}" in desk.running:
            desk.first_token(f"r{i}")
    desk.wait(1)
    assert len(desk.waiting) > 10, "the forecast holds them back"
    ledger = desk.core.books.pools[GPU0].ledger
    assert ledger.mirror.room(ledger.limit) > 20_000
    made.clear()
    for i in range(40):
        desk.ask(f"larger{i}", 1_100 + i, 16_000)
    assert len(made) <= 1
    made.clear()
    desk.ask("small", 5, 5)
    assert "small" in desk.running, "a smaller one is weighed, and fits"
    assert len(made) <= 2, "for itself, and for the first in the line behind it"


# ---- the bound -----------------------------------------------------------------------------------


def curve_of(lengths: list[int]):
    of = LengthBook().of("a", "chat")
    for tokens in lengths:
        of.entered(-1, bucket(tokens))
        of.ended(bucket(tokens))
    return of


@given(
    base=st.integers(1, 5_000),
    generated=st.integers(0, 3_000),
    cap=st.integers(1, 8_000),
    sequences=st.integers(1, 4),
)
def test_a_term_stays_between_now_and_its_worst(base, generated, cap, sequences) -> None:
    term = Term(base, generated, sequences, cap, curve_of([400] * 50))
    assert term.mean[0] == term.worst[0] == base
    left = max(cap - generated, 0)
    for index in range(len(HORIZONS)):
        assert 0 <= term.mean[index] <= term.worst[index] <= base + left * sequences
        assert term.var[index] >= 0
    if left <= HORIZONS[-1]:
        assert max(term.worst) == base + left * sequences, "the cap itself is looked at"


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_holds_as_often_as_its_z_says(seed) -> None:
    """Forty answers of a known kind: their true sum passes mean + 2.3 sd about once in a hundred, at
    each of some five independent horizons."""
    draw = random.Random(seed)
    lengths = [int(draw.lognormvariate(6, 1)) + 1 for _ in range(2_000)]
    of = curve_of(lengths)
    broken = 0
    for _ in range(100):
        outlook = Outlook()
        truth = [0.0] * len(HORIZONS)
        for number in range(40):
            prompt, length = draw.randrange(100, 1_000), draw.choice(lengths[-300:])
            outlook.put(rid(f"{number}"), Term(prompt, 0, 1, 100_000, of))
            for index, horizon in enumerate(HORIZONS):
                truth[index] += prompt + horizon if length > horizon else 0
        broken += any(
            held > mean + 2.3 * var**0.5 + 1
            for held, mean, var in zip(truth, *outlook.moments()[:2], strict=True)
        )
    assert broken <= 20


def test_many_together_need_less_than_the_sum_of_their_quantiles() -> None:
    of = curve_of([100] * 270 + [4_000] * 30)
    outlook, term = Outlook(), Term(100, 0, 1, 32_000, of)
    for number in range(100):
        outlook.put(rid(f"{number}"), term)
    assert outlook.peak(2.0) < 0.25 * 100 * 4_100


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3_000)), max_size=40))
def test_what_was_put_and_dropped_leaves_nothing(steps) -> None:
    of, outlook = curve_of([300] * 20), Outlook()
    for name, base in steps:
        if rid(f"{name}") in outlook and base % 2:
            outlook.drop(rid(f"{name}"))
        else:
            outlook.put(rid(f"{name}"), Term(base, base // 2, 1, 4_000, of))
    for name in {f"{name}" for name, _ in steps}:
        if rid(name) in outlook:
            outlook.drop(rid(name))
    assert not outlook
    assert outlook.peak(4.0) == 0.0


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 500)), min_size=1, max_size=8))
def test_a_forecast_made_late_is_the_one_made_at_once(requests) -> None:
    of = curve_of([300] * 20)
    at_once, candidate = Outlook(), Term(1_000, 0, 1, 2_000, of)
    for number, (prompt, each) in enumerate(requests):
        at_once.put(rid(f"{number}"), Term(prompt + each, each, 1, 4_000, of))

    def late() -> Outlook:
        outlook, demand = Outlook(), SimpleNamespace(slots=1, cap=4_000)
        for number, (prompt, each) in enumerate(requests):
            one = SimpleNamespace(demand=demand, lengths=of, occupied=prompt + each, each=each)
            outlook.enter(rid(f"{number}"), one)
        return outlook

    peak = at_once.peak(2.0)
    assert late().peak(2.0) == peak
    assert late().moments() == at_once.moments()
    for limit in (0.5 * peak, peak, 1.5 * peak, 2 * peak):
        assert late().admits(candidate, limit, 2.0) == at_once.admits(candidate, limit, 2.0)


def test_who_came_in_while_all_caps_fitted_counts_once_they_do_not(monkeypatch) -> None:
    """No forecast is made where none is looked at; the first one that is has everybody in it."""
    made = []
    weigh = Term.__init__
    monkeypatch.setattr(Term, "__init__", lambda term, *how: made.append(term) or weigh(term, *how))
    desk = Desk(LONG, gpu0=forecasting(30_000))
    for name in ("a", "b", "c"):
        desk.ask(name, 2_000, 2_000)
        desk.first_token(name)
    desk.finish("b")
    assert not made, "three worst cases fit, and one was gone before anybody asked"
    for number in range(10):
        desk.ask(f"more{number}", 2_000, 12_000)
    ledger = desk.core.books.pools[GPU0].ledger
    assert ledger.worst > ledger.limit
    assert desk.waiting, "those two hold as much as they would have, had they come later"
    held = [ledger.holds[rid(name)] for name in desk.running]
    means, _, _ = ledger.outlook.moments()
    now = [Term(h.occupied, h.each, 1, h.demand.cap, h.lengths).mean[0] for h in held]
    assert means[0] == pytest.approx(sum(now))


# ---- z -----------------------------------------------------------------------------------------


def cohort(confidence: Confidence, name: str, mean: float, sd: float, skewness: float = 0) -> None:
    size = len(HORIZONS)
    moments = ([mean] * size, [sd * sd] * size, [skewness * sd**3] * size)
    confidence.watch({rid(name): (1_000, 0, 1)}, *moments, limit=1_000.0)


def test_a_broken_forecast_raises_z_and_a_kept_one_lowers_it() -> None:
    confidence = Confidence()
    cohort(confidence, "long", mean=900.0, sd=10.0)
    confidence.saw(rid("long"), 64, limit=1_000.0)  # 1,064 tokens where 920 were the bound
    assert confidence.settled == pytest.approx(START + STEP * (1 - MISS))
    confidence.saw(rid("long"), 5_000, limit=1_000.0)
    assert confidence.settled == pytest.approx(START + STEP * (1 - MISS)), "once a forecast"
    confidence.gone(rid("long"))
    cohort(confidence, "short", mean=1_100.0, sd=100.0)
    confidence.saw(rid("short"), 40, limit=1_000.0)
    before = confidence.settled
    confidence.gone(rid("short"))
    assert confidence.settled == pytest.approx(before - STEP * MISS)


def test_a_forecast_is_judged_by_the_bound_that_admitted_it() -> None:
    """A few large requests are skewed, and were given room for it: to use that room is no miss."""
    confidence = Confidence()
    cohort(confidence, "skewed", mean=900.0, sd=60.0, skewness=2.0)
    confidence.saw(
        rid("skewed"), 128, limit=1_000.0
    )  # 1,128: mean + 2.5 sd is 1,050, and 1,155 with it
    assert confidence.settled == START
    cohort(confidence, "even", mean=900.0, sd=60.0)
    confidence.saw(rid("even"), 128, limit=1_000.0)
    assert confidence.settled > START


def test_a_forecast_of_an_empty_pool_teaches_nothing() -> None:
    confidence = Confidence()
    cohort(confidence, "a", mean=400.0, sd=1.0)
    confidence.saw(rid("a"), 64, limit=1_000.0)
    confidence.gone(rid("a"))
    assert confidence.settled == START
    cohort(confidence, "b", mean=600.0, sd=1.0)
    confidence.saw(rid("b"), 64, limit=100_000.0)
    assert confidence.settled == START, "the pool has become larger"


def test_a_quiet_night_takes_nothing_off_the_margin_of_the_morning() -> None:
    desk = Desk(LONG, gpu0=forecasting(60_000))
    for number in range(200):
        desk.ask(f"r{number}", 1_000, 4_000)
        desk.first_token(f"r{number}")
        desk.finish(f"r{number}")
    assert desk.core.books.pools[GPU0].ledger.confidence.settled == START


def test_z_stays_in_its_bounds_and_settles_where_misses_are_as_rare_as_asked(monkeypatch) -> None:
    monkeypatch.setattr("gateway.core.confidence.MISS", 0.05)  # 0.2 of a normal is below LEAST
    draw, confidence = random.Random(1), Confidence()
    misses = 0
    for number in range(4_000):
        name, before = f"{number}", confidence.settled
        cohort(confidence, name, mean=1_000.0, sd=100.0)
        reached = 1_000 + 100 * draw.gauss(0, 1)  # what it will really hold, standard normal
        confidence.saw(rid(name), max(0, int(reached) - 1_000), limit=1_500.0)
        misses += number >= 2_000 and confidence.settled > before
        confidence.gone(rid(name))
        assert LEAST <= confidence.settled <= MOST
    assert misses / 2_000 == pytest.approx(0.05, abs=0.02)


# ---- the engine's own rule -----------------------------------------------------------------------


def test_the_mirror_of_sglang_at_its_start_and_after_600_steps() -> None:
    """A running request keeps min(cap - out, 4,096) x ratio free: 0.7, then 0.098."""
    mirror = Mirror()
    mirror.starting = 5_000
    mirror.decodes(5_000, occupied=1_000, growth=4_096, sequences=1)
    assert mirror.room(10_000) == pytest.approx(10_000 - 1_000 - 0.7 * 4_096)
    for _ in range(600):
        mirror.grew(1, 0)
    assert mirror.ratio == pytest.approx(0.098)
    assert mirror.room(10_000) == pytest.approx(10_000 - 1_600 - 0.098 * 4_096)
    mirror.said = 0.4
    assert mirror.ratio == 0.4
    mirror.left(1_600, 4_096, 1)
    mirror.idle()
    assert mirror.ratio == pytest.approx(0.7)
    assert mirror.room(10_000) == 10_000


def test_a_conservative_server_keeps_more_free() -> None:
    assert Mirror(conservativeness=2.0).ratio == 1.0
    assert Mirror(conservativeness=0.5).ratio == pytest.approx(0.35)


def test_edges_are_what_the_prior_is_drawn_on() -> None:
    assert EDGES[0] == 0
    assert list(EDGES) == sorted(set(EDGES))
