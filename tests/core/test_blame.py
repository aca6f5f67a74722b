"""A failure is a client's before it is a server's, and neither pays for longer than stated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.blame import (
    COOL_S,
    FAILURES,
    LONGEST_PROBE_S,
    LONGEST_S,
    NOBODY,
    PROBE_S,
    WITHIN_S,
    Blame,
)

CLIENT = st.sampled_from(["a", "b", "c"])
GAP = st.one_of(st.floats(0, 2), st.floats(0, 2 * WITHIN_S))
EVENT = st.tuples(GAP, CLIENT, st.booleans())


@given(st.lists(EVENT, max_size=80))
def test_a_server_is_blamed_only_for_two_clients_or_when_nobody_is_served(events) -> None:
    """Against everything that happened."""
    blame, now = Blame(), 0.0
    history: list[tuple[float, str, bool]] = []
    for gap, client, well in events:
        now += gap
        if well:
            blame.served(client, now)
            history.append((now, client, True))
            continue
        verdict = blame.failed(client, now)
        history.append((now, client, False))
        last = max((i for i, (_, _, good) in enumerate(history) if good), default=-1)
        since = history[last + 1 :]
        failing = {who for _, who, _ in since}
        others = {who for at, who, good in history if good and now - at <= WITHIN_S} - {client}
        if verdict.server:
            assert len(since) >= FAILURES
            assert len(failing) >= 2 or not others
            assert PROBE_S <= verdict.pause_s <= LONGEST_PROBE_S
            assert verdict.client is None
        if verdict.client is not None:
            assert verdict.client == client
            assert others, "somebody else was served"
            own = [good for _, who, good in history if who == client][-FAILURES:]
            assert own == [False] * FAILURES, "in a row"
            assert failing == {client}, "and nobody else has failed since"
            assert COOL_S <= verdict.pause_s <= LONGEST_S
        for who, left in blame.cooled(now).items():
            assert 0 < left <= LONGEST_S
            assert blame.cooling(who, now)[0] == left


@given(st.lists(st.tuples(GAP, st.booleans()), min_size=1, max_size=60), st.integers(1, 5))
def test_one_client_alone_never_costs_the_others_their_server(steps, between: int) -> None:
    """Its failures come as they like; the others are served every few of them, within the time."""
    blame, now = Blame(), 0.0
    blame.served("good", now)
    for number, (gap, fails) in enumerate(steps):
        now += min(gap, WITHIN_S / 10)
        if number % between == 0:
            blame.served("good", now)
        if fails:
            assert not blame.failed("bad", now).server
        assert blame.cooling("good", now) == (0.0, 0)


@given(st.lists(EVENT, max_size=60), CLIENT)
def test_one_good_answer_clears_its_client_and_the_server(events, client: str) -> None:
    blame, now = Blame(), 0.0
    for gap, who, well in events:
        now += gap
        if well:
            blame.served(who, now)
        else:
            blame.failed(who, now)
    blame.served(client, now)
    assert blame.cooling(client, now) == (0.0, 0)
    assert blame.probes == 0
    assert blame.failed(client, now) == NOBODY


def test_pauses_double_to_their_longest_and_begin_anew_after_a_good_answer() -> None:
    blame, now, pauses = Blame(), 0.0, []
    for _ in range(FAILURES - 1):
        blame.served("good", now)
        blame.failed("bad", now)
    for _ in range(5):
        blame.served("good", now)
        verdict = blame.failed("bad", now)
        pauses.append(verdict.pause_s)
        assert blame.failed("bad", now + 0.1) == NOBODY, "what was under way changes nothing"
        now += verdict.pause_s
        assert blame.cooling("bad", now) == (0.0, 0)
    assert pauses == [10, 20, 40, 59, 59]
    blame.served("bad", now)
    for _ in range(FAILURES):
        blame.served("good", now)
        verdict = blame.failed("bad", now)
    assert verdict.pause_s == COOL_S
    blame = Blame()
    server = [blame.failed("only", 0.0).pause_s for _ in range(FAILURES + 6)]
    assert server == [0, 0, 0, 0, 1, 2, 4, 8, 16, 30, 30]


def test_old_failures_and_old_answers_count_for_nothing() -> None:
    blame = Blame()
    for number in range(3 * FAILURES):
        assert blame.failed("a", number * (WITHIN_S + 1)) == NOBODY
    blame = Blame()
    blame.served("good", 0.0)
    for _ in range(FAILURES):
        verdict = blame.failed("bad", WITHIN_S + 1)
    assert verdict.server, "who was served a minute ago tells nothing of now"
