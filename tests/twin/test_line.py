"""Jobs that have not begun: handed in, clipped, refused late, in line, turned away."""

from __future__ import annotations

import dataclasses

from gateway.twin.jobs import Counters, Job, Phase
from gateway.twin.limits import INPUT_MARGIN, Limits
from gateway.twin.line import Line
from gateway.twin.pool import KvPool
from gateway.twin.profiles import TINY_CPU
from gateway.twin.versions import traits_of

POOL = 1_000
LONGEST = POOL - 1 - INPUT_MARGIN
"""Of a prompt, tokens: the context is larger than the pool."""


def line(most: int | None = None, version: str = "0.5.17") -> tuple[Line, Counters]:
    counters = Counters()
    profile = dataclasses.replace(TINY_CPU, context=10 * POOL)
    return Line(Limits(profile, traits_of(version), KvPool(POOL)), most, counters), counters


def job(rid: str, prompt: int = 10, cap: int | None = None) -> Job:
    return Job(rid, prompt, 5, cap, blocks=(1, 2))


def test_what_is_handed_in_comes_once_and_in_order() -> None:
    of, _ = line()
    jobs = [job(str(number)) for number in range(4)]
    of.inbox.extend(jobs)
    assert len(of) == 4
    assert list(of.arrivals()) == jobs
    assert list(of.arrivals()) == []
    assert len(of) == 0


def test_whose_client_left_while_a_step_ran_is_never_scheduled() -> None:
    of, _ = line()
    stays, gone = job("stays"), job("gone")
    of.inbox.extend([gone, stays])
    gone.phase = Phase.DONE
    assert list(of.arrivals()) == [stays]


def test_a_cap_is_clipped_silently_to_what_the_pool_can_hold() -> None:
    of, _ = line()
    asked = [job("none", 100), job("small", 100, 7), job("large", 100, 5_000)]
    of.inbox.extend(asked)
    room = POOL - 100 - 1 - 1  # a page, and one
    assert [one.limit for one in of.arrivals()] == [room, 7, room]
    assert [one.refusal for one in asked] == [None] * 3


def test_the_longest_prompt_is_taken_and_the_next_is_scheduled_as_one_token() -> None:
    of, _ = line()
    fits, over = job("fits", LONGEST), job("over", LONGEST + 1)
    of.inbox.extend([fits, over])
    assert list(of.arrivals()) == [fits, over]
    assert (fits.prompt, fits.refusal, fits.blocks) == (LONGEST, None, (1, 2))
    assert (over.prompt, over.limit, over.blocks) == (1, 1, ())
    assert over.refusal is not None
    assert f"({LONGEST + 1} tokens)" in over.refusal
    assert f"({LONGEST} tokens)" in over.refusal
    assert not over.speaks


def test_a_line_without_a_bound_takes_all() -> None:
    of, counters = line()
    assert all(of.join(job(str(number))) for number in range(500))
    assert (len(of), counters.peak_waiting, counters.refused_queue_full) == (500, 500, 0)


def test_a_full_line_turns_away_who_comes_last() -> None:
    of, counters = line(most=2)
    one, two, three = job("1"), job("2"), job("3")
    assert [of.join(each) for each in (one, two, three)] == [True, True, False]
    assert of.queue == [one, two]
    assert (counters.peak_waiting, counters.refused_queue_full) == (2, 1)


def test_who_was_thrown_out_of_the_batch_finds_a_full_line_full() -> None:
    of, counters = line(most=1)
    assert of.join(job("waits"))
    thrown = job("thrown")
    thrown.phase = Phase.RUNNING
    assert not of.join(thrown)
    assert thrown.phase is Phase.RUNNING  # the engine ends it, see `Engine`
    of.queue.clear()
    assert of.join(thrown)
    assert thrown.phase is Phase.WAITING
    assert counters.refused_queue_full == 1


def test_what_lies_in_the_inbox_is_in_nobodys_way() -> None:
    """The bound is on the queue: what was handed in meanwhile is judged as it joins."""
    of, _ = line(most=1)
    of.inbox.extend([job("a"), job("b"), job("c")])
    assert [of.join(one) for one in of.arrivals()] == [True, False, False]
