"""The product's own admission in a simulation: the same `core.admission` as live traffic.

Limits are compiled by the policy code from what a twin reports, as they are from a live server, so
a change of either is measured here before anybody runs it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

from gateway.core.admission import Admission
from gateway.core.model import (
    NO_LEAD,
    Ask,
    ClientRule,
    Granted,
    Lead,
    Outcome,
    PoolId,
    QueueRule,
    Refused,
    RequestId,
    Ticket,
)
from gateway.core.unseen import Look
from gateway.lab.flights import Decision, Fate, Flight, Refuse, Start
from gateway.policy.compile import PoolFacts, client_rules, pool_limits, queue_rule
from gateway.policy.schema import Backend

if TYPE_CHECKING:
    from gateway.core.model import PoolLimits, Transition
    from gateway.lab.gates import Engines
    from gateway.lab.traces import Arrival
    from gateway.policy.schema import Policy
    from gateway.twin.engine import Engine

_BACKEND = Backend(url="http://twin.invalid", name="twin")  # every field at its default

_OUTCOMES = {
    Fate.SERVED: Outcome.COMPLETED,
    Fate.LOST: Outcome.FAILED,
    Fate.REFUSED: Outcome.FAILED,
    Fate.PENDING: Outcome.CANCELLED,
}


LOADS_S = 1.0
"""Between two looks at what a server holds, as the watch takes them (`upstream.life.Pace`)."""

Part = Literal["forecast", "pace", "shares", "affinity"]
"""What can be left out, to see what it is worth."""


def limits_of(
    engine: Engine, *, without: Part | None = None, policy: Policy | None = None
) -> PoolLimits:
    """The limits live traffic would get in front of `engine`: its policy's first server, or with no
    policy file."""
    backend = _BACKEND.model_copy(update={"tpot_s": "off"}) if without == "pace" else _BACKEND
    if policy is not None:
        backend = policy.backends[0]
    profile = engine.profile
    return pool_limits(
        backend,
        PoolFacts(
            pool_tokens=engine.pool.capacity,
            page=engine.pool.page,
            context=profile.context,
            max_input=engine.limits.longest_prompt,
            max_running=profile.max_running,
            chunk=profile.chunk,
            max_prefill=profile.max_prefill,
            conservativeness=profile.conservativeness,
        ),
        forecast=without != "forecast" if policy is None else policy.reservation == "forecast",
    )


class CoreGate:
    """`core.admission` as a simulation's gate, before all of its servers; `without` leaves a part of
    it out, `policy` is a policy whose clients and first server it obeys."""

    def __init__(
        self,
        *,
        max_wait_s: float,
        seed: int = 0,
        without: Part | None = None,
        policy: Policy | None = None,
        server: int | None = None,
    ) -> None:
        """`server`: the only one it stands before; None: all."""
        self._only = server
        self._without, self._max_wait_s, self._policy = without, max_wait_s, policy
        self._rules = {} if policy is None else client_rules(policy)
        self._retractions: dict[PoolId, int] = {}
        self._predicted: dict[RequestId, tuple[float, float]] = {}
        jitter = random.Random(seed)  # noqa: S311 - spreads retries, no secret
        # With a deadline for each request, the queue's own limit only has to be the later one.
        queue = QueueRule(max_wait_s=2 * max_wait_s) if policy is None else queue_rule(policy)
        self._admission = Admission(queue, jitter=jitter.random)
        self._flights: dict[RequestId, Flight] = {}
        self._flying: dict[RequestId, Flight] = {}
        self._unseen = False  # somebody does not stream: what servers say is worth a look
        self._look_at = 0.0
        self._engines: Engines = list
        self._pools: list[PoolId] = []

    def meet(self, engines: Engines) -> None:
        """Read the limits of its servers, and open."""
        self._engines = engines
        self._pools = [PoolId("twin", number) for number in range(len(engines()))]
        for server in range(len(self._pools)):
            if self._only in {None, server}:
                self.returned(server, 0.0)

    def arrive(self, flight: Flight, now: float) -> list[Decision]:
        """Submit its ticket."""
        ident = RequestId(flight.rid)
        self._flights[ident] = flight
        arrival = flight.arrival
        self._unseen = self._unseen or not arrival.streamed
        name = "all" if self._without == "shares" else arrival.client
        ticket = Ticket(
            id=ident,
            client=self._rules.get(name) or ClientRule(name),
            ask=Ask(prompts=(arrival.prompt,), cap=arrival.cap),
            pools=tuple(self._pools),
            deadline=now + self._max_wait_s,
            streamed=arrival.streamed,
            lead=NO_LEAD if self._without == "affinity" else self._lead(arrival),
        )
        out = self._news(now)
        for pool, engine in zip(self._pools, self._engines(), strict=True):
            # Each step sends each stream a token.
            self._admission.books.heard(pool, engine.counters.stepped)
        return out + self._decisions(self._admission.submit(ticket, now))

    def _lead(self, arrival: Arrival) -> Lead:
        """What the traces call blocks is to the gate what it knows of a prompt's beginning."""
        block = self._engines()[0].profile.block
        marks, mark = [], 0
        for number, name in enumerate(arrival.blocks, 1):
            mark = hash((mark, name))
            marks.append((mark, min(number * block, arrival.prompt)))
        return Lead.of(marks)

    def _limits(self, engine: Engine) -> PoolLimits:
        return limits_of(engine, without=self._without, policy=self._policy)

    def first_token(self, flight: Flight, now: float) -> list[Decision]:
        """Its prompt is prefilled."""
        out = self._news(now)
        return out + self._decisions(self._admission.first_token(RequestId(flight.rid), now))

    def ended(self, flight: Flight, now: float) -> list[Decision]:
        """Settle its reservation; a server tells then how much of the prompt it had."""
        ident = RequestId(flight.rid)
        self._true_up()
        self._admission.true_up(ident, flight.out)  # also of an answer in one piece
        del self._flying[ident]
        if flight.job is not None and flight.fate is Fate.SERVED:
            self._admission.cached(ident, flight.job.cached)
        return self._decisions(self._admission.settle(ident, _OUTCOMES[flight.fate], now))

    def died(self, server: int, now: float) -> list[Decision]:
        """Close the pool, void what it held, and end what was in it."""
        pool = self._pools[server]
        out = self._decisions(self._admission.set_open(pool, now, is_open=False))
        out += self._decisions(self._admission.void(pool, now))
        for ident, flight in list(self._flying.items()):
            if flight.server == server:
                del self._flying[ident]
                out += self._decisions(self._admission.settle(ident, Outcome.FAILED, now))
        return out

    def returned(self, server: int, now: float) -> list[Decision]:
        """Read its limits again, and open."""
        pool = self._pools[server]
        limits = self._limits(self._engines()[server])
        out = self._decisions(self._admission.resize(pool, limits, now))
        return out + self._decisions(self._admission.set_open(pool, now, is_open=True))

    def advance(self, now: float) -> list[Decision]:
        """Timers."""
        out = self._news(now)
        if self._unseen and self._flying and now >= self._look_at:
            self._look_at = now + LOADS_S
            out += self._look(now)
        return out + self._decisions(self._admission.advance(now))

    def predicted(self, rid: str) -> tuple[float, float] | None:
        """What the grant of a request said of its first token."""
        return self._predicted.pop(RequestId(rid), None)

    def next_wakeup(self) -> float | None:
        """Its next timer."""
        wake = self._admission.next_wakeup()
        if not (self._unseen and self._flying):
            return wake
        return self._look_at if wake is None else min(wake, self._look_at)

    def _news(self, now: float) -> list[Decision]:
        """What the taps of the streams and the watch would have told by now."""
        self._true_up()
        out: list[Decision] = []
        for pool, engine in zip(self._pools, self._engines(), strict=True):
            told, count = self._retractions.get(pool, 0), engine.counters.retractions
            self._retractions[pool] = count  # a new start counts from zero
            if count > told:
                out += self._decisions(self._admission.retracted(pool, now))
        return out

    def _true_up(self) -> None:
        for ident, flight in self._flying.items():
            if flight.arrival.streamed:
                self._admission.true_up(ident, flight.out)

    def _look(self, now: float) -> list[Decision]:
        """What the servers say of themselves when they are asked: coarse engines publish nothing by themselves."""
        out: list[Decision] = []
        for pool, engine in zip(self._pools, self._engines(), strict=True):
            said = engine.publish(now)
            look = Look(said.at, said.running, said.waiting, said.unread, said.read, said.read_s)
            out += self._decisions(self._admission.looked(pool, look, now))
        return out

    def _decisions(self, transitions: list[Transition]) -> list[Decision]:
        out: list[Decision] = []
        for transition in transitions:
            match transition:
                case Granted(grant):
                    flight = self._flights[grant.id]
                    self._flying[grant.id] = flight
                    flight.server = self._pools.index(grant.pool)
                    flight.cap = grant.demand.cap
                    if grant.ttft_s is not None and grant.ttft_high_s is not None:
                        self._predicted[grant.id] = (grant.ttft_s, grant.ttft_high_s)
                    out.append(Start(flight, grant.demand.cap))
                case Refused(ident, refusal):
                    flight = self._flights[ident]
                    out.append(Refuse(flight, refusal.code.value, refusal.retry_after_s))
                case _:
                    pass
        return out
