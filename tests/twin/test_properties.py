"""Whatever arrives, is aborted or waits: the pool's books balance and each request ends once."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.twin.engine import Engine
from gateway.twin.jobs import Died, Finished, Job, Progress
from gateway.twin.profiles import RTX3090_GPU0, TINY_CPU
from gateway.twin.versions import traits_of
from tests.twin.helpers import drain, engine

VERSIONS = ("0.5.6", "0.5.12", "0.5.17", "0.5.23")

jobs = st.builds(
    dict,
    prompt=st.integers(1, 700),
    want=st.integers(1, 900),
    cap=st.one_of(st.none(), st.integers(0, 900)),
    family=st.integers(0, 3),
    gap=st.sampled_from([0.0, 0.001, 0.05, 1.0]),
    abort=st.one_of(st.none(), st.integers(0, 12)),
)
profiles = st.builds(
    TINY_CPU.with_,
    pool=st.integers(200, 2500),
    page=st.sampled_from([1, 4]),
    chunk=st.sampled_from([None, 64, 256]),
    conservativeness=st.sampled_from([0.05, 0.5, 1.0]),
    max_running=st.sampled_from([2, 8, 1024]),
    max_queued=st.sampled_from([None, 3]),
    radix=st.booleans(),
    mixed_chunk=st.booleans(),
    policy=st.sampled_from(["fcfs", "lpm"]),
)


def _blocks(family: int, prompt: int) -> tuple[int, ...]:
    """Prompts of one family share the first half of their blocks."""
    whole = prompt // 4
    return tuple(
        family * 1_000_000 + (index if index < whole // 2 else 1000 * prompt + index)
        for index in range(whole)
    )


def _balanced(machine, live) -> None:
    pool, cache = machine.pool, machine.memory.cache
    assert 0 <= pool.used <= pool.capacity
    assert pool.used == sum(machine.memory.private(job) for job in live) + cache.held
    assert pool.taken_total - pool.freed_total == pool.used
    assert 0 <= cache.evictable <= cache.held
    assert all(machine.memory.private(job) >= 0 for job in live)


@settings(max_examples=80, deadline=None)
@given(profile=profiles, version=st.sampled_from(VERSIONS), script=st.lists(jobs, max_size=14))
def test_the_books_balance_and_each_request_ends_once(profile, version, script):
    machine = engine(profile, version)
    now, events, all_jobs = 0.0, [], []
    for index, item in enumerate(script):
        now += item["gap"]
        events += machine.advance(now)
        prompt = item["prompt"]
        job = Job(
            f"g{index:02}", prompt, item["want"], item["cap"], _blocks(item["family"], prompt)
        )
        all_jobs.append(job)
        machine.submit(job, now)
        if item["abort"] is not None:
            machine.abort(f"g{item['abort']:02}", now)
        _balanced(machine, all_jobs)
    while (wake := machine.next_wakeup()) is not None:
        events += machine.advance(wake)
        _balanced(machine, all_jobs)
    events += machine.advance(now)

    finished = Counter(event.rid for event in events if isinstance(event, Finished))
    assert max(finished.values(), default=1) == 1
    seen: dict[str, int] = {}
    for event in events:
        if isinstance(event, Progress):
            assert event.out == seen.get(event.rid, 0) + 1
            seen[event.rid] = event.out
    for event in events:
        if isinstance(event, Finished):
            assert event.out <= max(event.job.limit, 0)
    if not any(isinstance(event, Died) for event in events) and machine.idle:
        assert len(finished) == len(all_jobs)
        assert machine.used == 0
        machine.memory.cache.flush()
        assert machine.pool.used == 0


def _play(machine, script) -> list[tuple[object, ...]]:
    """Every end and death of a script; a coarse engine is looked at as often as an exact one."""
    now, events = 0.0, []
    for index, item in enumerate(script):
        now += item["gap"]
        prompt = item["prompt"]
        blocks = _blocks(item["family"], prompt)
        machine.submit(Job(f"g{index:02}", prompt, item["want"], item["cap"], blocks), now)
        if item["abort"] is not None:
            machine.abort(f"g{item['abort']:02}", now)
        events += machine.advance(now + 0.013)
        now += 0.013
    events += drain(machine)
    return [
        (event.rid, event.at, event.ending, event.out)
        if isinstance(event, Finished)
        else (event.at, event.reason)
        for event in events
        if not isinstance(event, Progress)
    ]


@settings(max_examples=60, deadline=None)
@given(profile=profiles, version=st.sampled_from(VERSIONS), script=st.lists(jobs, max_size=14))
def test_a_coarse_engine_decides_and_times_everything_alike(profile, version, script):
    exact = engine(profile, version)
    coarse = Engine(profile, traits_of(version), coarse=True)
    assert _play(exact, script) == _play(coarse, script)
    assert exact.counters == coarse.counters
    assert exact.ratio.now == coarse.ratio.now
    assert exact.used == coarse.used


def tenth(whole):
    """The box with a tenth of its tokens and of what they need; a step takes as long as before."""
    return whole.with_(
        name=f"{whole.name}, a tenth",
        pool=whole.pool // 10,
        context=whole.context // 10,
        chunk=whole.chunk // 10,
        new_tokens_limit=whole.new_tokens_limit // 10,
        activations=replace(whole.activations, headroom=whole.activations.headroom / 10),
    )


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 2_000), st.integers(1, 2_000), st.integers(1, 4_000)),
        min_size=1,
        max_size=12,
    )
)
def test_admissions_that_fit_neither_retract_nor_kill(asked):
    """The gate's promise seen from the engine: sum of prompt + cap + page below the pool."""
    machine = engine(tenth(RTX3090_GPU0))
    left = machine.pool.capacity
    for index, (prompt, cap, want) in enumerate(asked):
        if prompt + cap + 1 >= left:
            continue
        left -= prompt + cap + 1
        machine.submit(Job(f"g{index:02}", prompt, want, cap), 0.0)
    events = drain(machine)
    assert machine.dead is None
    assert machine.counters.retractions == 0
    assert machine.counters.aborted == 0
    assert machine.counters.finished == len([e for e in events if isinstance(e, Finished)])
