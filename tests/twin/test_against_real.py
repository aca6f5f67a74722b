"""The engine beside runs of the genuine CPU server (SGLang 0.5.17): the same admissions, the same
retractions, the same order. Expected values are what the real server's log and clients showed."""

from gateway.twin.jobs import Ending, Job
from gateway.twin.profiles import RTX3090_95, RTX3090_GPU0, RTX3090_GPU1, TINY_CPU
from tests.twin.helpers import ENDLESS, chats, cohorts, death, drain, ends, engine, run


def test_over_subscription_retracts_the_same_three_requests():
    machine = engine(TINY_CPU)  # pool 2048; 12 x (50 + 900)
    jobs = chats(12, 50, 900)
    events = run(machine, jobs)
    assert [job.rid for job in jobs if job.retractions] == ["g4", "g7", "g10"]
    assert machine.counters.retractions == 3
    assert cohorts(events)[:4] == [["g0", "g1"], ["g2", "g3"], ["g5", "g6"], ["g8", "g9"]]
    assert list(ends(events))[8:] == ["g4", "g7", "g10", "g11"]


def test_low_conservativeness_starts_three_and_retracts_one():
    machine = engine(TINY_CPU.with_(pool=1024, conservativeness=0.05))  # 12 x (50 + 400)
    jobs = chats(12, 50, 400)
    events = run(machine, jobs)
    assert [job.rid for job in jobs if job.retractions] == ["g2"]
    assert cohorts(events) == [
        ["g0", "g1"],
        ["g3", "g4"],
        ["g5", "g6"],
        ["g7", "g8"],
        ["g10", "g9"],
        ["g2"],
        ["g11"],
    ]


def test_the_ratio_after_that_retraction_is_the_logged_one():
    machine = engine(TINY_CPU.with_(pool=1024, conservativeness=0.05))
    for job in chats(12, 50, 400):
        machine.submit(job, 0.0)
    while not machine.counters.retractions:
        machine.advance(machine.next_wakeup())
    assert round(machine.ratio.now, 4) == 0.7790


def test_eight_medium_requests_run_four_at_a_time():
    machine = engine(TINY_CPU)  # 8 x (100 + 400)
    events = run(machine, chats(8, 100, 400))
    assert cohorts(events) == [["g0", "g1", "g2", "g3"], ["g4", "g5", "g6", "g7"]]
    assert machine.counters.retractions == 0


def test_uncapped_chats_run_one_by_one():
    """Incident A, scaled: each takes all that is left, so twelve of them queue for 98 seconds."""
    machine = engine(TINY_CPU)
    events = run(machine, chats(12, 565, None))
    assert [end.out for end in ends(events).values()] == [1481] * 12
    assert machine.counters.peak_running == 1
    last = next(event.at for event in events if event.rid == "g11")
    assert 80 < last < 105  # seconds to the last first token; measured: up to 98


def test_twelve_capped_chats_queue_ten_and_retract_a_few():
    machine = engine(TINY_CPU)
    machine.submit(Job("g0", 559, ENDLESS, 300), 0.0)
    for job in chats(12, 559, 300)[1:]:
        machine.submit(job, 0.01)
    machine.advance(0.3)
    assert machine.snapshot.waiting == 10
    events = drain(machine)
    assert 2 <= machine.counters.retractions <= 3  # measured: 2 or 3
    assert {end.ending for end in ends(events).values()} == {Ending.LENGTH}


def test_incident_a_three_promises_kill_the_box():
    machine = engine(RTX3090_GPU0)  # 3 x (19,000 + 32,000) = 153,000 on a pool of 67,375
    events = run(machine, chats(3, 19_000, None))
    died = death(events)
    assert died is not None
    assert died.in_flight == 3
    assert "out of memory" in died.reason
    assert not ends(events)


def test_incident_a_the_same_three_one_at_a_time_live():
    machine = engine(RTX3090_GPU0)
    for index in range(3):
        now = 10_000.0 * index
        events = run(machine, [Job(f"g{index}", 19_000, ENDLESS)], now)
        assert ends(events)[f"g{index}"].out == 32_000
    assert machine.dead is None


def test_incident_a_proof_on_the_second_card():
    """3 x 14,000 tokens with real generations of 15,181: all pass there."""
    machine = engine(RTX3090_GPU1)
    events = run(machine, [Job(f"g{index}", 14_000, 15_181, 32_000) for index in range(3)])
    assert [end.out for end in ends(events).values()] == [15_181] * 3
    assert machine.counters.peak_running == 3


def test_incident_b_a_long_conversation_kills_at_95_and_lives_at_93():
    tight = engine(RTX3090_95)
    died = death(run(tight, [Job("report", 100_000, 10, 10)]))
    assert died is not None
    assert "torch.OutOfMemoryError" in died.reason
    assert tight.pool.free > 10_000  # the pool was not the problem
    events = run(engine(RTX3090_GPU1), [Job("report", 100_000, 10, 10)])
    assert ends(events)["report"].ending is Ending.STOP
