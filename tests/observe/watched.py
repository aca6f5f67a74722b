"""A twin, the gate's own core before it (or nothing), and the collector's eyes on both, in virtual
time: thirty minutes take some seconds.

`watch` plays arrivals and looks every five seconds, as `Collector` does on a live gate: the same
`Lookout`, `Minutes` and `Store`, on a fleet whose loads are the twin's last snapshot.
"""

from __future__ import annotations

import heapq
import zlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson

from gateway.core.admission import Admission
from gateway.core.model import ClientRule, Outcome, PoolId, QueueRule
from gateway.edge.lookout import Lookout
from gateway.lab import orders, policies
from gateway.lab.coregate import CoreGate, limits_of
from gateway.lab.flights import Fate, Flight
from gateway.lab.gates import QueueGate
from gateway.lab.simulate import Simulation
from gateway.lab.traces import Arrival, Trace
from gateway.observe.journal import Totals
from gateway.observe.minutes import Minutes
from gateway.observe.record import Record
from gateway.observe.store import Page, Store
from gateway.twin.process import Life
from gateway.upstream.loads import LoadsFacts, RankLoad
from gateway.upstream.scrape import RankSignals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gateway.core.model import PoolLimits
    from gateway.lab.flights import Decision
    from gateway.observe.looks import CardLook, Look
    from gateway.twin.engine import Engine
    from gateway.twin.profiles import Profile

POOL = PoolId("twin")
START = datetime(2026, 7, 28, 11, 30, tzinfo=UTC)
EVERY_S = 5.0
BLOCK = 512


@dataclass
class Agent:
    """One that asks, reads the answer, thinks and asks again with all that was said: its prompts grow
    by `step` tokens a turn (a tool's output) from `first`, and are trimmed at `most`."""

    name: str
    start: float
    until: float
    first: int
    step: int = 2_048
    out: int = 400
    think_s: float = 5.0
    most: int = 172_000
    cap: int | None = 4_096
    client: str = ""  # itself

    def __post_init__(self) -> None:
        self._base = 10_000_000 * (1 + zlib.crc32(self.name.encode()) % 90_000)
        self._blocks = [self._base + index for index in range(self.first // BLOCK)]
        self.turns = 0

    def ask(self, at: float) -> Arrival:
        self.turns += 1
        arrival = Arrival(
            at,
            BLOCK * len(self._blocks) + 100,
            self.out,
            self.client or self.name,
            tuple(self._blocks),
            self.cap,
        )
        self._base += 100_000
        self._blocks += [self._base + index for index in range(self.step // BLOCK)]
        if BLOCK * len(self._blocks) > self.most:
            del self._blocks[3 * len(self._blocks) // 4 :]
        return arrival


class Watched:
    """A gate of the laboratory with a timer of its own: every five seconds it is looked at."""

    def __init__(self, gate: Any, core: Admission, box: Box, kill_at: float | None) -> None:
        self._gate, self._core, self._box, self._kill_at = gate, core, box, kill_at
        self._due = EVERY_S
        self.now = 0.0

    def meet(self, engines: Any) -> None:
        self._engines = engines
        self._gate.meet(engines)

    def advance(self, now: float) -> list[Decision]:
        self.now = now
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._box.simulation.processes[0].kill(now)
        if now >= self._due:
            self._due += EVERY_S
            if isinstance(self._gate, CoreGate):
                self._gate._true_up()
            self._box.look(self._engines()[0])
        due = self._gate.next_wakeup()
        return self._gate.advance(now) if due is not None and due <= now else []

    def next_wakeup(self) -> float:
        due = self._gate.next_wakeup()
        return self._due if due is None else min(due, self._due)

    def arrive(self, flight: Flight, now: float) -> list[Decision]:
        self.now = now
        return self._gate.arrive(flight, now)

    def first_token(self, flight: Flight, now: float) -> list[Decision]:
        self.now = now
        return self._gate.first_token(flight, now)

    def ended(self, flight: Flight, now: float) -> list[Decision]:
        self.now = now
        decided = self._gate.ended(flight, now)
        self._box.ended(flight)
        return decided

    def died(self, server: int, now: float) -> list[Decision]:
        self.now = now
        self._box.backend.deaths += 1
        return self._gate.died(server, now)

    def returned(self, server: int, now: float) -> list[Decision]:
        self.now = now
        return self._gate.returned(server, now)

    def view(self) -> Any:
        return self._core.view(self.now)

    @property
    def core(self) -> Admission:
        return self._core


class RuledGate(CoreGate):
    """`CoreGate` with limits of the policy's: of clients, and of slots."""

    def __init__(self, rules: dict[str, ClientRule], slots: int | None) -> None:
        super().__init__(max_wait_s=600.0)
        self._rules, self._slots = rules, slots

    def _limits(self, engine: Engine) -> PoolLimits:
        limits = limits_of(engine)
        if self._slots is not None:
            limits = replace(limits, slots=min(limits.slots, self._slots))
        return limits


@dataclass
class Box:
    """What `Lookout` looks at, and where its looks go."""

    minutes: Minutes
    store: Store | None
    cards: Callable[[Engine], tuple[CardLook, ...]]
    looks: list[Look] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    gate: Any = None
    lookout: Any = None
    simulation: Any = None
    booked: bool = True
    asked: dict[Arrival, Agent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backend = SimpleNamespace(
            name="twin",
            url="http://127.0.0.1:30000",
            pools=(POOL,),
            loads=None,
            said={},
            facts=None,
            sequences=0,
            deaths=0,
            held=None,
            ready=True,
            loads_age_s=0.0,
            watch=SimpleNamespace(snapshot=lambda: SimpleNamespace(state=self.life)),
        )
        self.life: Any = None

    def look(self, engine: Engine) -> None:
        from gateway.upstream.life import Life as Seen

        alive = self.simulation.processes[0].life is Life.READY
        self.life = Seen.READY if alive else Seen.DOWN
        backend, shot = self.backend, engine.publish(self.gate.now) if alive else engine.snapshot
        running = self.simulation._live.values()
        backend.sequences = len(running)
        rank = RankLoad(
            0,
            shot.running,
            shot.waiting,
            shot.used,
            shot.total,
            shot.total - shot.used,
            shot.capacity,
            engine.counters.prefill_tokens,
            0.0,
            engine.gauges.throughput or None,
        )
        backend.loads = LoadsFacts((rank,))
        backend.said = {0: RankSignals(float(engine.counters.retractions), engine.ratio.now)}
        seen = self.lookout.take(self.cards(engine), None)
        seen = replace(seen, at=START + timedelta(seconds=self.gate.now))
        self.looks.append(seen)
        minute = self.minutes.add(seen)
        if self.store is not None:
            self.store.write([Page(seen, self.minutes.verdict(), minute)])

    def ended(self, flight: Flight) -> None:
        served = flight.fate is Fate.SERVED
        self.totals.completed += served
        self.totals.failed += not served
        record = Record(
            id=flight.rid,
            client=flight.arrival.client,
            backend="twin",
            outcome=Outcome.COMPLETED if served else Outcome.FAILED,
            output_tokens=flight.out,
            ttft_ms=None if flight.ttft is None else flight.ttft * 1000,
            tpot_ms=None if flight.tpot is None else flight.tpot * 1000,
        )
        self.lookout.ended(record)
        self.minutes.ended(record)
        agent = self.asked.pop(flight.arrival, None)
        if agent is not None and self.gate.now + agent.think_s < agent.until:
            at = self.gate.now + agent.think_s
            arrival = agent.ask(at)
            self.asked[arrival] = agent
            again = Flight(f"{agent.name}-{agent.turns}", arrival, again=True)
            heapq.heappush(self.simulation._coming_back, (at, again.rid, again))

    @property
    def timeline(self) -> list[tuple[str, str, str]]:
        """Minute, class and English sentence."""
        found = orjson.loads(self.minutes.history())["minutes"]
        return [
            (one["at"][11:16], one["verdict"]["class"], one["verdict"]["sentence"]["en"])
            for one in found
        ]

    @property
    def classes(self) -> list[str]:
        return [kind for _, kind, _ in self.timeline]


def watch(
    profile: Profile,
    asking: Sequence[Agent],
    seconds: float,
    *,
    gated: bool = True,
    slots: int | None = None,
    rules: dict[str, ClientRule] | None = None,
    kill_at: float | None = None,
    folder: Path | None = None,
    cards: Callable[[Engine], tuple[CardLook, ...]] = lambda _: (),
) -> Box:
    """Let them ask for `seconds` and look at it all."""
    box = Box(Minutes(EVERY_S, local="twin"), Store(folder, 256 << 20) if folder else None, cards)
    box.booked = gated
    inner: Any
    if gated:
        inner = RuledGate(rules or {}, slots)
        core = inner._admission
    else:
        inner = QueueGate(policies.Nothing("none"), orders.ByArrival(), max_wait_s=1e9)
        core = Admission(QueueRule())
    gate = Watched(inner, core, box, kill_at)
    box.gate = gate
    box.lookout = Lookout(
        gate=SimpleNamespace(core=core, now=lambda: gate.now, view=gate.view),
        fleet=[box.backend],
        reaper=SimpleNamespace(dying=0),
        journal=SimpleNamespace(totals=box.totals),
        state=lambda: "ready",
        booked=gated,
    )
    box.asked = {one.ask(one.start): one for one in asking}
    arrivals = list(box.asked)
    trace = Trace("watched", tuple(sorted(arrivals, key=lambda one: one.at)), BLOCK)
    box.simulation = Simulation(trace, gate, (profile,), "0.5.17")
    box.simulation.run(seconds)
    return box
