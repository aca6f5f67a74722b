"""Concurrency x prompt x output against a URL: what a server does when that many ask at once.

Each point of the grid is a closed loop: `concurrency` askers, each sending its next request when the
last has ended, well or badly. Points run one after the other. Prompts begin differently, so that no
prefix cache makes the second point look better than the first.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from gateway.lab import synthetic
from gateway.lab.caller import Caller, Shot
from gateway.lab.loads import rows
from gateway.tasks import spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

UNCAPPED = 0
"""An output of 0 sends no max_tokens: the model stops when it stops, or the server's limit does."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the grid, tokens. A given `output` is generated in full (ignore_eos)."""

    concurrency: int
    prompt: int
    output: int

    @property
    def name(self) -> str:
        """As it stands in a table."""
        output = "no cap" if self.output == UNCAPPED else f"{self.output:,} out"
        return f"{self.concurrency} × {self.prompt:,} in, {output}"

    @property
    def fields(self) -> dict[str, Any]:
        """What its requests carry besides their text."""
        if self.output == UNCAPPED:
            return {}
        return {"max_tokens": self.output, "ignore_eos": True}


DEMANDS = {
    # Incident A: three agents, 19,000 tokens each and no max_tokens, where the server allowed
    # 32,000: 153,000 promised to a pool of 67,375. It crashed.
    "agents": Point(3, 19_000, UNCAPPED),
    # Incident A's own proof of its remedy: three at once with 14,000 tokens in and really 15,181
    # generated, 87,543 in all.
    "proof": Point(3, 14_000, 15_181),
}


async def stress(
    url: str,
    points: Sequence[Point],
    *,
    each: int = 1,
    model: str = "default",
    headers: Mapping[str, str] | None = None,
    seed: int = 0,
    progress: Callable[[Point, int, int], None] = lambda _point, _done, _total: None,
) -> dict[str, Any]:
    """Run every point, `each` requests an asker. Returns ``{"rows": [...], "config": ...}``.

    `progress` hears (point, ended, total of the point).
    """
    shots: list[Shot] = []
    rng = random.Random(seed)  # noqa: S311 - filler text, not secrets
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        for point in points:
            over: list[Shot] = []

            def ended(shot: Shot, point: Point = point, over: list[Shot] = over) -> None:
                over.append(shot)
                progress(point, len(over), point.concurrency * each)

            caller = Caller(session, url, model, ended)
            askers = [
                spawn(
                    _ask(caller, point, each, random.Random(rng.random()), headers or {}),  # noqa: S311
                    "stress",
                )
                for _ in range(point.concurrency)
            ]
            try:
                await asyncio.gather(*askers)
            finally:
                for asker in askers:
                    asker.cancel()
            shots += over
    return {
        "rows": rows(shots),
        "config": {
            "url": url,
            "each": each,
            "seed": seed,
            "points": [point.name for point in points],
        },
    }


async def _ask(
    caller: Caller, point: Point, each: int, rng: random.Random, headers: Mapping[str, str]
) -> None:
    for _ in range(each):
        chosen = synthetic.words(point.prompt - synthetic.FRAME, rng)
        shot = Shot(point.name)
        await caller.send(shot, synthetic.sentence(chosen), point.fields, headers)
