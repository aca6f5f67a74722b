"""Three times more than the engine can do.

200 clients come one by one, as a Poisson process of three times the rate that the engine was just
seen to complete such requests at. Each allows its answer four times the tokens it is likely to take,
and says in the header of the OpenAI SDK how long a first token is of use to it. An engine knows no
such thing and lets them all wait in itself; the gate, with nothing but its defaults, runs what fits
and tells the others in time.

The same arrivals and sizes come twice: to the engine, and to the gate. What is compared are the two
runs of one test on one machine, so the test needs no particular speed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.real.load import END_OF_TURN, LoadSampler, Reply, chat_body, chats, post, streaming

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real.conftest import Note
    from tests.real.engine import Engine
    from tests.real.gateproc import Gate

OFFERED = 200
OVERLOAD = 3.0

PROMPTS = (40, 200)
"""Tokens, evenly spread. A dozen such requests fill the pool of 2,048."""

CAP = 80
ONE_IN_20 = 8.94
"""ln(151936 / 20), see `load.ONE_IN_100`: answers take 20 tokens on average, one in 60 is cut."""

CALIBRATION = 30
"""Requests sent at once to see how fast the engine completes them: two or three pools full."""

PATIENCE = 8.0
"""How long a first token is of use, in mean times between two completions of the busy engine: the
queue of a server that starts only what is still of use stays so long, and never empty."""

TIMES_LOWER = 5.0

QUIET = 0.97
"""Share of the samples with nothing waiting in the engine. A request that has just come is in its
queue until the step that is under way has ended, and a sample may fall into that moment: 6 of 725
did. Without the gate 87 % of them saw a queue."""

AS_MANY_TOKENS = 0.8
"""Tokens per second of all that was served, next to the run without the gate: 0.96 and 1.02 were
measured. That run is twice as long, so filling and emptying the pool weigh half as much in it."""

REFUSALS = {"deadline_unreachable", "queue_full"}


@dataclass(frozen=True)
class Load:
    """Requests and when they come, seconds from the start; `patience_s` is what each allows."""

    arrivals: list[float]
    sizes: list[int]
    patience_s: float

    @classmethod
    def of(cls, capacity: float) -> Load:
        """Too much for an engine that completes `capacity` of them a second."""
        rng = random.Random(5)
        at, arrivals = 0.0, []
        for _ in range(OFFERED):
            at += rng.expovariate(OVERLOAD * capacity)
            arrivals.append(at)
        sizes = [rng.randint(*PROMPTS) for _ in range(OFFERED)]
        return cls(arrivals, sizes, max(PATIENCE / capacity, 1.0))

    async def against(self, base: str, seed: int) -> Run:
        """Send all of it; returns when the last answer has ended."""
        url = f"{base}/v1/chat/completions"
        headers = {"x-stainless-read-timeout": f"{self.patience_s:.3f}"}
        late: list[float] = []
        began = time.monotonic()

        async def client(number: int) -> tuple[Reply, float]:
            await asyncio.sleep(began + self.arrivals[number] - time.monotonic())
            late.append(time.monotonic() - began - self.arrivals[number])
            reply = await post(session, url, ask(self.sizes[number], seed + number), headers)
            return reply, time.monotonic() - began

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            ended = await asyncio.gather(*map(client, range(OFFERED)))
        seconds = max(at for _, at in ended)
        return Run([reply for reply, _ in ended], seconds, self.patience_s, max(late))


@dataclass(frozen=True)
class Run:
    """What became of a load, and the seconds until its last answer had ended.

    `late_s` is how much later than planned a client was sent at worst: so long this process itself
    was kept from running, and any time it took may be too long by as much.
    """

    replies: list[Reply]
    seconds: float
    patience_s: float
    late_s: float

    @property
    def served(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.complete]

    @property
    def refused(self) -> list[Reply]:
        return [reply for reply in self.replies if not reply.complete]

    @property
    def tokens_per_s(self) -> float:
        return sum(reply.usage["completion_tokens"] for reply in self.served) / self.seconds

    @property
    def in_time(self) -> int:
        """Answers whose first token came while it was of use."""
        return sum(reply.first_byte_s <= self.patience_s for reply in self.served)

    @property
    def ttft_p99_s(self) -> float:
        ordered = sorted(reply.first_byte_s for reply in self.served)
        return ordered[int(0.99 * (len(ordered) - 1))]

    def __str__(self) -> str:
        codes = Counter(str((r.error or {}).get("code")) for r in self.refused)
        refused = ", ".join(f"{count} {code}" for code, count in codes.items()) or "none"
        return (
            f"{OFFERED} offered, {len(self.served)} served, refused: {refused}; "
            f"TTFT p99 of those served {self.ttft_p99_s:.2f} s; "
            f"{self.in_time} first tokens within {self.patience_s:.1f} s, "
            f"{self.in_time / self.seconds:.2f} of them/s, "
            f"{self.tokens_per_s:.0f} tokens/s over {self.seconds:.1f} s; "
            f"clients came up to {self.late_s:.2f} s late"
        )


def predictions(gate: Gate) -> tuple[float, float]:
    """How far off the first tokens were that the gate expected, on the mean, and the share that came
    within its bound."""
    errors, within = [], 0
    for record in gate.records():
        if record.get("outcome") == "completed":
            took = record["ttft_ms"] - record["door_ms"] - record.get("queue_ms", 0.0)
            errors.append(abs(record["ttft_expected_ms"] / took - 1))
            within += took <= record["ttft_bound_ms"]
    return sum(errors) / len(errors), within / len(errors)


def ask(prompt_tokens: int, seed: int) -> dict[str, Any]:
    bias = {END_OF_TURN: ONE_IN_20}
    return streaming(
        chat_body(prompt_tokens, seed, max_tokens=CAP, logit_bias=bias) | {"temperature": 1}
    )


async def completions_per_s(engine: Engine) -> float:
    """How fast the engine completes such requests while it has enough of them.

    Counted between a sixth and two thirds of the way: the pool is full by then, and not yet empty.
    """
    rng = random.Random(6)
    sizes = [rng.randint(*PROMPTS) for _ in range(CALIBRATION)]
    replies = await chats(engine.url, [ask(size, 600 + k) for k, size in enumerate(sizes)])
    assert all(reply.complete for reply in replies)
    took = sorted(reply.total_s for reply in replies)
    first, last = CALIBRATION // 6, CALIBRATION * 2 // 3
    return (last - first) / (took[last] - took[first])


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_three_times_too_much(
    engine: Engine, make_gate: Callable[..., Gate], report: Note
) -> None:
    load = Load.of(capacity := await completions_per_s(engine))
    report(f"the engine completes {capacity:.2f} requests/s; {OVERLOAD * capacity:.2f} come")

    with LoadSampler(engine) as before:
        without = await load.against(engine.url, seed=1000)
    report(f"without the gate: {without}; {before}")

    gate = make_gate(engine)
    with LoadSampler(engine) as seen:
        through = await load.against(gate.url, seed=2000)
    report(f"through the gate: {through}; {seen}")
    off, within = predictions(gate)
    report(f"first tokens: off by {off:.0%} on the mean, {within:.0%} within the bound")

    assert not without.refused
    assert before.waiting > OFFERED / 4, "it was an overload"

    assert {reply.status for reply in through.refused} == {429}
    for reply in through.refused:
        error = reply.error
        assert error is not None
        assert error["code"] in REFUSALS
        assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert seen.retractions == 0
    assert seen.waiting_samples <= (1 - QUIET) * seen.samples, "who waits, waits at the gate"
    assert without.ttft_p99_s >= TIMES_LOWER * through.ttft_p99_s
    assert through.in_time / through.seconds >= without.in_time / without.seconds
    assert through.tokens_per_s >= AS_MANY_TOKENS * without.tokens_per_s
    assert gate.reserved() == 0
