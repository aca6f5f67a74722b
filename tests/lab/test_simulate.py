"""One trace, one gate, one twin: every request gets one fate, and the gate's words are kept."""

import random

import pytest

from gateway.lab import orders, policies
from gateway.lab.coregate import CoreGate, limits_of
from gateway.lab.fairness import sharing
from gateway.lab.flights import Fate
from gateway.lab.gates import QueueGate
from gateway.lab.measures import Objectives, measure, predictions
from gateway.lab.simulate import Simulation, simulate
from gateway.lab.traces import Arrival, Trace
from gateway.twin.engine import Engine
from gateway.twin.profiles import RTX3090_GPU0, TINY_CPU
from gateway.twin.versions import traits_of

BUSY = TINY_CPU.with_(name="busy")


def trace(count=60, gap=0.4, seed=1, clients=2):
    rng = random.Random(seed)
    return Trace(
        "made",
        tuple(
            Arrival(
                gap * index,
                rng.randint(20, 300),
                rng.randint(5, 200),
                f"c{index % clients}",
                cap=250,
            )
            for index in range(count)
        ),
    )


def queue_gate(policy, order=None, wait=30.0):
    return QueueGate(policy, order or orders.ByArrival(), max_wait_s=wait)


GATES = {
    "none": lambda: queue_gate(policies.Nothing("none")),
    "fixed": lambda: queue_gate(policies.FixedConcurrency("fixed", most=3)),
    "worst": lambda: queue_gate(policies.WorstCase("worst")),
    "quantile": lambda: queue_gate(policies.PerRequestQuantile("quantile")),
    "mirror": lambda: queue_gate(policies.Mirror("mirror")),
    "past-future": lambda: queue_gate(policies.PastFuture("past-future")),
    "vtc": lambda: queue_gate(policies.Mirror("vtc"), orders.LeastServed()),
    "oracle": lambda: queue_gate(policies.Oracle("oracle")),
    "mcsf": lambda: queue_gate(policies.Oracle("mcsf"), orders.ShortestFirst()),
    "kvgate": lambda: CoreGate(max_wait_s=30.0),
    "declared": lambda: CoreGate(max_wait_s=30.0, without="forecast"),
}


def test_a_gate_hears_each_step_of_the_engine_as_it_would_hear_its_streams():
    """Who comes in the middle of a step is told the rest of it. Between a first token and an end a coarse
    engine tells of nothing by itself."""
    gate, heard = CoreGate(max_wait_s=30.0), []
    arrive = gate.arrive

    def listening(flight, now):
        decisions = arrive(flight, now)
        heard.append((now, gate._admission.books.pools[gate._pools[0]].heard))
        return decisions

    gate.arrive = listening
    run = simulate(
        Trace("two", (Arrival(0.0, 100, 400), Arrival(1.0, 20, 5))), gate, TINY_CPU, seconds=60.0
    )
    first, (now, last) = run.flights[0], heard[1]
    assert first.first < 0.5
    assert first.ended > 1.5
    assert now - 2 * first.tpot <= last <= now


@pytest.mark.parametrize("name", GATES)
def test_every_request_is_served_when_there_is_time(name):
    simulation = Simulation(trace(), GATES[name](), (BUSY,), "0.5.17")
    run = simulation.run(400.0)
    assert [flight.fate for flight in run.flights] == [Fate.SERVED] * 60
    assert all(flight.first is not None and flight.first <= flight.ended for flight in run.flights)
    assert simulation.processes[0].engine.used == 0
    assert 0 < run.used_share < 1


@pytest.mark.parametrize("name", ["worst", "kvgate", "oracle"])
def test_what_promises_no_wait_inside_the_engine_keeps_it(name):
    """Only the step in progress stands between the gate and the prefill."""
    run = simulate(trace(200, 0.05), GATES[name](), BUSY, seconds=400.0)
    waits = [flight.job.admitted - flight.granted for flight in run.flights if flight.job]
    assert len(waits) > 100
    assert max(waits) < 0.25


@pytest.mark.parametrize("name", ["worst", "declared"])
def test_worst_case_gates_never_retract(name):
    long = Trace("long", tuple(Arrival(0.01 * i, 50, 900, f"c{i}", cap=900) for i in range(12)))
    assert simulate(long, GATES["none"](), BUSY, seconds=400.0).retractions == 3
    assert simulate(long, GATES[name](), BUSY, seconds=400.0).retractions == 0


def test_the_same_arrivals_give_the_same_run():
    first = simulate(trace(), GATES["past-future"](), BUSY, seconds=300.0)
    second = simulate(trace(), GATES["past-future"](), BUSY, seconds=300.0)
    assert [flight.ended for flight in first.flights] == [flight.ended for flight in second.flights]


def agents(count=3):
    return Trace("agents", tuple(Arrival(5.0 * i, 19_000, 32_000, f"a{i}") for i in range(count)))


def test_incident_a_without_and_with_the_gate():
    bare = simulate(agents(), GATES["none"](), RTX3090_GPU0, seconds=3600.0)
    assert bare.crashes == 1
    assert {flight.fate for flight in bare.flights} == {Fate.LOST}
    gated = simulate(agents(), CoreGate(max_wait_s=1e6), RTX3090_GPU0, seconds=7200.0)
    assert gated.crashes == 0
    assert {flight.fate for flight in gated.flights} == {Fate.SERVED}


def test_a_gate_starts_again_when_the_engine_is_back():
    late = (Arrival(500.0, 100, 10, "late"), Arrival(430.0, 100, 10, "between"))
    for name in ("none", "kvgate"):
        story = agents().merged(Trace("late", late))
        patient = queue_gate(policies.Nothing("none"), wait=200.0)
        gate = patient if name == "none" else CoreGate(max_wait_s=1e6)
        run = simulate(story, gate, RTX3090_GPU0, seconds=7200.0)
        fates = {flight.arrival.client: flight.fate for flight in run.flights}
        assert fates["late"] is fates["between"] is Fate.SERVED, name


def test_who_waits_too_long_is_refused():
    hog = Trace("hog", (Arrival(0.0, 100, 1900), Arrival(0.1, 100, 10)))
    for gate in (queue_gate(policies.WorstCase("worst"), wait=2.0), CoreGate(max_wait_s=2.0)):
        run = simulate(hog.capped(1900), gate, BUSY, seconds=60.0)
        assert [flight.fate for flight in run.flights] == [Fate.SERVED, Fate.REFUSED]
        assert run.flights[1].ended == pytest.approx(2.1, abs=0.3)


def test_the_core_gate_gets_the_limits_that_live_traffic_gets():
    limits = limits_of(Engine(TINY_CPU, traits_of("0.5.17")))
    assert limits.kv_tokens < 2048
    assert (limits.context, limits.max_input) == (8192, 2042)


def test_least_served_goes_first_and_absence_saves_nothing():
    order = orders.LeastServed()

    def flight(client, at, out=0):
        from gateway.lab.flights import Flight
        from gateway.twin.jobs import Job

        made = Flight(f"{client}{at}", Arrival(at, 100, 50, client))
        made.job = Job(made.rid, 100, 50)
        made.job.own_out = out
        return made

    busy = flight("busy", 0.0, out=50)
    order.first([busy, flight("idle", 0.1)])
    order.started(busy)
    assert order.first([flight("busy", 1.0), flight("idle", 1.1)]).arrival.client == "idle"
    order.ended(busy)
    # A newcomer is lifted to the least of those waiting: it wins one tie, not a hundred.
    newcomer = flight("new", 2.1, out=10)
    order.first([flight("busy", 2.0), newcomer])
    order.started(newcomer)
    assert order.first([flight("busy", 2.0), flight("new", 2.2)]).arrival.client == "busy"


def test_measures_of_a_run_one_can_count():
    run = simulate(trace(40, 1.0), GATES["kvgate"](), BUSY, seconds=60.0)
    values = measure(run, Objectives(ttft=2.0, tpot=0.1))
    assert values["goodput_share"] == 1.0
    assert values["refused_share"] == values["crashes"] == values["retractions_per_1000"] == 0
    assert "jain" not in values, "nobody had to wait all the time"
    strict = measure(run, Objectives(ttft=0.0, tpot=0.1))
    assert strict["goodput_share"] == 0.0


def backlogged(count=4, seed=1):
    """Clients alike that want more than there is."""
    rng = random.Random(seed)
    made = (
        Arrival(0.1 * index, rng.randint(50, 150), 100, f"c{client}", cap=100)
        for index in range(300)
        for client in range(count)
    )
    return Trace("backlogged", tuple(made))


def test_jain_is_of_those_that_wait_all_the_time():
    even = simulate(backlogged(), GATES["vtc"](), BUSY, seconds=60.0)
    shared = sharing(even.flights, 10.0, 50.0, clock=60.0)
    assert shared.jain > 0.99
    assert 0 < shared.gap < 5
    for flight in even.flights:
        if flight.arrival.client in {"c1", "c2"} and flight.first is not None:
            flight.first = flight.ended = 1e9  # as if these two had waited for ever
    shared = sharing(even.flights, 10.0, 50.0, clock=60.0)
    assert shared.jain == pytest.approx(0.5, abs=0.02)
    idle = simulate(trace(40, 3.0), GATES["kvgate"](), BUSY, seconds=120.0)
    assert sharing(idle.flights, 10.0, 100.0, clock=120.0) is None


class Oracle95:
    """A gate that says of every request that it comes after one second, and before two."""

    def __init__(self, gate):
        self.gate = gate

    def predicted(self, rid):
        return (1.0, 2.0)

    def __getattr__(self, name):
        return getattr(self.gate, name)


def test_predictions_are_judged_by_what_came():
    run = simulate(trace(40, 1.0), Oracle95(GATES["kvgate"]()), BUSY, seconds=60.0)
    first, second, third = run.flights[20:23]
    for flight, came in ((first, 0.5), (second, 4.0), (third, 1.0)):
        flight.first = flight.arrival.at + came
    told = predictions([first, second, third])
    assert told["ttft_mape"] == pytest.approx((0.5 / 0.5 + 3.0 / 4.0 + 0.0) / 3)
    assert told["ttft_q95_coverage"] == pytest.approx(2 / 3)
    assert predictions(simulate(trace(9), GATES["vtc"](), BUSY, seconds=30.0).flights) == {}
