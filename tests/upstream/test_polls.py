"""How often a server in use is asked for its loads, and when what it said is old."""

from __future__ import annotations

import pytest

from gateway.upstream.life import Pace
from gateway.upstream.loads import LoadsFacts, RankLoad
from gateway.upstream.polls import Polls

PACE = Pace()


def said(running: int, age_s: float) -> LoadsFacts:
    rank = RankLoad(
        rank=0,
        running=running,
        waiting=0,
        used=0,
        total=0,
        waiting_uncached=None,
        pool_tokens=None,
        prefilled=None,
        age_s=age_s,
    )
    return LoadsFacts((rank,))


@pytest.mark.parametrize(
    ("version", "pause_s"),
    [
        ((0, 5, 16), PACE.probe_s),  # each goes through the scheduler
        ((0, 5, 17), PACE.loads_s),
        (None, PACE.loads_s),  # not known: taken for a recent one
    ],
)
def test_loads_that_cost_are_asked_for_rarely(
    version: tuple[int, int, int] | None, pause_s: float
) -> None:
    polls = Polls(PACE)
    polls.begin(version)
    assert polls.interval_s(0.0, failing=False) == pause_s


def test_what_came_last_says_when_the_next_is_due() -> None:
    polls = Polls(PACE)
    polls.begin((0, 5, 23))
    polls.want(7.0)
    assert polls.interval_s(6.9, failing=False) == PACE.loads_wanted_s
    assert polls.interval_s(6.9, failing=True) == PACE.retry_s
    assert polls.interval_s(7.0, failing=False) == PACE.loads_s
    polls.failed()
    assert polls.interval_s(7.0, failing=False) == PACE.probe_s
    assert polls.came(said(1, 0.0), 7.0) is None
    assert polls.interval_s(7.0, failing=False) == PACE.loads_s
    assert polls.came(None, 8.0) == said(1, 0.0)
    assert polls.interval_s(6.9, failing=False) == PACE.probe_s  # also where somebody waits
    assert (polls.age_s(9.0), polls.stale(100.0, 0.0)) == (2.0, False)


def test_an_old_word_of_work_is_stale_and_one_of_idleness_is_not() -> None:
    polls = Polls(PACE)
    polls.begin((0, 5, 23))
    assert polls.age_s(100.0) is None
    assert [polls.stale(now, 0.0) for now in (10.0, 10.1)] == [False, True]
    polls.came(said(1, 4.0), 20.0)
    assert [polls.stale(now, 0.0) for now in (26.0, 26.1)] == [False, True]
    polls.came(said(0, 4.0), 20.0)
    assert [polls.stale(now, 0.0) for now in (30.0, 30.1)] == [False, True]
    polls.begin((0, 5, 23))  # another start: what the last one said is nothing now
    assert polls.age_s(20.0) is None
