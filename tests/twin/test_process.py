"""The life of a server process: death, silence, refusal, return, freeze, drain."""

from gateway.twin.jobs import Finished, Job
from gateway.twin.process import EXIT_S, SILENCE_S, Life, Process
from gateway.twin.profiles import TINY_CPU
from gateway.twin.versions import traits_of


def process(version="0.5.17", **more):
    return Process(TINY_CPU, traits_of(version), **more)


def test_death_silence_refusal_and_return_with_another_pool():
    server = process(restart_s=30.0, pools=(1500, 1700))
    server.submit(Job("a", 10, 100, 100), 0.0)
    server.kill(1.0)
    server.advance(1.0)
    assert (server.life, server.deaths[0].in_flight) == (Life.SILENT, 1)
    server.advance(1.0 + SILENCE_S - 0.01)
    assert server.life is Life.SILENT
    server.advance(1.0 + SILENCE_S)
    assert server.life is Life.GONE
    server.advance(30.9)
    assert server.life is Life.GONE
    server.advance(31.0)
    assert server.life is Life.READY
    assert server.engine.pool.capacity == 1500
    server.kill(40.0)
    server.advance(100.0)
    assert server.engine.pool.capacity == 1700
    assert server.starts == 2


def test_next_wakeup_leads_through_every_turn():
    server = process(restart_s=30.0)
    server.kill(0.0)
    server.advance(0.0)
    lives = []
    while (wake := server.next_wakeup()) is not None:
        server.advance(wake)
        lives.append(server.life)
    assert lives == [Life.GONE, Life.READY]


def test_a_frozen_scheduler_says_nothing_and_goes_on_where_it_stood():
    server = process()
    server.submit(Job("a", 10, 100, 100), 0.0)
    server.advance(0.1)
    server.freeze(0.1)
    server.submit(Job("b", 10, 5, 5), 0.2)
    assert server.advance(50.0) == []
    server.thaw(50.0)
    first = server.engine.next_wakeup()
    assert first is not None
    assert 50.0 < first < 50.02
    events = server.advance(60.0)
    assert {event.rid for event in events if isinstance(event, Finished)} == {"a", "b"}


def test_terminate_drains_then_leaves_for_good():
    server = process()
    server.submit(Job("a", 10, 100, 100), 0.0)
    server.terminate(0.1)
    server.advance(0.2)
    assert server.life is Life.READY
    server.submit(Job("late", 10, 5, 5), 0.2)  # still taken
    events = []
    while (wake := server.next_wakeup()) is not None:
        events += server.advance(wake)
    ended = {event.rid: event.at for event in events if isinstance(event, Finished)}
    assert set(ended) == {"a", "late"}
    assert server.life is Life.GONE
    assert server.starts == 0
    assert wake is None
    assert max(ended.values()) + EXIT_S < 10


def test_0_5_12_never_finishes_draining_after_a_length_refusal():
    server = process("0.5.12")
    server.leaked += 1
    server.terminate(0.0)
    server.advance(1000.0)
    assert server.life is Life.READY
