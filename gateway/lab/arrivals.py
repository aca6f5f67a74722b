"""The arrivals of the scenarios: each a function of (seed, seconds), built from the traces."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from gateway.lab.traces import Arrival, Trace, shipped, shipped_lengths

KEPT = 0.9  # of a trace, by each seed another part, where its rate alone would not vary it

Arrivals = Callable[[int, float], Trace]
"""(seed, seconds) -> the trace."""


def azure(rate: float, cap: int, which: str = "conv") -> Arrivals:
    """Azure's conversations or code requests from a random moment on, thinned or sped up to `rate`
    in the part that is played: their own rate changes twofold within the hour."""

    def arrivals(seed: int, seconds: float) -> Trace:
        whole = shipped(f"azure2023_{which}")
        rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
        wanted = seconds * max(1.0, rate / (KEPT * whole.rate))  # more, where it is sped up
        start = rng.random() * max(0.0, whole.seconds - wanted)
        part = whole.window(start, wanted).thinned(KEPT, seed)
        return part.at_rate(rate, seed + 1).window(0.0, seconds).capped(cap)

    return arrivals


def in_one_piece(of: Arrivals) -> Arrivals:
    """The same from clients none of which streams."""

    def arrivals(seed: int, seconds: float) -> Trace:
        return of(seed, seconds).mapped(lambda item: replace(item, streamed=False))

    return arrivals


def mooncake(
    rate: float, cap: int, which: str = "conversation", *, clients: int | None = None
) -> Arrivals:
    """Mooncake's long contexts with their shared prefixes; the trace names no clients, so with
    `clients` those that begin alike beyond the first block, which most share, are of one."""

    def name(item: Arrival) -> Arrival:
        return replace(item, client=f"c{item.blocks[:2][-1] % (clients or 1)}")

    def arrivals(seed: int, seconds: float) -> Trace:
        whole = shipped(f"mooncake_{which}").thinned(KEPT, seed)
        trace = whole.at_rate(rate, seed).window(0.0, seconds).capped(cap)
        return trace if clients is None else trace.mapped(name)

    return arrivals


def servegen(name: str, rate: float, cap: int, *, doubles: bool = False) -> Arrivals:
    """Alibaba's clients; with `doubles`, every output is twice as long in the second half."""

    def arrivals(seed: int, seconds: float) -> Trace:
        trace = shipped(f"servegen_{name}")
        if rate >= trace.rate:
            trace = trace.thinned(KEPT, seed)
        trace = trace.at_rate(rate, seed).window(0.0, seconds)

        def double(item: Arrival) -> Arrival:
            longer = doubles and item.at > seconds / 2
            return replace(item, output=item.output * 2) if longer else item

        return trace.mapped(double).capped(cap)

    return arrivals


def summaries(rate: float, cap: int) -> Arrivals:
    """Vidur's arXiv summaries, which have lengths only: at random moments."""

    def arrivals(seed: int, seconds: float) -> Trace:
        rng, lengths = random.Random(seed), shipped_lengths("vidur_arxiv_lengths")  # noqa: S311
        made: list[Arrival] = []
        at = rng.expovariate(rate)
        while at < seconds:
            prompt, output = rng.choice(lengths)
            made.append(Arrival(at, prompt, min(output, cap), cap=cap))
            at += rng.expovariate(rate)
        return Trace("summaries", tuple(made))

    return arrivals


def agents(seed: int, seconds: float) -> Trace:
    """Three agents with 19,000-token prompts and no cap, one request after the other in time."""
    rng = random.Random(seed)  # noqa: S311 - arrivals, not secrets
    made: list[Arrival] = []
    for agent in range(3):
        at = 5.0 * agent + rng.random()
        while at < seconds:
            output = min(32_000, int(rng.lognormvariate(8.3, 1.0)))
            made.append(Arrival(at, 19_000, max(1, output), f"agent{agent}"))
            at += 60.0 + rng.expovariate(1 / 120.0)
    return _in_order("agents", made)


def wakes(seed: int, seconds: float) -> Trace:
    """Four agents whose tools answer at the same moment, as after a build or a poll: each goes on
    with its conversation, which lies in the cache but for its last words.

    Their contexts meet in one prefill step, which is what kills a box whose pool is far from full
    (sglang issue 30505: a few 33k prefills at once; 37712: at a usage of 0.35).
    """
    rng = random.Random(seed)  # noqa: S311 - arrivals, not secrets
    made: list[Arrival] = []
    history = [[*range(1_000_000 * agent, 1_000_000 * agent + 36)] for agent in range(4)]
    at = 10.0
    while at < seconds:
        for agent, blocks in enumerate(history):
            prompt = 512 * len(blocks) + rng.randint(100, 400)
            output = rng.randint(50, 300)
            moment = at + 0.05 * rng.random()
            made.append(Arrival(moment, prompt, output, f"agent{agent}", tuple(blocks), cap=1024))
            blocks.append(blocks[-1] + 1)
            if len(blocks) > 44:  # noqa: PLR2004 - 22,500 tokens: the client trims its history
                del blocks[36:]
        at += 45.0 + rng.expovariate(1 / 15.0)
    return _in_order("wakes", made)


def coders(count: int, *, common: int = 16, most: int = 94) -> Arrivals:
    """`count` coding agents: each prompt is the same system prompt and tools (`common` blocks of 512
    tokens), a repository's own part, and everything said in its session so far, to which each turn
    adds a tool's output; a session ends after `most` blocks, and the agent begins another one.

    Sizes are those of recorded agents: 8-20k tokens at the first call, 64,000 promised, 100-600 said
    a turn. Turns follow each other as tools take time, whether or not the last one was served.
    """

    def arrivals(seed: int, seconds: float) -> Trace:
        rng = random.Random(seed)  # noqa: S311 - arrivals, not secrets
        made: list[Arrival] = []
        shared = tuple(range(common))
        for agent in range(count):
            fresh = 1_000_000 * (agent + 1)
            at = rng.uniform(0.0, 120.0)
            while at < seconds:
                blocks = [*shared, *range(fresh, fresh + rng.randint(2, 12))]
                while len(blocks) < most and at < seconds:
                    prompt = 512 * len(blocks) + rng.randint(20, 400)
                    output = max(20, min(2000, int(rng.lognormvariate(5.3, 0.8))))
                    made.append(Arrival(at, prompt, output, f"coder{agent}", tuple(blocks)))
                    blocks += [blocks[-1] + 1 + step for step in range(rng.choice((1, 1, 2, 4, 8)))]
                    at += 15.0 + rng.expovariate(1 / 30.0)
                fresh = blocks[-1] + 1_000
                at += rng.expovariate(1 / 120.0)
        return _in_order("coders", made)

    return arrivals


def runaway(*, longer: int = 1, cap: int = 1024) -> Arrivals:
    """Four ordinary clients, and one that fires fourteen times its share and never waits; `longer`
    multiplies its prompts, and then it asks for all of `cap`."""

    def arrivals(seed: int, seconds: float) -> Trace:
        lengths = shipped("azure2023_conv").thinned(0.5, seed).arrivals
        rng = random.Random(seed)  # noqa: S311 - arrivals, not secrets
        made: list[Arrival] = []
        for client, rate in [*((f"victim{index}", 0.14) for index in range(4)), ("runaway", 5.0)]:
            floods = longer > 1 and client == "runaway"
            at = rng.expovariate(rate)
            while at < seconds:
                drawn = rng.choice(lengths)
                prompt = min(7000, longer * drawn.prompt) if floods else drawn.prompt
                output = cap if floods else min(drawn.output, cap)
                made.append(Arrival(at, prompt, output, client, cap=cap))
                at += rng.expovariate(rate)
        return _in_order("runaway", made)

    return arrivals


def equals(clients: int, rate: float, cap: int) -> Arrivals:
    """`clients` that each ask for more than all of the box, alike in everything but the order."""

    def arrivals(seed: int, seconds: float) -> Trace:
        lengths = shipped("azure2023_conv").arrivals
        rng = random.Random(seed)  # noqa: S311 - arrivals, not secrets
        made: list[Arrival] = []
        for client in range(clients):
            at = rng.expovariate(rate)
            while at < seconds:
                drawn = rng.choice(lengths)
                output = min(drawn.output, cap)
                made.append(Arrival(at, drawn.prompt, output, f"equal{client}", cap=cap))
                at += rng.expovariate(rate)
        return _in_order("equals", made)

    return arrivals


def alone(trace: Trace, victims: str) -> Trace:
    """`trace` with nobody but the victims."""
    kept = tuple(item for item in trace.arrivals if item.client.startswith(victims))
    return replace(trace, arrivals=kept)


def _in_order(name: str, made: list[Arrival]) -> Trace:
    return Trace(name, tuple(sorted(made, key=lambda item: item.at)))
