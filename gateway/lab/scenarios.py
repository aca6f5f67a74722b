"""What policies are compared on: a trace, a box, a load and what counts as good.

A scenario builds the arrivals of a seed; every policy of that seed gets the same ones. Loads are in
requests/s and were chosen against the measured capacity of the box: `load` is offered over what the
oracle serves in time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway.lab.measures import Objectives
from gateway.lab.traces import Arrival, Trace, shipped
from gateway.twin.profiles import A10_8B, A100_8B, RTX3090_GPU0

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.twin.profiles import Profile


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question put to every policy. Where there are `victims`, their TTFT is compared with what
    it is when they are alone."""

    name: str
    story: str
    profile: Profile
    arrivals: Callable[[int, float], Trace]  # (seed, seconds) -> the trace
    seconds: float
    objectives: Objectives
    version: str = "0.5.17"
    victims: str | None = None  # prefix of the victims' names

    @property
    def max_wait_s(self) -> float:
        """How long every gate lets a request wait: what waited longer cannot be good any more."""
        return self.objectives.ttft


def _azure(rate: float, cap: int) -> Callable[[int, float], Trace]:
    def arrivals(seed: int, seconds: float) -> Trace:
        whole = shipped("azure2023_conv")
        rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
        start = rng.random() * max(1.0, whole.seconds * min(1.0, rate / whole.rate) - 2 * seconds)
        return whole.at_rate(rate, seed).window(start, seconds).capped(cap)

    return arrivals


def _reasoning(rate: float, cap: int, *, doubles: bool = False) -> Callable[[int, float], Trace]:
    def arrivals(seed: int, seconds: float) -> Trace:
        trace = shipped("servegen_deepseek-r1_1h").at_rate(rate, seed).window(0.0, seconds)

        def double(item: Arrival) -> Arrival:
            longer = doubles and item.at > seconds / 2
            return replace(item, output=item.output * 2) if longer else item

        return trace.mapped(double).capped(cap)

    return arrivals


def _agents(seed: int, seconds: float) -> Trace:
    """Three agents with 19,000-token prompts and no cap, one request after the other in time."""
    rng = random.Random(seed)  # noqa: S311 - arrivals, not secrets
    made: list[Arrival] = []
    for agent in range(3):
        at = 5.0 * agent + rng.random()
        while at < seconds:
            output = min(32_000, int(rng.lognormvariate(8.3, 1.0)))
            made.append(Arrival(at, 19_000, max(1, output), f"agent{agent}"))
            at += 60.0 + rng.expovariate(1 / 120.0)
    return Trace("agents", tuple(sorted(made, key=lambda item: item.at)))


def _runaway(seed: int, seconds: float) -> Trace:
    """Four ordinary clients, and one that fires fourteen times its share and never waits."""
    lengths = shipped("azure2023_conv").thinned(0.5, seed).arrivals
    rng = random.Random(seed)  # noqa: S311 - arrivals, not secrets
    made: list[Arrival] = []
    for client, rate in [*((f"victim{index}", 0.14) for index in range(4)), ("runaway", 5.0)]:
        at = rng.expovariate(rate)
        while at < seconds:
            drawn = rng.choice(lengths)
            made.append(Arrival(at, drawn.prompt, drawn.output, client, cap=1024))
            at += rng.expovariate(rate)
    return Trace("runaway", tuple(sorted(made, key=lambda item: item.at)))


def alone(trace: Trace, victims: str) -> Trace:
    """`trace` with nobody but the victims."""
    kept = tuple(item for item in trace.arrivals if item.client.startswith(victims))
    return replace(trace, arrivals=kept)


CHAT = Objectives(ttft=5.0, tpot=0.1)
PATIENT = Objectives(ttft=10.0, tpot=0.1)
AGENT = Objectives(ttft=300.0, tpot=0.1)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "azure-conv-1.5x",
            "Azure conversations at 1.5 times what a 24 GB card serves in time; clients send "
            "max_tokens 1024",
            A10_8B,
            _azure(1.82, 1024),
            900.0,
            CHAT,
        ),
        Scenario(
            "azure-conv-cap4096",
            "the same load from clients that send max_tokens 4096 out of habit",
            A10_8B,
            _azure(1.82, 4096),
            900.0,
            CHAT,
        ),
        Scenario(
            "reasoning",
            "long chains of thought on an 80 GB card at 1.3 times its capacity, cap 32,768",
            A100_8B.with_(pool=200_000),
            _reasoning(0.75, 32_768),
            1800.0,
            PATIENT,
        ),
        Scenario(
            "length-shift",
            "the same at a lower rate, and half-way every output becomes twice as long",
            A100_8B.with_(pool=200_000),
            _reasoning(0.6, 32_768, doubles=True),
            1800.0,
            PATIENT,
        ),
        Scenario(
            "incident-a",
            "three agents without a cap on the dual-3090 box: 3 x (19,000 + 32,000) on 67,375",
            RTX3090_GPU0,
            _agents,
            3600.0,
            AGENT,
        ),
        Scenario(
            "runaway",
            "four ordinary clients beside one that fires as fast as it can",
            A10_8B.with_(pool=65_536),
            _runaway,
            900.0,
            CHAT,
            victims="victim",
        ),
    )
}
