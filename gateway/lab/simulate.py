"""One trace through one gate into one twin, in virtual time.

The loop jumps from event to event: an arrival, the end of an engine step, a timer of the gate. The
gate sees what a proxy would see: first tokens, tokens so far, ends, deaths and returns. With
`honour_retries`, a refused client comes back once, when its Retry-After says.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gateway.lab.flights import Decision, Fate, Flight, Sight, Start
from gateway.twin.jobs import Counters, Died, Ending, Event, Finished, Job
from gateway.twin.process import Life, Process
from gateway.twin.versions import traits_of

if TYPE_CHECKING:
    from gateway.lab.gates import Gate
    from gateway.lab.traces import Trace
    from gateway.twin.profiles import Profile


@dataclass(slots=True)
class Run:
    """What happened. Times are seconds, `used_share` is the time average of the pool in use."""

    flights: list[Flight]
    seconds: float
    used_share: float
    crashes: int
    counters: list[Counters] = field(default_factory=list)
    retries: list[Flight] = field(default_factory=list)  # of refused flights that came back

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
        profile: Profile,
        version: str,
        *,
        honour_retries: bool = False,
    ) -> None:
        block = trace.block if trace.block % profile.page == 0 else profile.block
        self.process = Process(profile.with_(block=block), traits_of(version), coarse=True)
        self._gate = gate
        self._flights = [
            Flight(f"r{number:07}", arrival) for number, arrival in enumerate(trace.arrivals)
        ]
        self._live: dict[str, Flight] = {}
        self._promised: dict[str, int] = {}  # prompt and cap in force of each live flight
        self._honour_retries = honour_retries
        self._coming_back: list[tuple[float, str, Flight]] = []  # a heap
        self._retries: list[Flight] = []
        self._area = 0.0
        self._looked_at = 0.0
        self._ready = True

    def run(self, seconds: float) -> Run:
        """Play `seconds`; what is still on its way then stays PENDING."""
        now, index = 0.0, 0
        while True:
            times = [self.process.next_wakeup(), self._gate.next_wakeup()]
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
                self._apply(self._gate.arrive(flight, self.process.engine, now), now)
            while self._coming_back and self._coming_back[0][0] <= now:
                flight = heapq.heappop(self._coming_back)[2]
                self._retries.append(flight)
                self._apply(self._gate.arrive(flight, self.process.engine, now), now)
            self._apply(self._gate.advance(self.process.engine, now), now)
        self._play(seconds)
        return Run(
            flights=self._flights[:index],
            seconds=seconds,
            used_share=self._area / seconds,
            crashes=len(self.process.deaths),
            counters=[*self.process.past, self.process.engine.counters],
            retries=self._retries,
        )

    def _play(self, now: float) -> None:
        engine = self.process.engine
        before = engine.used
        events = self.process.advance(now)
        # Between two events the pool in use grows by a token a step: the trapezoid is exact enough.
        span = now - self._looked_at
        self._area += span * (before + self.process.engine.used) / 2 / engine.pool.capacity
        self._looked_at = now
        for event in events:
            self._hear(event, now)
        if self.process.life is Life.READY and not self._ready:
            self._ready = True
            self._apply(self._gate.returned(self.process.engine, now), now)

    def _hear(self, event: Event, now: float) -> None:
        engine = self.process.engine
        if isinstance(event, Died):
            self._ready = False
            for flight in self._live.values():
                flight.fate, flight.ended = Fate.LOST, event.at
            self._live.clear()
            self._promised.clear()
            self._apply(self._gate.died(engine, now), now)
            return
        flight = self._live[event.rid]
        if flight.first is None and event.out > 0:
            # A coarse engine reports the first token on its own: it comes with the prefill step.
            flight.first = event.at
            self._apply(self._gate.first_token(flight, engine, now), now)
        if isinstance(event, Finished):
            del self._live[event.rid], self._promised[event.rid]
            flight.ended = event.at
            flight.fate = Fate.LOST if event.ending is Ending.ABORT else Fate.SERVED
            self._apply(self._gate.ended(flight, engine, now), now)

    def _apply(self, decisions: list[Decision], now: float) -> None:
        for decision in decisions:
            flight = decision.flight
            flight.sight = self._look(now)
            if not isinstance(decision, Start):
                flight.fate, flight.ended = Fate.REFUSED, now
                flight.code, flight.retry_after_s = decision.code, decision.retry_after_s
                self._come_back(flight, now)
                continue
            flight.granted = now
            arrival = flight.arrival
            if self.process.life is not Life.READY:
                flight.fate, flight.ended = Fate.LOST, now
                self._apply(self._gate.ended(flight, self.process.engine, now), now)
                continue
            flight.job = Job(
                rid=flight.rid,
                prompt=arrival.prompt,
                want=arrival.output,
                cap=decision.cap,
                blocks=arrival.blocks,
            )
            self._live[flight.rid] = flight
            self._promised[flight.rid] = arrival.prompt + self.process.engine.limits.cap(
                arrival.prompt, decision.cap
            )
            self.process.submit(flight.job, now)

    def _come_back(self, flight: Flight, now: float) -> None:
        if not self._honour_retries or flight.again or flight.retry_after_s is None:
            return
        at = now + flight.retry_after_s
        again = Flight(f"{flight.rid}-again", replace(flight.arrival, at=at), again=True)
        heapq.heappush(self._coming_back, (at, again.rid, again))

    def _look(self, now: float) -> Sight:
        engine = self.process.engine
        asked = engine.counters.prompt_tokens
        return Sight(
            at=now,
            pool_used=engine.used / engine.pool.capacity,
            promised=sum(self._promised.values()) / engine.pool.capacity,
            new_token_ratio=engine.ratio.now,
            running=engine.running,
            waiting_inside=engine.waiting,
            in_flight=len(self._live),
            cache_hits=engine.counters.cached_tokens / asked if asked else None,
        )


def simulate(
    trace: Trace,
    gate: Gate,
    profile: Profile,
    *,
    version: str = "0.5.17",
    seconds: float,
    honour_retries: bool = False,
) -> Run:
    """Play `seconds` of `trace` through `gate` into a twin of `profile`."""
    simulation = Simulation(trace, gate, profile, version, honour_retries=honour_retries)
    return simulation.run(seconds)
