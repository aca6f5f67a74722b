"""What a server has read before, and what that means for where a request goes."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import choice, prefix
from gateway.core.model import Ask, ClientRule, Lead, PoolLimits, QueueRule, RequestId, Ticket
from gateway.core.prefix import Prefixes
from tests.core.desk import GPU0, GPU1, Desk

BOTH = (GPU0, GPU1)


def lead_of(*names: int, each: int = 100) -> Lead:
    marks, mark = [], 0
    for number, name in enumerate(names, 1):
        mark = hash((mark, name))
        marks.append((mark, number * each))
    return Lead.of(marks)


LEADS = st.lists(st.integers(0, 3), min_size=1, max_size=8).map(lambda names: lead_of(*names))


@given(st.lists(LEADS, max_size=40), st.integers(100, 2_000), LEADS)
def test_what_is_known_is_a_front_that_was_sent_and_not_yet_pushed_out(sent, most, asked) -> None:
    memory = Prefixes()
    # The same as a list of marks by last use, a front counted as used after what continues it.
    used: OrderedDict[int, None] = OrderedDict()
    for lead in sent:
        memory.put(lead, most)
        for mark in reversed(lead.marks):
            used[mark] = None
            used.move_to_end(mark)
        while len(used) * 100 > most:
            used.popitem(last=False)
    front = 0
    for mark, tokens in zip(asked.marks, asked.tokens, strict=True):
        if mark not in used:
            break
        front = tokens
    assert memory.known(asked) == front
    assert len(memory) == len(used)


def test_a_dead_server_knows_nothing() -> None:
    memory = Prefixes()
    memory.put(lead_of(1, 2), 1_000)
    assert memory.known(lead_of(1, 2, 3)) == 200
    memory.forget()
    assert memory.known(lead_of(1, 2, 3)) == 0
    memory.put(lead_of(1, 2), 1_000)
    assert memory.known(lead_of(1, 2)) == 200


def test_marks_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(prefix, "MOST_MARKS", 10)
    memory = Prefixes()
    for number in range(50):
        memory.put(lead_of(number, number + 1, each=1), 1 << 30)
    assert len(memory) == 10
    assert memory.known(lead_of(49, 50, each=1)) == 2
    assert memory.known(lead_of(1, 2, each=1)) == 0


@settings(max_examples=50)
@given(st.floats(0.0, 1.0))
def test_hopes_are_scaled_by_what_came_true(share) -> None:
    memory = Prefixes()
    assert memory.trust == 1.0
    for _ in range(100):
        memory.found(1_000, round(1_000 * share))
    assert memory.trust == pytest.approx(share, abs=0.002)
    memory.found(0, 0)  # nothing was hoped for: nothing is learned
    assert memory.trust == pytest.approx(share, abs=0.002)


# ---- placement -------------------------------------------------------------------------------------


def two(**more) -> Desk:
    limits = PoolLimits(kv_tokens=100_000, **more)
    desk = Desk(gpu0=limits, gpu1=limits)
    teach(desk)
    return desk


def teach(desk: Desk, rate: float = 1_000.0) -> None:
    """Let both servers show how fast they read: one token a millisecond."""
    for number in range(40):
        for pool in BOTH:
            name = f"{pool}-{number}"
            prompt = 200 * (1 + number % 7)
            desk.ask(name, prompt, 10, to=(pool,))
            desk.wait(0.02 + prompt / rate)
            desk.first_token(name)
            desk.finish(name)


def where(desk: Desk, name: str) -> object:
    return desk.running[name].pool


def test_a_conversation_goes_on_where_it_was() -> None:
    desk, said = two(), lead_of(*range(50))
    desk.ask("first", 5_000, to=(GPU1,), lead=said)
    desk.wait(5.0)
    desk.first_token("first")
    desk.finish("first")
    desk.ask("next", 5_100, to=BOTH, lead=said)
    assert where(desk, "next") == GPU1
    desk.ask("other", 5_100, to=BOTH, lead=lead_of(7, 7, 7))
    assert where(desk, "other") == GPU0


def test_what_is_known_of_a_beginning_overloads_nobody() -> None:
    """A system prompt that all have fills one server only until it is fuller than the other by what
    reading it anew would cost: 2,000 tokens are two seconds, a fifth of PRESSURE_S."""
    desk, shared = two(), lead_of(*range(20))
    for number in range(8):
        name = f"r{number}"
        desk.ask(name, 2_100, 5_900, to=BOTH, lead=shared)
        desk.wait(3.0)
        desk.first_token(name)
    kv = [desk.kv(GPU0), desk.kv(GPU1)]
    assert abs(kv[0] - kv[1]) <= 24_000
    assert min(kv) >= 16_000


def test_the_faster_server_is_preferred() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000), gpu1=PoolLimits(kv_tokens=100_000))
    for number in range(40):
        for pool, rate in ((GPU0, 500.0), (GPU1, 5_000.0)):
            name, prompt = f"{pool}-{number}", 200 * (1 + number % 7)
            desk.ask(name, prompt, 10, to=(pool,))
            desk.wait(0.02 + prompt / rate)
            desk.first_token(name)
            desk.finish(name)
    desk.ask("long", 5_000, to=BOTH)
    assert where(desk, "long") == GPU1


def test_a_server_that_was_slow_an_hour_ago_is_asked_again() -> None:
    desk = two()
    for number in range(200):
        for pool, seconds in ((GPU0, 0.5), (GPU1, 2.5)):
            desk.ask(f"{pool}{number}", 500, to=(pool,))
            desk.wait(seconds)
            desk.first_token(f"{pool}{number}")
            desk.finish(f"{pool}{number}")
    desk.ask("stays", 500, 2_000, to=(GPU0,))
    desk.first_token("stays")
    desk.ask("now", 500, to=BOTH)
    assert where(desk, "now") == GPU0
    desk.first_token("now")
    desk.finish("now")
    desk.wait(30.0)  # of gpu0 something was seen since, of gpu1 nothing for a minute
    desk.ask("seen", 500, to=(GPU0,))
    desk.wait(0.5)
    desk.first_token("seen")
    desk.finish("seen")
    desk.wait(40.0)
    desk.ask("later", 500, to=BOTH)
    assert where(desk, "later") == GPU1


def test_a_dead_server_loses_the_conversations_it_had() -> None:
    desk, said = two(), lead_of(*range(50))
    desk.ask("first", 5_000, to=(GPU1,), lead=said)
    desk.wait(5.0)
    desk.first_token("first")
    desk.take(desk.core.void(GPU1, desk.now))
    desk.finish("first")
    desk.ask("ballast", 1_000, 2_000, to=(GPU1,))  # but for the memory, gpu0 is the better one
    desk.wait(1.0)
    desk.first_token("ballast")
    desk.ask("next", 5_100, to=BOTH, lead=said)
    assert where(desk, "next") == GPU0


def test_a_server_without_a_cache_is_not_thought_to_have_one() -> None:
    desk, said = two(caches=False), lead_of(*range(50))
    for name in ("first", "next"):
        desk.ask(name, 5_000, to=(GPU1,) if name == "first" else BOTH, lead=said)
        if name == "first":
            desk.wait(5.0)
            desk.first_token(name)
            desk.finish(name)
            desk.ask("ballast", 1_000, 2_000, to=(GPU1,))
            desk.wait(1.0)
            desk.first_token("ballast")
    assert where(desk, "next") == GPU0


def test_a_server_that_finds_less_is_believed_less() -> None:
    desk, said = two(), lead_of(*range(50))
    for number in range(60):
        name = f"r{number}"
        desk.ask(name, 5_000, to=(GPU1,), lead=said)
        desk.core.cached(desk.running[name].id, 0)
        desk.wait(5.0)
        desk.first_token(name)
        desk.finish(name)
    desk.ask("next", 5_000, to=BOTH, lead=said)
    assert where(desk, "next") == GPU0


def test_what_is_cached_is_expected_sooner() -> None:
    desk, said = two(), lead_of(*range(50))
    desk.ask("first", 5_000, to=(GPU0,), lead=said)
    whole = desk.running["first"].ttft_s
    desk.wait(5.0)
    desk.first_token("first")
    desk.finish("first")
    desk.ask("next", 5_100, to=(GPU0,), lead=said)
    assert desk.running["next"].ttft_s < whole / 5
    assert desk.prefill() == 5_100, "the contexts in prefill are counted in full: they take memory"


def test_only_what_is_read_is_a_backlog_to_others_and_teaches_the_rate() -> None:
    desk, said = two(), lead_of(*range(50))
    place = desk.core.books.pools[GPU0]
    desk.ask("first", 5_000, to=(GPU0,), lead=said)
    desk.wait(5.0)
    desk.first_token("first")
    desk.finish("first")
    rate = place.prefill_rate
    desk.ask("next", 5_100, to=(GPU0,), lead=said)
    desk.ask("behind", 200, to=(GPU0,))
    assert desk.running["behind"].ttft_s < 1.0, "5,000 tokens before it are in the cache"
    desk.wait(0.1)
    desk.first_token("next")
    assert place.prefill_rate == pytest.approx(rate, rel=0.1), "100 tokens in 0.1 s"


def test_an_answer_in_one_piece_holds_prefill_for_as_long_as_there_is_to_read() -> None:
    desk, said = two(), lead_of(*range(50))
    desk.ask("first", 5_000, to=(GPU0,), lead=said)
    desk.wait(5.0)
    desk.first_token("first")
    desk.finish("first")
    desk.ask("next", 5_100, to=(GPU0,), lead=said, streamed=False)
    assert desk.prefill() == 5_100
    desk.wait(0.5)
    assert desk.prefill() == 0


# ---- what comes too late ---------------------------------------------------------------------------


def test_what_would_come_too_late_is_not_sent_and_stands_in_nobody_s_way() -> None:
    desk = two(prefill_tokens=16_000)  # "late" lacks nothing but the end of a prefill
    desk.ask("reading", 15_000, to=(GPU0,))
    desk.ask("late", 3_000, to=(GPU0,), deadline=desk.now + 12.0)  # 15 s of reading are before it
    assert "late" not in desk.running
    desk.ask("patient", 1_000, to=(GPU0,))
    assert "patient" in desk.running
    desk.wait(12.0)
    assert desk.refused["late"].code == "deadline_unreachable"
    desk.first_token("reading", "patient")
    desk.finish("reading", "patient")
    assert desk.at_rest()


def test_a_fence_for_what_has_become_late_is_lifted() -> None:
    limits = PoolLimits(kv_tokens=10_000)
    desk = Desk(gpu0=limits, gpu1=limits)
    teach(desk)
    pool = desk.core.books.pools[GPU0]
    desk.ask("stays", 100, 6_000, client="third")
    desk.wait(0.12)
    desk.first_token("stays")
    began = desk.now
    desk.ask("large", 3_000, 2_000, client="other", deadline=began + 20.0)
    for number in range(10):  # a pool-full goes by
        desk.ask(f"small{number}", 100, 900)
        desk.wait(0.12)
        desk.first_token(f"small{number}")
        desk.finish(f"small{number}")
    desk.ask("behind", 100, 900)
    assert pool.fence == "large"
    takes = pool.first_token_s(desk.core.books.entry("large").demands[GPU0], (), desk.now)
    desk.wait(began + 20.0 - 1.4 * takes - desk.now)
    assert "behind" not in desk.running, "the fence holds"
    desk.wait(0.25 * takes)  # 1.3 times is needed to be sure; it has not ended yet
    assert "large" not in desk.refused
    assert "behind" in desk.running


def test_it_goes_where_it_still_comes_in_time() -> None:
    desk = two(prefill_tokens=20_000)
    desk.ask("reading", 15_000, to=(GPU0,))
    desk.ask("urgent", 3_000, to=(GPU0,), deadline=desk.now + 12.0)
    desk.ask("free", 3_000, to=BOTH, deadline=desk.now + 12.0)
    assert where(desk, "free") == GPU1


def test_without_samples_a_deadline_is_given_a_try() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100_000))
    desk.ask("first", 20_000, deadline=5.0)  # at the rate assumed: 20 s
    assert "first" in desk.running


@pytest.mark.parametrize("aside", [0, 1])
def test_an_idle_server_is_not_kept_idle_for_a_request_that_may_be_late(aside: int) -> None:
    desk = two()
    for number in range(aside):  # who waits for no pool yet would get none of its time
        ticket = Ticket(RequestId(f"aside{number}"), ClientRule("another"), Ask(()), ())
        desk.take(desk.core.attend(ticket, desk.now))
    desk.ask("tight", 5_000, to=(GPU0,), deadline=desk.now + 6.0)  # 5 s likely, 6.5 to be sure
    assert "tight" in desk.running
    desk.ask("second", 5_000, to=(GPU1,), deadline=desk.now + 6.0)
    assert "second" in desk.running


# ---- conversations of one client -------------------------------------------------------------------


def test_conversations_of_one_client_take_turns() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100))
    desk.ask("running", 50, 50)
    for number in range(6):
        desk.ask(f"a{number}", 50, 50, session=1)
    desk.ask("b0", 50, 50, session=2)
    desk.ask("b1", 50, 50, session=2)
    for _ in range(9):
        desk.finish(*list(desk.running))
    assert desk.order == ["running", "a0", "b0", "a1", "b1", "a2", "a3", "a4", "a5"]


def test_turns_are_counted_in_tokens() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100))
    desk.ask("running", 50, 50)
    for number in range(3):
        desk.ask(f"big{number}", 50, 50, session=1)
    for number in range(6):
        desk.ask(f"small{number}", 5, 20, session=2)
    desk.core.books.pools[GPU0].ledger.resized(PoolLimits(kv_tokens=100, slots=1))
    while desk.running:
        desk.finish(*list(desk.running))
    assert desk.order[1:7] == ["big0", "small0", "small1", "small2", "small3", "big1"]


def test_without_conversations_a_line_is_by_arrival() -> None:
    desk, rng = Desk(gpu0=PoolLimits(kv_tokens=1_000)), random.Random(1)
    desk.ask("running", 900, 100)
    names = [f"r{number}" for number in range(30)]
    for name in names:
        desk.ask(name, rng.randrange(300, 500), 200)
    while desk.running:
        desk.finish(next(iter(desk.running)))
    assert desk.order[1:] == names


@pytest.mark.parametrize("idle", [False, True], ids=["while others wait", "after an idle time"])
def test_who_comes_back_when_told_stands_where_it_stood(idle) -> None:
    desk = Desk(QueueRule(max_requests=2), gpu0=PoolLimits(kv_tokens=100))
    for name in ("running", "a0", "a1", "sent away"):
        desk.ask(name, 50, 51 if name == "sent away" else 50)
        if name == "running":
            desk.pool("gpu0", PoolLimits(kv_tokens=101))
    assert list(desk.refused) == ["sent away"]
    while idle and desk.running:
        desk.finish(*list(desk.running))
    desk.wait(desk.refused["sent away"].retry_after_s)
    desk.core.queue = QueueRule(max_requests=10)
    if idle:
        desk.ask("again running", 50, 50)
    for number in range(3):
        desk.ask(f"new{number}", 50, 50)
    desk.ask("back", 50, 51)
    while desk.running:
        desk.finish(*list(desk.running))
    order = [name for name in desk.order if name.startswith(("new", "back"))]
    assert order == ["back", "new0", "new1", "new2"]


def test_ever_new_conversations_do_not_hold_up_an_old_one() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=100))
    desk.ask("running", 50, 50, session=0)
    desk.ask("old0", 50, 50, session=0)
    desk.ask("old1", 50, 50, session=0)
    for number in range(20):
        desk.ask(f"new{number}", 50, 50, session=number + 1)
        desk.finish(*list(desk.running))
    assert "old1" in desk.order[:8]


def test_what_is_remembered_of_conversations_is_bounded() -> None:
    desk = Desk(gpu0=PoolLimits(kv_tokens=1_000))
    desk.ask("stays", 100, 100)
    for number in range(500):
        name = f"r{number}"
        desk.ask(name, 100, 100, session=number)
        desk.finish(name)
    (flow,) = desk.core.books.flows.values()
    assert len(flow.ends) <= 70


# ---- the short way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_request_that_waits_alone_is_judged_as_among_others(monkeypatch, seed) -> None:
    short, told = choice._alone, []

    def both(*args):
        one, other = short(*args), choice._among(*args)
        assert (one is None) == (other is None)
        assert one is None or all(a is b for a, b in zip(one, other, strict=True))
        told.append(one is not None)
        return one

    monkeypatch.setattr(choice, "_alone", both)
    desk, rng = two(prefill_tokens=2_000, slots=6), random.Random(seed)
    bound = ClientRule("bound", max_inflight=2, max_held_tokens=60_000)
    for number in range(400):
        desk.ask(
            f"r{number}",
            rng.randrange(100, 30_000),
            rng.choice([None, 100, 30_000]),
            client=rng.choice(["a", "b", bound]),
            to=rng.choice([BOTH, (GPU0,), (GPU1,)]),
            deadline=rng.choice([None, desk.now + rng.uniform(0.1, 40.0)]),
            lead=lead_of(*range(rng.randrange(6)), each=1_000),
        )
        while desk.waiting:
            name = rng.choice(list(desk.running))
            desk.wait(rng.uniform(0.01, 5.0))
            desk.first_token(name)
            desk.finish(name)
    assert {True, False} <= set(told)
