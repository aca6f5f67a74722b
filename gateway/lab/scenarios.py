"""What policies are compared on: a trace, a box, a load and what counts as good.

A scenario builds the arrivals of a seed; every policy of that seed gets the same ones. Loads are in
requests/s and were chosen against the measured capacity of the box (`calibrate`, which every report
repeats): a seed's part of a trace may be a little heavier or lighter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.lab import arrivals
from gateway.lab.measures import Objectives
from gateway.twin.profiles import A10_8B, A100_8B, GIB, RTX3090_GPU0, RTX3090_GPU1
from gateway.twin.steps import Activations

if TYPE_CHECKING:
    from gateway.twin.profiles import Profile


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question put to every policy. Where there are `victims`, their TTFT is compared with what
    it is when they are alone. `boxes`, where given, are taken in turn, a seed each. What happens
    from the share `shift` of a run on is counted apart. `quick` ones are those of a quick run."""

    name: str
    story: str
    profile: Profile
    arrivals: arrivals.Arrivals
    seconds: float
    objectives: Objectives
    version: str = "0.5.17"
    victims: str | None = None  # prefix of the victims' names
    boxes: tuple[Profile, ...] = ()
    fleet: tuple[Profile, ...] = ()  # several servers at once, instead of one
    shift: float | None = None
    quick: bool = False
    patience_s: float | None = None  # how long clients wait, where not the TTFT objective

    @property
    def max_wait_s(self) -> float:
        """How long every gate lets a request wait: what waited longer cannot be good any more."""
        return self.objectives.ttft if self.patience_s is None else self.patience_s

    def box(self, seed: int) -> Profile:
        """The box of a seed, the first of several servers."""
        return self.boxes[seed % len(self.boxes)] if self.boxes else self.profile

    def servers(self, seed: int) -> tuple[Profile, ...]:
        """All that answer."""
        return self.fleet or (self.box(seed),)


CHAT = Objectives(ttft=5.0, tpot=0.1)
PATIENT = Objectives(ttft=10.0, tpot=0.1)
LONG = Objectives(ttft=30.0, tpot=0.1)
AGENT = Objectives(ttft=300.0, tpot=0.1)

# What the memory fraction left free, GiB. One of the four conversations needs 0.39 GiB in prefill,
# the four together 0.68 at the least: without a gate each of these boxes dies.
HEADROOMS = (0.45, 0.5, 0.55, 0.6, 0.65)


def _headroom(free: float) -> Profile:
    usual = RTX3090_GPU1.activations
    tight = Activations(
        headroom=free * GIB, per_token=usual.per_token, per_context=usual.per_context
    )
    return RTX3090_GPU1.with_(
        name=f"rtx3090-27b-free-{free:g}", activations=tight, dry_pool_kills=False
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "azure-conv-1.5x",
            "Azure conversations at 1.5 times the capacity of a 24 GB card; clients send "
            "max_tokens 1024",
            A10_8B,
            arrivals.azure(2.7, 1024),
            900.0,
            CHAT,
            quick=True,
        ),
        Scenario(
            "azure-conv-1.1x",
            "the same at 1.1 times",
            A10_8B,
            arrivals.azure(2.0, 1024),
            900.0,
            CHAT,
        ),
        Scenario(
            "azure-conv-cap4096",
            "1.5 times the load from clients that send max_tokens 4096 out of habit",
            A10_8B,
            arrivals.azure(2.7, 4096),
            900.0,
            CHAT,
            quick=True,
        ),
        Scenario(
            "reasoning",
            "long chains of thought on an 80 GB card at 1.3 times its capacity, cap 32,768",
            A100_8B.with_(pool=200_000),
            arrivals.servegen("deepseek-r1_1h", 0.85, 32_768),
            1800.0,
            PATIENT,
            quick=True,
        ),
        Scenario(
            "length-shift",
            "the same at a lower rate, and half-way every output becomes twice as long",
            A100_8B.with_(pool=200_000),
            arrivals.servegen("deepseek-r1_1h", 0.6, 32_768, doubles=True),
            1800.0,
            PATIENT,
            shift=0.5,
            quick=True,
        ),
        Scenario(
            "mooncake-conv",
            "long contexts with shared prefixes on an 80 GB card, cap 4096",
            A100_8B.with_(pool=200_000),
            arrivals.mooncake(0.5, 4096),
            900.0,
            LONG,
        ),
        Scenario(
            "big-pool",
            "short answers on a big pool: memory never binds, the pace of decoding does",
            A100_8B,
            arrivals.azure(8.0, 4096),
            300.0,
            CHAT,
        ),
        Scenario(
            "no-streams",
            "the same from clients none of which streams: nobody sees a first token",
            A100_8B,
            arrivals.in_one_piece(arrivals.azure(8.0, 4096)),
            300.0,
            CHAT,
        ),
        Scenario(
            "azure-code",
            "code completions that come in bursts, cap 1024",
            A10_8B,
            arrivals.azure(2.4, 1024, "code"),
            900.0,
            # An answer of twenty tokens waits for a neighbour's prompt once or twice.
            Objectives(ttft=5.0, tpot=0.3),
        ),
        Scenario(
            "servegen-large",
            "55 clients of a large model's service, the first of them with a quarter of the load",
            A10_8B,
            arrivals.servegen("m-large_15min", 3.5, 2048),
            900.0,
            CHAT,
        ),
        Scenario(
            "servegen-small",
            "20 clients with short questions and shorter answers",
            A10_8B,
            arrivals.servegen("m-small_15min", 17.0, 1024),
            300.0,
            CHAT,
        ),
        Scenario(
            "summaries",
            "papers to summarise, at random moments, cap 1024",
            A10_8B,
            arrivals.summaries(0.95, 1024),
            900.0,
            CHAT,
        ),
        Scenario(
            "tools",
            "short tool calls on long shared prompts (Mooncake, synthetic), cap 1024",
            A100_8B.with_(pool=200_000),
            arrivals.mooncake(0.5, 1024, "synthetic"),
            900.0,
            LONG,
        ),
        Scenario(
            "incident-a",
            "three agents without a cap on the dual-3090 box: 3 x (19,000 + 32,000) on 67,375",
            RTX3090_GPU0,
            arrivals.agents,
            3600.0,
            AGENT,
            quick=True,
        ),
        Scenario(
            "headroom",
            "four agents wake at once with 20,000 cached tokens each; the memory left beside the "
            f"pool is {', '.join(f'{free:g}' for free in HEADROOMS)} GiB, a seed each",
            _headroom(HEADROOMS[0]),
            arrivals.wakes,
            1800.0,
            LONG,
            boxes=tuple(_headroom(free) for free in HEADROOMS),
            quick=True,
        ),
        Scenario(
            "runaway",
            "four ordinary clients beside one that fires as fast as it can",
            A10_8B.with_(pool=65_536),
            arrivals.runaway(),
            900.0,
            CHAT,
            victims="victim",
            quick=True,
        ),
        Scenario(
            "flood",
            "the same, and the runaway's prompts are four times as long and its answers 1,024",
            A10_8B.with_(pool=65_536),
            arrivals.runaway(longer=4),
            900.0,
            CHAT,
            victims="victim",
        ),
        Scenario(
            "two-cards-agents",
            "six coding agents on the dual-3090 box: prompts that begin alike and grow to 48,000 "
            "tokens, no cap",
            RTX3090_GPU0,
            arrivals.coders(6),
            1800.0,
            LONG,
            fleet=(RTX3090_GPU0, RTX3090_GPU1),
        ),
        Scenario(
            "two-cards-chat",
            "long conversations with shared prefixes on two 80 GB cards, cap 4096",
            A100_8B.with_(pool=200_000),
            arrivals.mooncake(1.0, 4096, clients=8),
            900.0,
            LONG,
            fleet=(A100_8B.with_(pool=200_000), A100_8B.with_(pool=200_000)),
        ),
        Scenario(
            "equals",
            "eight clients alike that each ask for more than the whole box",
            A10_8B.with_(pool=65_536),
            arrivals.equals(8, 0.5, 1024),
            900.0,
            CHAT,
            patience_s=20.0,
        ),
    )
}
