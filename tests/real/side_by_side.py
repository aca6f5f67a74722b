"""The same load for a genuine engine and for its twin, and what each made of it.

All requests of a load wait when the first of them is let in: they come while a plug, one request
that fills the pool, runs, and the scheduler is frozen while they are sent. So nothing depends on how
fast this machine is, and the two can be compared decision by decision. What the scheduler decided
stands in its log, a line a prefill pass; that of the plug is left out.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp

from gateway.twin.engine import Engine as TwinEngine
from gateway.twin.jobs import Finished, Job
from gateway.twin.profiles import TINY_CPU
from gateway.twin.versions import traits_of
from tests.real.install import SGLANG_VERSION
from tests.real.load import CLIENT_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.real.engine import Engine

ENDLESS = 1 << 30  # tokens a model wants to say that never stops by itself: random weights

PREFILL = re.compile(
    r"Prefill batch, #new-seq: (\d+), #new-token: (\d+), #cached-token: (\d+), .*?"
    r"#running-req: (\d+), #queue-req: (\d+)"
)

# Leaves no room for anybody beside it, and lasts 40 steps: so long those that were sent meanwhile may
# take to be received after the thaw.
PLUG = (1990, 40)
PLUGS = 5  # tries to freeze a plug while it runs: 0.2 s on a quiet machine

# Round trips through SGLang's event loop before the scheduler is thawed. Each lets every request
# that was sent before it go on by a step, and from reading a request to handing it to the scheduler
# there are fewer steps than this.
ROUND_TRIPS = 50


@dataclass
class Account:
    """What became of a load: a prefill pass is (requests, tokens, cached tokens, running, queued),
    requests are told by their place in the load."""

    passes: list[tuple[int, ...]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    retractions: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)  # in order of first admission
    ended: list[int] = field(default_factory=list)  # in order of their ends

    @property
    def most_running(self) -> int:
        """Requests that ran at once."""
        return max((new + running for new, _, _, running, _ in self.passes), default=0)


Load = "Sequence[tuple[int, int]]"
"""(prompt, cap) of each request, tokens."""


def prompts(load: Sequence[tuple[int, int]], seed: int) -> list[list[int]]:
    """Token ids of each prompt: no two begin alike, so that no cache joins them."""
    rng = random.Random(seed)
    return [[1000 + rng.randrange(100_000) for _ in range(prompt)] for prompt, _ in load]


async def real(engine: Engine, load: Sequence[tuple[int, int]], seed: int) -> Account:
    """Run `load` on the genuine engine."""
    before = engine.log.stat().st_size
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=CLIENT_TIMEOUT) as session:
        plug = await _plugged(session, engine)
        try:
            asked = []
            for ids, (_, cap) in zip(prompts(load, seed), load, strict=True):
                body = {
                    "input_ids": ids,
                    "sampling_params": {"max_new_tokens": cap, "temperature": 0},
                }
                asked.append(asyncio.create_task(_generate(session, engine.url, body)))
                await _round_trips(session, engine.url, 2)  # so that they arrive in this order
            await _round_trips(session, engine.url, ROUND_TRIPS)
        finally:
            engine.thaw()
        await plug
        replies = await asyncio.gather(*asked)
    with engine.log.open("rb") as log:
        log.seek(before)
        text = log.read().decode(errors="replace")
    passes = [tuple(map(int, found)) for found in PREFILL.findall(text)]
    plugs = [at for at, one in enumerate(passes) if one[1] == PLUG[0]]
    account = Account(passes=passes[plugs[-1] + 1 :])
    times: dict[str, dict[int, float]] = {"forward_entry_time": {}, "request_finished_ts": {}}
    for index, (status, body) in enumerate(replies):
        account.statuses.append(status)
        meta = body.get("meta_info", {}) if status == 200 else {}
        account.tokens.append(meta.get("completion_tokens", 0))
        account.retractions.append(meta.get("num_retractions", 0))
        for key, known in times.items():
            if key in meta:
                known[index] = meta[key]
    account.started, account.ended = (sorted(known, key=known.get) for known in times.values())  # type: ignore[arg-type]
    return account


def twin(load: Sequence[tuple[int, int]], **arguments: Any) -> Account:
    """Run `load` on a twin with other launch `arguments` (fields of a profile)."""
    machine = TwinEngine(TINY_CPU.with_(**arguments), traits_of(SGLANG_VERSION))
    account = Account()
    jobs = [Job(f"{index}", prompt, ENDLESS, cap) for index, (prompt, cap) in enumerate(load)]
    run_prefill = machine._run_prefill

    def noted(batch: list[tuple[Job, int]], now: float) -> None:
        fresh = [job for job, _ in batch if not job.retractions and job.filled == job.shared]
        account.started += [
            jobs.index(job) for job in fresh if jobs.index(job) not in account.started
        ]
        sizes = sum(size for _, size in batch)
        cached = sum(job.shared for job, _ in batch)
        account.passes.append(
            (len(batch), sizes, cached, len(machine._batch), len(machine._line.queue))
        )
        run_prefill(batch, now)

    machine.submit(Job("plug", PLUG[0], ENDLESS, PLUG[1]), 0.0)
    machine._run_prefill = noted  # type: ignore[method-assign]
    for job in jobs:
        machine.submit(job, 0.0)
    ends: dict[int, Finished] = {}
    while (wake := machine.next_wakeup()) is not None:
        for event in machine.advance(wake):
            if isinstance(event, Finished) and event.rid != "plug":
                ends[int(event.rid)] = event
    account.statuses = [ends[index].status or 200 for index in range(len(load))]
    account.tokens = [
        ends[index].out if not ends[index].status else 0 for index in range(len(load))
    ]
    account.retractions = [
        job.retractions if not ends[i].status else 0 for i, job in enumerate(jobs)
    ]
    account.ended = [index for index, end in ends.items() if not end.status]
    account.started = [index for index in account.started if not ends[index].status]
    return account


async def _plugged(session: aiohttp.ClientSession, engine: Engine) -> asyncio.Task[Any]:
    """Freeze the scheduler while a plug runs; the task of the plug."""
    for attempt in range(PLUGS):
        (ids,) = prompts([PLUG], seed=1000 + attempt)
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": PLUG[1], "temperature": 0},
        }
        plug = asyncio.create_task(_generate(session, engine.url, body))
        while not plug.done():
            async with session.get(f"{engine.url}/v1/loads") as reply:
                (load,) = (await reply.json())["loads"]
            if load["num_running_reqs"]:
                break
        engine.freeze()
        await _round_trips(session, engine.url, ROUND_TRIPS)
        if not plug.done():
            return plug
        engine.thaw()
        await plug
    message = f"no plug was still running when it was to be frozen, in {PLUGS} tries"
    raise AssertionError(message)


async def _generate(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    async with session.post(f"{url}/generate", json=body) as reply:
        return reply.status, await reply.json()


async def _round_trips(session: aiohttp.ClientSession, url: str, count: int) -> None:
    for _ in range(count):
        async with session.get(f"{url}/v1/models") as reply:
            await reply.read()
