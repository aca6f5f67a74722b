"""The product's own admission in a simulation: the same `core.admission` as live traffic.

Limits are compiled by the policy code from what a twin reports, as they are from a live server, so
a change of either is measured here before anybody runs it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.admission import Admission
from gateway.core.model import (
    Ask,
    ClientRule,
    Granted,
    Outcome,
    PoolId,
    QueueRule,
    Refused,
    RequestId,
    Ticket,
)
from gateway.lab.flights import Decision, Fate, Flight, Refuse, Start
from gateway.policy.compile import pool_limits
from gateway.policy.schema import Backend

if TYPE_CHECKING:
    from gateway.core.model import PoolLimits, Transition
    from gateway.twin.engine import Engine

_POOL = PoolId("twin")
_BACKEND = Backend(url="http://twin.invalid", name="twin")  # every field at its default

_OUTCOMES = {
    Fate.SERVED: Outcome.COMPLETED,
    Fate.LOST: Outcome.FAILED,
    Fate.REFUSED: Outcome.FAILED,
    Fate.PENDING: Outcome.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class TwinFacts:
    """What discovery would have read from this engine. Tokens."""

    pool_tokens: int
    page: int
    context: int
    max_input: int
    max_running: int | None
    chunk: int | None
    max_prefill: int | None
    speculative_reserve: int = 0


def limits_of(engine: Engine) -> PoolLimits:
    """The limits live traffic would get in front of `engine`, with no policy file."""
    profile = engine.profile
    return pool_limits(
        _BACKEND,
        TwinFacts(
            pool_tokens=engine.pool.capacity,
            page=engine.pool.page,
            context=profile.context,
            max_input=engine.limits.longest_prompt,
            max_running=profile.max_running,
            chunk=profile.chunk,
            max_prefill=profile.max_prefill,
        ),
    )


class CoreGate:
    """`core.admission` as a simulation's gate."""

    def __init__(self, *, max_wait_s: float, seed: int = 0) -> None:
        jitter = random.Random(seed)  # noqa: S311 - spreads retries, no secret
        self._admission = Admission(QueueRule(max_wait_s=max_wait_s), jitter=jitter.random)
        self._flights: dict[RequestId, Flight] = {}
        self._flying: dict[RequestId, Flight] = {}
        self._known = False

    def arrive(self, flight: Flight, engine: Engine, now: float) -> list[Decision]:
        """Submit its ticket."""
        out: list[Decision] = []
        if not self._known:
            self._known = True
            out += self._decisions(self._admission.resize(_POOL, limits_of(engine), now))
            out += self._decisions(self._admission.set_open(_POOL, now, is_open=True))
        ident = RequestId(flight.rid)
        self._flights[ident] = flight
        ticket = Ticket(
            id=ident,
            client=ClientRule(flight.arrival.client),
            ask=Ask(prompts=(flight.arrival.prompt,), cap=flight.arrival.cap),
            pools=(_POOL,),
        )
        self._true_up()
        return out + self._decisions(self._admission.submit(ticket, now))

    def first_token(self, flight: Flight, engine: Engine, now: float) -> list[Decision]:  # noqa: ARG002
        """Its prompt is prefilled."""
        self._true_up()
        return self._decisions(self._admission.first_token(RequestId(flight.rid), now))

    def ended(self, flight: Flight, engine: Engine, now: float) -> list[Decision]:  # noqa: ARG002
        """Settle its reservation."""
        ident = RequestId(flight.rid)
        self._true_up()
        del self._flying[ident]
        return self._decisions(self._admission.settle(ident, _OUTCOMES[flight.fate], now))

    def died(self, engine: Engine, now: float) -> list[Decision]:  # noqa: ARG002
        """Close the pool, void what it held, and end what was in it."""
        out = self._decisions(self._admission.set_open(_POOL, now, is_open=False))
        out += self._decisions(self._admission.void(_POOL, now))
        for ident in list(self._flying):
            del self._flying[ident]
            out += self._decisions(self._admission.settle(ident, Outcome.FAILED, now))
        return out

    def returned(self, engine: Engine, now: float) -> list[Decision]:
        """Read its limits again, and open."""
        out = self._decisions(self._admission.resize(_POOL, limits_of(engine), now))
        return out + self._decisions(self._admission.set_open(_POOL, now, is_open=True))

    def advance(self, engine: Engine, now: float) -> list[Decision]:  # noqa: ARG002
        """Timers."""
        self._true_up()
        return self._decisions(self._admission.advance(now))

    def next_wakeup(self) -> float | None:
        """Its next timer."""
        return self._admission.next_wakeup()

    def _true_up(self) -> None:
        """What the tap of the stream would have told by now."""
        for ident, flight in self._flying.items():
            self._admission.true_up(ident, flight.out)

    def _decisions(self, transitions: list[Transition]) -> list[Decision]:
        out: list[Decision] = []
        for transition in transitions:
            match transition:
                case Granted(grant):
                    flight = self._flights[grant.id]
                    self._flying[grant.id] = flight
                    flight.cap = grant.demand.cap
                    out.append(Start(flight, grant.demand.cap))
                case Refused(ident, refusal):
                    flight = self._flights[ident]
                    out.append(Refuse(flight, refusal.code.value, refusal.retry_after_s))
                case _:
                    pass
        return out
