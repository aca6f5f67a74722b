"""What processes hear of each other: how much may slip through, whatever is late, lost or never said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.flows import ELSEWHERE_S
from gateway.core.model import ClientRule, Code, Quota
from gateway.core.others import CLIENTS, FRESH_S, MARKS, MOST, Others, Strikes, Use, Words
from gateway.core.quarantine import ECHO_S, FORGET_S
from gateway.core.reasons import waits_for
from gateway.edge.common import ROUND_S
from gateway.lease.store import Said, StoreError
from gateway.lease.words import decode, encode
from tests.lease.hearsay import World

LONG = ClientRule("a", quota=Quota(1000, 1e9))
HOUR = ClientRule("a", quota=Quota(1000, 3600.0))
HELD = ClientRule("a", max_held_tokens=1000)
K = 3
WHO = st.integers(0, K - 1)
STEP = st.one_of(
    st.tuples(st.just("ask"), WHO, st.integers(1, 400), st.integers(1, 400)),
    st.tuples(st.just("end"), WHO, st.integers(0, 400), st.just(0)),
    st.tuples(st.just("write"), WHO, st.just(0), st.just(0)),
    st.tuples(st.just("read"), WHO, st.booleans(), st.just(0)),
    st.tuples(
        st.just("wait"), st.just(0), st.sampled_from([0.02, 0.3, 1.0, 6.0, 11.0]), st.just(0)
    ),
)
OFFSETS = st.lists(st.floats(-1e4, 1e4), min_size=K, max_size=K)


def play(world: World, step, check) -> None:
    what, who, x, y = step
    one = world.of[who]
    if what == "ask":
        check(one, one.ask(x, y))
    elif what == "end":
        one.end(x)
    elif what == "write":
        world.write(one)
    elif what == "read":
        world.read(one, lost=x)
    else:
        world.wait(x)


@given(OFFSETS, st.lists(STEP, max_size=80))
@settings(max_examples=200)
def test_a_quota_is_passed_by_one_request_and_what_others_let_in_meanwhile(offsets, steps) -> None:
    world = World(LONG, offsets)

    def check(one, name: str) -> None:
        if name in one.desk.refused:
            return
        meanwhile = 0
        for other in world.of:
            if other is one:
                continue
            wrote = one.knows.get(other.name)
            meanwhile += other.let_in - (0 if wrote is None else wrote.let_in)
            if wrote is not None and world.now - wrote.at > FRESH_S:
                meanwhile += wrote.under_way  # what he had under way is not believed any more
        own = one.desk.core.books
        last = own.entry(name).need if name in own.waiting else one.desk.running[name].demand.kv
        assert sum(p.true for p in world.of) < 1000 + last + meanwhile

    for step in steps:
        play(world, step, check)


@given(OFFSETS, st.lists(STEP, max_size=80))
@settings(max_examples=200)
def test_held_tokens_are_passed_by_what_others_started_meanwhile(offsets, steps) -> None:
    world = World(HELD, offsets)
    for step in steps:
        before = {one.name: one.started for one in world.of}
        empty = {one.name: one.held == 0 for one in world.of}
        play(world, step, lambda *_: None)
        for one in world.of:
            if one.started == before[one.name]:
                continue
            meanwhile = 0
            for other in world.of:
                if other is not one:
                    wrote = one.knows.get(other.name)
                    meanwhile += other.started - (0 if wrote is None else wrote.started)
                    if wrote is not None and world.now - wrote.at > FRESH_S:
                        meanwhile += wrote.held
            held = sum(p.held for p in world.of)
            flow = one.desk.core.books.flows["a"]
            if flow.owed and empty[one.name]:  # it waited long enough: one of its own, at least
                continue
            assert held <= 1000 + meanwhile


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 3), st.floats(0, 0.1))
def test_what_one_did_the_other_knows_after_two_rounds(first_at, second_at, asks_at, takes) -> None:
    """Whenever in a second each has its round, with `takes` until the store has answered."""
    world = World(LONG, [0.0, 9.0])
    first, second = world.of
    every = ROUND_S + takes  # the next round begins a second after the answer
    steps = [(asks_at, 0)]
    steps += [(first_at + n * every, 1) for n in range(8)]
    steps += [(second_at + n * every, 2) for n in range(8)]
    steps += [(at + takes, 3) for at, what in steps if what == 2]
    for at, what in sorted(steps):
        world.wait(max(at - world.now, 0.0))
        if what == 0:
            first.ask(200, 99)
        elif what == 1:
            world.write(first)
        elif what == 2:
            world.write(second)
        else:
            world.read(second)
        if first.asked and world.now > asks_at + 2 * every + takes:
            assert second.desk.core.others.use("a", 1e9, second.desk.now).under_way == 300


@given(OFFSETS, st.data())
@settings(max_examples=200)
def test_a_death_counts_once_and_two_are_refused_everywhere_once_heard(offsets, data) -> None:
    """Never more than there were, whatever was lost; and all of two once everybody has heard."""
    world, mark = World(LONG, offsets), b"mark"
    deaths: list[str] = []
    seen: list[int] = []
    surely_two, pause = False, 0.0
    for number in range(data.draw(st.integers(0, 4))):
        server = data.draw(st.sampled_from(["gpu0", "gpu1"]))
        telling = data.draw(st.booleans())  # whether two starts of that server can be told apart
        start = f"{server} {number if telling else 'pinned'}"
        surely_two |= any(start != before for before in deaths) or bool(deaths and pause)
        deaths.append(start)
        for who in data.draw(st.sets(WHO, min_size=1)):  # each when it finds out
            one = world.of[who]
            for other in data.draw(st.lists(WHO, max_size=2)):
                world.write(world.of[other])
            if data.draw(st.booleans()):
                world.write(one)
                world.read(one, lost=data.draw(st.booleans()))
            one.quarantine.died([mark, b"bystander"], one.desk.now, start)
            seen.append(who)
            world.wait(data.draw(st.floats(0, ECHO_S / K - 1)))
            for p in world.of:
                assert p.quarantine.deaths(mark, p.desk.now) <= len(deaths)
        pause = data.draw(st.sampled_from([0.0, 2 * ECHO_S]))
        world.wait(pause)
    world.rounds()
    surely_two |= len(set(seen)) < len(seen)  # one of them saw both
    for one in world.of:
        if surely_two:
            assert one.quarantine.refuses(mark, one.desk.now)
        assert one.quarantine.deaths(mark, one.desk.now) <= len(deaths)
    assert len({p.quarantine.deaths(mark, p.desk.now) for p in world.of}) == 1, "all say the same"


@pytest.mark.parametrize(
    ("pause", "starts", "deaths"),
    [
        (3.0, ("gpu0 1", "gpu0 1"), 1),  # one death, found out at two times
        (3.0, ("gpu0 1", "gpu0 2"), 2),
        (3.0, ("gpu0 1", "gpu1 1"), 2),
        (ECHO_S + 1, ("gpu0 pinned", "gpu0 pinned"), 2),
    ],
)
@pytest.mark.parametrize("heard_before", [False, True])
def test_two_strikes_at_two_processes(pause, starts, deaths, heard_before) -> None:
    world = World(LONG, [0.0, 77.0])
    first, second = world.of
    first.quarantine.died([b"m"], first.desk.now, starts[0])
    world.wait(pause)
    if heard_before:
        world.rounds()
    second.quarantine.died([b"m"], second.desk.now, starts[1])
    world.rounds()
    assert [p.quarantine.deaths(b"m", p.desk.now) for p in world.of] == [deaths, deaths]


def test_who_was_answered_elsewhere_is_none_of_it() -> None:
    world = World(LONG, [0.0, 500.0])
    first, second = world.of
    first.quarantine.died([b"m"], first.desk.now, "gpu0 1")
    world.rounds()
    world.wait(60)
    second.quarantine.served(b"m", second.desk.now)
    world.rounds()
    for one in world.of:
        assert one.quarantine.deaths(b"m", one.desk.now) == 0
    world.wait(60)
    first.quarantine.died([b"m"], first.desk.now, "gpu0 2")
    world.rounds()
    assert second.quarantine.deaths(b"m", second.desk.now) == 1, "what came after it counts"
    assert not first.quarantine.refuses(b"m", first.desk.now)


def test_a_death_of_one_that_is_gone_counts_and_is_forgotten_after_its_hour() -> None:
    world = World(LONG, [0.0, -3000.0])
    dead, other = world.of
    dead.quarantine.died([b"m"], dead.desk.now, "gpu0 1")
    world.write(dead)
    world.of.remove(dead)
    world.wait(FORGET_S / 2)
    world.rounds()  # whoever comes half an hour later reads what the dead one left
    assert other.quarantine.deaths(b"m", other.desk.now) == 1
    other.quarantine.died([b"m"], other.desk.now, "gpu0 2")
    assert other.quarantine.refuses(b"m", other.desk.now)
    world.wait(FORGET_S / 2 + 1)
    assert other.quarantine.deaths(b"m", other.desk.now) == 2, "the latest is half an hour old"
    world.wait(FORGET_S / 2)
    assert other.quarantine.deaths(b"m", other.desk.now) == 0


def test_one_window_for_all_and_what_a_dead_one_used_counts_to_its_end() -> None:
    world = World(HOUR, [0.0, 9999.0])
    first, second = world.of
    first.ask(400, 300)
    first.end(200)
    world.rounds()
    world.wait(600)
    second.ask(300, 100)  # its window began when the first one's did
    second.end(100)
    world.rounds()
    world.wait(1800)
    name = second.ask(1, 1)
    refusal = second.desk.refused[name]
    assert refusal.code is Code.QUOTA_EXCEEDED
    assert refusal.retry_after_s == pytest.approx(1200)
    assert (
        "1000 tokens used of your quota of 1000 (600 of these in other processes" in refusal.message
    )
    view = second.desk.core.quotas([HOUR], second.desk.now)[0]
    assert (view.used, view.elsewhere, view.left_s) == (400, 600, pytest.approx(1200))
    world.of.remove(first)  # nothing is heard of it any more
    world.wait(1100)
    assert second.ask(1, 1) in second.desk.refused, "tokens used stay used"
    world.wait(101)
    assert second.ask(1, 1) in second.desk.running
    assert second.desk.core.quotas([HOUR], second.desk.now)[0].elsewhere == 0


def test_what_is_under_way_elsewhere_counts_until_nobody_says_so_any_more() -> None:
    world = World(HOUR, [0.0, 7.0])
    first, second = world.of
    first.ask(600, 399)
    world.rounds()
    refused = second.desk.refused[second.ask(1, 1)]
    assert refused.retry_after_s is None
    assert "(1000 of these in other processes of this gate)" in refused.message
    world.wait(FRESH_S + 1)
    assert second.ask(1, 1) in second.desk.running, "who has fallen silent keeps nobody out"


def test_a_request_that_waits_for_what_is_held_elsewhere_starts_when_that_ends() -> None:
    world = World(HELD, [0.0, 0.0])
    first, second = world.of
    first.ask(500, 300)
    world.rounds()
    name = second.ask(300, 200)
    books = second.desk.core.books
    assert name in books.waiting
    words = waits_for(books, books.entry(name), second.desk.now)
    assert words.endswith("or in other processes of this gate")
    first.end(1)
    world.rounds()
    assert name in second.desk.running


def test_work_that_goes_on_elsewhere_keeps_no_request_for_ever() -> None:
    world = World(HELD, [0.0, 0.0])
    first, second = world.of
    first.ask(300, 300)
    world.rounds()
    waits, next_one = second.ask(400, 50), second.ask(400, 50)
    for _ in range(int(ELSEWHERE_S)):
        assert not second.desk.running
        first.ask(300, 300)
        first.end(1)
        world.rounds()
        world.wait(1.0)
    assert first.held == 601
    world.rounds()
    assert waits in second.desk.running
    world.rounds()
    assert next_one not in second.desk.running, "one at a time"
    second.end(1)
    world.rounds()
    assert next_one in second.desk.running


def test_who_is_silent_holds_nothing() -> None:
    world = World(HELD, [0.0, 0.0])
    first, second = world.of
    first.ask(500, 300)
    world.rounds()
    name = second.ask(300, 200)
    world.wait(FRESH_S + 0.1)
    world.read(second, lost=True)
    assert name in second.desk.running


def test_documents_and_memory_are_bounded_and_what_matters_least_goes_first() -> None:
    clients = {f"c{n}": Use(used=n, began=0.0) for n in range(CLIENTS + 5)}
    strikes = {bytes([n % 256, n // 256]): Strikes(1, float(n)) for n in range(MARKS + 5)}
    strikes[b"twice"] = Strikes(2, -9.0)
    served = {bytes([n % 256, n // 256]): float(n) for n in range(MARKS + 5)}
    words = Words(0.0, 1.0, clients, strikes, served).bounded()
    assert (len(words.clients), len(words.strikes), len(words.served)) == (CLIENTS, MARKS, MARKS)
    assert "c4" not in words.clients
    assert b"twice" in words.strikes
    assert bytes([4, 0]) not in words.strikes
    assert bytes([4, 0]) not in words.served
    full = {f"n{i:063d}": Use(10**12, 0.0, 10**12, 10**12) for i in range(CLIENTS)}
    many = {bytes([i, *[0] * 15]): Strikes(2, 0.0, "x" * 80) for i in range(MARKS)}
    assert len(encode(Words(9.0, 9.0, full, many, dict.fromkeys(many, 0.0)), 9.0)) < 100_000
    others = Others()
    for n in range(MOST + 3):
        others.heard(f"p{n}", Words(float(n), 1e9))
    assert len(others) == MOST
    assert min(words.at for words in others) == 3.0
    others.look(1e9)
    assert len(others) == 0, "what is over is forgotten"


def test_words_are_the_same_after_the_way_and_in_the_reader_s_time() -> None:
    words = Words(
        100.0,
        160.0,
        {"a": Use(5, 40.0, 6, 7), "b": Use(held=1)},
        {b"m" * 16: Strikes(2, 90.0, "gpu0 k")},
        {b"n" * 16: 95.0},
    )
    there = decode(Said(3.0, encode(words, 100.0)), 1003.0)
    assert there == Words(
        1000.0,
        1060.0,
        {"a": Use(5, 940.0, 6, 7), "b": Use(held=1)},
        {b"m" * 16: Strikes(2, 990.0, "gpu0 k")},
        {b"n" * 16: 995.0},
    )


HEAD = b'{"form":"kvgate-common-1","lasts":1,"served":{},'


@pytest.mark.parametrize(
    "document",
    [
        *(b"", b"x", b"[]", b"null", b"{}", b'{"form":"kvgate-common-2"}'),
        HEAD + b'"strikes":{},"clients":{"a":[-1,null,0,0]}}',
        HEAD + b'"strikes":{},"clients":{"a":[1.5,null,0,0]}}',
        HEAD + b'"strikes":{},"clients":{"a":[1,-1,0,0]}}',
        HEAD + b'"strikes":{},"clients":{"a":[1]}}',
        HEAD + b'"strikes":{},"clients":{"a":[true,null,0,0]}}',
        HEAD + b'"strikes":{"zz":[1,0,""]},"clients":{}}',
        HEAD + b'"strikes":{"aa":[1,1e999,""]},"clients":{}}',
        HEAD + b'"strikes":{"aa":[]},"clients":{}}',
    ],
)
def test_what_cannot_be_is_refused_as_a_whole(document: bytes) -> None:
    with pytest.raises(StoreError):
        decode(Said(0.0, document), 0.0)


def test_a_number_that_is_none_is_not_counted() -> None:
    good = HEAD + b'"strikes":{"aa":[1,0,""]},"clients":{"a":[1,null,0,0]}}'
    assert decode(Said(0.0, good), 0.0).clients == {"a": Use(1)}
