"""What the scheduler does, rule by rule."""

import itertools

import pytest

from gateway.twin.budget import Budget, NewTokenRatio
from gateway.twin.engine import QUEUE_FULL
from gateway.twin.jobs import Ending, Job, Progress
from gateway.twin.profiles import A100_8B, TINY_CPU
from gateway.twin.retraction import LAST_REQUEST, order
from gateway.twin.versions import traits_of
from tests.twin.helpers import ENDLESS, chats, death, drain, ends, engine, run


@pytest.mark.parametrize(
    ("version", "cap", "expected"),
    [
        ("0.5.6", None, 2048 - 1 - 100 - 1),  # length alone
        ("0.5.17", None, 2048 - 100 - 1 - 1),  # pool, prompt, page and one
        ("0.5.17", 50, 50),
        ("0.5.17", 0, 0),
    ],
)
def test_the_cap_is_clipped_silently(version, cap, expected):
    assert engine(TINY_CPU, version).limits.cap(100, cap) == expected


def test_pages_make_the_clip_coarser():
    machine = engine(TINY_CPU.with_(page=16, block=16))
    assert machine.limits.cap(100, None) == 2048 - 112 - 16 - 1


def test_new_tokens_limit_exists_from_0_5_17():
    profile = TINY_CPU.with_(new_tokens_limit=64)
    assert engine(profile, "0.5.17").limits.cap(10, None) == 64
    assert engine(profile, "0.5.12").limits.cap(10, None) > 64


def test_an_unknown_version_says_what_it_wants():
    with pytest.raises(ValueError, match="three dotted numbers"):
        traits_of("newest")


def test_the_ratio_decays_to_its_floor_and_idle_resets_it():
    ratio = NewTokenRatio()
    assert ratio.now == pytest.approx(0.7)
    for _ in range(300):
        ratio.decay()
    assert ratio.now == pytest.approx((0.7 + 0.098) / 2)
    for _ in range(900):
        ratio.decay()
    assert ratio.now == pytest.approx(0.098)
    ratio.reset()
    assert ratio.now == pytest.approx(0.7)


def test_a_chunk_goes_on_at_full_size_when_nothing_is_left():
    budget = Budget(traits_of("0.5.17"), page=1, room=100.0, chunk=64, max_prefill=16384)
    assert budget.chunk_size(1000) == 64
    budget.room = 30.0
    assert budget.chunk_size(1000) == 30
    budget.room = -5.0
    assert budget.chunk_size(1000) == 64


def test_the_page_of_overhead_came_with_0_5_12():
    """A candidate that leaves exactly one token: fits before, not after."""
    for version, runs in (("0.5.6", 2), ("0.5.17", 1)):
        machine = engine(TINY_CPU.with_(pool=1000), version)
        # The first holds 100 + 299. The second asks 300 + 300 of 601, and must stay below.
        for job in (Job("a", 100, ENDLESS, 300), Job("b", 300, ENDLESS, 300)):
            machine.submit(job, 0.0)
        # Both arrive before the first pass ends; the second pass sees the first one running.
        machine.ratio.now = 1.0
        machine.advance(machine.next_wakeup())
        assert machine.running == runs, version


def test_a_blocked_head_blocks_small_ones_behind_it():
    machine = engine(TINY_CPU)
    machine.submit(Job("long", 100, 1500, 1500), 0.0)
    machine.submit(Job("head", 1000, 900, 900), 0.0)
    machine.submit(Job("small", 5, 5, 5), 0.0)
    finished = list(ends(drain(machine)))
    assert finished.index("small") > finished.index("long")


def test_queue_full_is_an_abort_with_503():
    machine = engine(TINY_CPU.with_(max_running=1, max_queued=2))
    machine.submit(Job("first", 10, 50, 50), 0.0)
    events = run(machine, chats(4, 10, 20))
    refused = [end for end in ends(events).values() if end.status == 503]
    assert [end.rid for end in refused] == ["g2", "g3"]
    assert {end.message for end in refused} == {QUEUE_FULL}
    assert machine.counters.refused_queue_full == 2


def test_the_fewest_outputs_go_first_then_the_longest_prompt_then_the_youngest():
    def job(rid, out, prompt):
        made = Job(rid, prompt, ENDLESS)
        made.own_out = out
        return made

    batch = [job("old", 9, 10), job("short", 2, 10), job("long", 2, 90), job("twin", 2, 90)]
    assert [each.rid for each in order(batch)] == ["old", "short", "long", "twin"]


def test_a_retracted_request_meets_the_queue_limit_mid_stream():
    machine = engine(TINY_CPU.with_(pool=400, conservativeness=0.01, max_queued=1))
    jobs = [Job(f"g{index}", 10, ENDLESS, 300) for index in range(2)]
    machine.submit(jobs[0], 0.0)
    machine.submit(jobs[1], 0.0)
    machine.advance(0.5)
    machine.submit(Job("late", 300, 5, 5), 0.5)  # waits, and fills the queue
    lost = [end for end in ends(drain(machine)).values() if end.status == 503]
    assert [end.rid for end in lost] == ["g1"]
    assert lost[0].out > 0


def test_abort_ends_every_rid_with_the_prefix():
    machine = engine(TINY_CPU)
    for rid in ("a1", "a2", "b1"):
        machine.submit(Job(rid, 10, 500, 500), 0.0)
    machine.advance(0.1)
    machine.abort("a", 0.1)
    events = drain(machine)
    assert {rid: end.ending for rid, end in ends(events).items()} == {
        "a1": Ending.ABORT,
        "a2": Ending.ABORT,
        "b1": Ending.STOP,
    }
    assert machine.used == 0


def test_abort_reaches_the_queue_and_the_inbox():
    machine = engine(TINY_CPU.with_(max_running=1))
    machine.submit(Job("run", 10, 100, 100), 0.0)
    machine.submit(Job("wait", 10, 100, 100), 0.0)
    machine.advance(0.05)
    machine.submit(Job("wait2", 10, 100, 100), 0.051)
    machine.abort("wait", 0.051)
    events = drain(machine)
    assert ends(events)["wait"].out == ends(events)["wait2"].out == 0
    assert ends(events)["run"].ending is Ending.STOP


@pytest.mark.parametrize(("version", "steps"), [("0.5.12", 5), ("0.5.17", 2)])
def test_an_abort_in_mid_prompt_stops_its_chunks_only_from_0_5_17(version, steps):
    machine = engine(TINY_CPU.with_(chunk=100), version)
    machine.submit(Job("long", 500, 10, 10), 0.0)
    machine.advance(machine.next_wakeup())
    machine.abort("long", 0.0)
    events = drain(machine)
    assert ends(events)["long"].ending is Ending.ABORT
    assert machine.counters.prefill_steps == steps
    assert machine.used == 0


@pytest.mark.parametrize("version", ["0.5.6", "0.5.12", "0.5.17", "0.5.23"])
def test_the_last_request_alone_and_too_large(version):
    machine = engine(TINY_CPU.with_(pool=300), version)
    job = Job("alone", 100, ENDLESS, 250)
    machine.submit(job, 0.0)
    job.limit = 250  # as if the clip had not been
    events = drain(machine)
    if version == "0.5.6":
        died = death(events)
        assert died is not None
        assert died.reason.startswith("AssertionError")
    else:
        end = ends(events)["alone"]
        assert (end.status, end.message) == (500, LAST_REQUEST)


def test_a_prompt_over_the_pool_is_refused_late():
    machine = engine(TINY_CPU.with_(max_running=1))
    machine.submit(Job("first", 10, 100, 100), 0.0)
    machine.submit(Job("big", 3000, 10, 10), 0.0)
    events = drain(machine)
    end = ends(events)["big"]
    assert end.status == 400
    assert (
        "Input length (3000 tokens) exceeds the maximum allowed length (2042 tokens)" in end.message
    )
    assert end.at > ends(events)["first"].at


def test_a_cap_of_zero_ends_after_the_prompt():
    end = ends(run(engine(), [Job("zero", 10, 100, 0)]))["zero"]
    assert (end.out, end.ending) == (0, Ending.LENGTH)


def test_stop_and_length_tell_who_ended_it():
    events = run(engine(), [Job("short", 10, 7, 20), Job("cut", 10, 70, 20)])
    assert {rid: (end.ending, end.out) for rid, end in ends(events).items()} == {
        "short": (Ending.STOP, 7),
        "cut": (Ending.LENGTH, 20),
    }


def test_a_long_prompt_goes_in_chunks_and_decode_waits():
    machine = engine(TINY_CPU.with_(chunk=256))
    machine.submit(Job("talk", 10, 200, 200), 0.0)
    machine.advance(0.2)
    before = [event for event in machine.advance(0.21) if isinstance(event, Progress)]
    machine.submit(Job("long", 1024, 5, 5), 0.21)
    events = drain(machine)
    times = [event.at for event in (*before, *events) if event.rid == "talk"]
    gap = max(later - earlier for earlier, later in itertools.pairwise(times))
    assert gap > 4 * 256 / 4600  # four chunks of 256 tokens stand between two of its tokens


def test_mixed_chunks_over_commit_and_kill():
    """The hole: the rest of a half-done prompt is nobody's claim while others keep growing."""
    profile = TINY_CPU.with_(chunk=40, mixed_chunk=True, conservativeness=0.05)
    machine = engine(profile)
    for job in chats(20, 10, 300):
        machine.submit(job, 0.0)
    machine.advance(0.5)
    machine.submit(Job("long", 1000, 1, 1), 0.5)
    died = death(drain(machine))
    assert died is not None
    assert "Prefill out of memory" in died.reason or "Decode out of memory" in died.reason


def test_the_same_load_without_mixed_chunks_lives():
    machine = engine(TINY_CPU.with_(chunk=40, conservativeness=0.05))
    for job in chats(20, 10, 300):
        machine.submit(job, 0.0)
    machine.advance(0.5)
    machine.submit(Job("long", 1000, 1, 1), 0.5)
    assert len(ends(drain(machine))) == 21
    assert machine.dead is None


def test_equal_prefixes_share_their_blocks():
    machine = engine(TINY_CPU)  # blocks of 4 tokens
    prefix = tuple(range(100))
    machine.submit(Job("a", 404, 50, 50, blocks=prefix), 0.0)
    machine.advance(0.15)
    alone = machine.used
    second = Job("b", 404, 50, 50, blocks=prefix)
    machine.submit(second, 0.15)
    machine.advance(0.19)
    assert second.cached == 400
    assert machine.used < alone + 60
    drain(machine)
    assert machine.used == 0
    assert machine.memory.cache.evictable == 404 - 404 % 4 - 4


def test_cached_prefixes_give_way_before_anybody_is_retracted():
    machine = engine(TINY_CPU)
    for index in range(6):
        blocks = tuple(range(1000 * index, 1000 * index + 100))
        run(machine, [Job(f"old{index}", 400, 2, 2, blocks=blocks)], 10.0 * index)
    assert machine.memory.cache.held > 1200
    events = run(machine, [Job("new", 100, ENDLESS, None)], 100.0)
    assert ends(events)["new"].out == 2048 - 100 - 2
    assert machine.counters.retractions == 0
    assert machine.memory.cache.evicted_total > 0


def test_the_least_recently_used_prefix_goes_first():
    machine = engine(TINY_CPU)
    old, new = tuple(range(100)), tuple(range(1000, 1100))
    run(machine, [Job("o", 401, 2, 2, blocks=old)], 0.0)
    run(machine, [Job("n", 401, 2, 2, blocks=new)], 10.0)
    run(machine, [Job("o2", 401, 2, 2, blocks=old)], 20.0)  # used again: now the younger
    run(machine, [Job("x", 100, 1250, 1250)], 30.0)
    again_old, again_new = Job("o3", 401, 2, 2, blocks=old), Job("n3", 401, 2, 2, blocks=new)
    run(machine, [again_old], 100.0)
    run(machine, [again_new], 110.0)
    assert again_old.cached == 400
    assert again_new.cached < 400


def test_lpm_prefers_the_longest_cached_prefix():
    profile = TINY_CPU.with_(policy="lpm", max_running=1)
    machine = engine(profile)
    known = tuple(range(50))
    run(machine, [Job("warm", 201, 2, 2, blocks=known)], 0.0)
    machine.submit(Job("busy", 10, 50, 50), 10.0)
    machine.submit(Job("stranger", 200, 2, 2), 10.0)
    machine.submit(Job("friend", 201, 2, 2, blocks=known), 10.0)
    assert list(ends(drain(machine))) == ["busy", "friend", "stranger"]


def test_a_disabled_cache_shares_nothing():
    machine = engine(TINY_CPU.with_(radix=False))
    blocks = tuple(range(50))
    run(machine, [Job("a", 201, 2, 2, blocks=blocks)], 0.0)
    again = Job("b", 201, 2, 2, blocks=blocks)
    run(machine, [again], 10.0)
    assert again.cached == 0
    assert machine.memory.cache.held == 0


def test_a_batch_decodes_faster_than_one_by_one():
    alone, together = engine(A100_8B), engine(A100_8B)
    one = run(alone, [Job("a", 500, 400, 400)])[-1].at
    eight = run(together, [Job(f"g{index}", 500, 400, 400) for index in range(8)])[-1].at
    assert one < eight < 2 * one


def test_ignore_eos_is_expected_in_full_by_0_5_23():
    room = {}
    for version in ("0.5.17", "0.5.23"):
        job = Job("a", 10, ENDLESS, 1000, ignore_eos=True)
        job.limit = 1000
        budget = Budget(traits_of(version), page=1, room=2000.0, chunk=None, max_prefill=1)
        budget.expect([job], 0.1)
        room[version] = budget.room
    assert room == {"0.5.17": 1900.0, "0.5.23": 1000.0}


def test_a_dead_engine_takes_nothing():
    machine = engine()
    machine.submit(Job("a", 10, 100, 100), 0.0)
    machine.kill(0.1, "test")
    died = death(machine.advance(1.0))
    assert died is not None
    assert died.in_flight == 1
    machine.submit(Job("b", 10, 100, 100), 2.0)
    assert machine.next_wakeup() is None
    assert machine.advance(100.0) == []


def test_the_same_input_gives_the_same_events():
    def story():
        jobs = [Job(f"g{index}", 40 + 7 * index, 300 - index, 280) for index in range(15)]
        return [(event.rid, event.at, event.out) for event in run(engine(TINY_CPU), jobs)]

    assert story() == story()
