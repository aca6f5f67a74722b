"""One trace through one gate into one twin, or several, in virtual time.

The loop jumps from event to event: an arrival, the end of an engine step, a timer of the gate. The
gate sees what a proxy would see: first tokens and tokens so far (neither of an answer in one piece),
ends, deaths and returns. With `honour_retries`, a refused client comes back once, when its Retry-After
says.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gateway.lab.flights import Decision, Fate, Flight, Sight, Start
from gateway.lab.gates import Predicts
from gateway.twin.jobs import Counters, Died, Ending, Event, Finished, Job
from gateway.twin.process import Life, Process
from gateway.twin.profiles import Profile
from gateway.twin.versions import traits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.lab.gates import Gate
    from gateway.lab.traces import Trace
    from gateway.twin.engine import Engine


@dataclass(slots=True)
class Run:
    """What happened. Times are seconds, `used_share` is the time average of the pools in use."""

    flights: list[Flight]
    seconds: float
    used_share: float
    crashes: int
    counters: list[Counters] = field(default_factory=list)
    retries: list[Flight] = field(default_factory=list)  # of refused flights that came back
    retracted_at: list[float] = field(default_factory=list)  # when: one entry a retraction

    @property
    def retractions(self) -> int:
        """Of all the engines that ran."""
        return sum(each.retractions for each in self.counters)


class Simulation:
    """The state of one run."""

    def __init__(
        self,
        trace: Trace,
        gate: Gate,
        profiles: Sequence[Profile],
        version: str,
        *,
        honour_retries: bool = False,
    ) -> None:
        self.processes = [
            Process(profile.with_(block=_block(trace, profile)), traits_of(version), coarse=True)
            for profile in profiles
        ]
        self._gate = gate
        gate.meet(self.engines)
        self._flights = [
            Flight(f"r{number:07}", arrival) for number, arrival in enumerate(trace.arrivals)
        ]
        self._live: dict[str, Flight] = {}
        self._promised = 0  # prompts and caps in force of the live flights, tokens
        self._honour_retries = honour_retries
        self._coming_back: list[tuple[float, str, Flight]] = []  # a heap
        self._retries: list[Flight] = []
        self._area = 0.0
        self._looked_at = 0.0
        self._retracted_at: list[float] = []
        self._ready = [True] * len(self.processes)

    def engines(self) -> list[Engine]:
        """Those of the day: a server that comes back has another."""
        return [process.engine for process in self.processes]

    def run(self, seconds: float) -> Run:
        """Play `seconds`; what is still on its way then stays PENDING."""
        now, index = 0.0, 0
        while True:
            times = [process.next_wakeup() for process in self.processes]
            times.append(self._gate.next_wakeup())
            if index < len(self._flights):
                times.append(self._flights[index].arrival.at)
            if self._coming_back:
                times.append(self._coming_back[0][0])
            upcoming = [time for time in times if time is not None]
            if not upcoming or min(upcoming) > seconds:
                break
            now = max(now, min(upcoming))
            self._play(now)
            while index < len(self._flights) and self._flights[index].arrival.at <= now:
                flight = self._flights[index]
                index += 1
                self._apply(self._gate.arrive(flight, now), now)
                flight.predicted = self._predicted(flight)
            while self._coming_back and self._coming_back[0][0] <= now:
                flight = heapq.heappop(self._coming_back)[2]
                self._retries.append(flight)
                self._apply(self._gate.arrive(flight, now), now)
            due = self._gate.next_wakeup()
            if due is not None and due <= now:
                self._apply(self._gate.advance(now), now)
        self._play(seconds)
        return Run(
            flights=self._flights[:index],
            seconds=seconds,
            used_share=self._area / seconds,
            crashes=sum(len(process.deaths) for process in self.processes),
            counters=[
                counters
                for process in self.processes
                for counters in (*process.past, process.engine.counters)
            ],
            retries=self._retries,
            retracted_at=self._retracted_at,
        )

    def _predicted(self, flight: Flight) -> tuple[float, float] | None:
        """What a gate that predicts TTFT says of a request it has just let in or queued."""
        if flight.fate is Fate.REFUSED or not isinstance(self._gate, Predicts):
            return None
        return self._gate.predicted(flight.rid)

    def _play(self, now: float) -> None:
        span = now - self._looked_at
        self._looked_at = now
        for server, process in enumerate(self.processes):
            engine = process.engine
            before, thrown = engine.used, engine.counters.retractions
            events = process.advance(now)
            self._retracted_at += [now] * (engine.counters.retractions - thrown)
            # Between two events the pool in use grows by a token a step: the trapezoid is exact enough.
            used = (before + process.engine.used) / 2 / engine.pool.capacity
            self._area += span * used / len(self.processes)
            for event in events:
                self._hear(event, server, now)
            if process.life is Life.READY and not self._ready[server]:
                self._ready[server] = True
                self._apply(self._gate.returned(server, now), now)

    def _hear(self, event: Event, server: int, now: float) -> None:
        if isinstance(event, Died):
            self._ready[server] = False
            for flight in [each for each in self._live.values() if each.server == server]:
                self._off(flight)
                flight.fate, flight.ended = Fate.LOST, event.at
            self._apply(self._gate.died(server, now), now)
            return
        flight = self._live[event.rid]
        if flight.first is None and event.out > 0:
            # A coarse engine reports the first token on its own: it comes with the prefill step.
            flight.first = event.at
            if flight.arrival.streamed:
                self._apply(self._gate.first_token(flight, now), now)
        if isinstance(event, Finished):
            self._off(flight)
            flight.ended = event.at
            flight.fate = Fate.LOST if event.ending is Ending.ABORT else Fate.SERVED
            self._apply(self._gate.ended(flight, now), now)

    def _off(self, flight: Flight) -> None:
        del self._live[flight.rid]
        self._promised -= flight.arrival.prompt + (flight.limit or 0)

    def _apply(self, decisions: list[Decision], now: float) -> None:
        for decision in decisions:
            flight = decision.flight
            flight.sight = self._look(flight.server, now)
            if not isinstance(decision, Start):
                flight.fate, flight.ended = Fate.REFUSED, now
                flight.code, flight.retry_after_s = decision.code, decision.retry_after_s
                self._come_back(flight, now)
                continue
            flight.granted = now
            arrival, process = flight.arrival, self.processes[flight.server]
            if process.life is not Life.READY:
                flight.fate, flight.ended = Fate.LOST, now
                self._apply(self._gate.ended(flight, now), now)
                continue
            flight.job = Job(
                rid=flight.rid,
                prompt=arrival.prompt,
                want=arrival.output,
                cap=decision.cap,
                blocks=arrival.blocks,
            )
            self._live[flight.rid] = flight
            flight.limit = process.engine.limits.cap(arrival.prompt, decision.cap)
            self._promised += arrival.prompt + flight.limit
            process.submit(flight.job, now)

    def _come_back(self, flight: Flight, now: float) -> None:
        if not self._honour_retries or flight.again or flight.retry_after_s is None:
            return
        at = now + flight.retry_after_s
        again = Flight(f"{flight.rid}-again", replace(flight.arrival, at=at), again=True)
        heapq.heappush(self._coming_back, (at, again.rid, again))

    def _look(self, server: int, now: float) -> Sight:
        engine = self.processes[server].engine
        asked = engine.counters.prompt_tokens
        return Sight(
            at=now,
            pool_used=engine.used / engine.pool.capacity,
            promised=self._promised / engine.pool.capacity,
            new_token_ratio=engine.ratio.now,
            running=engine.running,
            waiting_inside=engine.waiting,
            in_flight=len(self._live),
            cache_hits=engine.counters.cached_tokens / asked if asked else None,
        )


def _block(trace: Trace, profile: Profile) -> int:
    return trace.block if trace.block % profile.page == 0 else profile.block


def simulate(
    trace: Trace,
    gate: Gate,
    profiles: Profile | Sequence[Profile],
    *,
    version: str = "0.5.17",
    seconds: float,
    honour_retries: bool = False,
) -> Run:
    """Play `seconds` of `trace` through `gate` into a twin of each of `profiles`."""
    servers = (profiles,) if isinstance(profiles, Profile) else profiles
    simulation = Simulation(trace, gate, servers, version, honour_retries=honour_retries)
    return simulation.run(seconds)
