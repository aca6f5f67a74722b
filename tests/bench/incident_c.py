"""Incident C over HTTP: twin, gate and collector as they are, agents as clients, in real time.

`python -m tests.bench.incident_c --folder DIR` takes half an hour and prints the verdicts and the
files that are left. `--speed 6` makes the twin's time, and the looks, that many times faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from gateway.app import App
from gateway.observe.log import configure
from gateway.policy.schema import Backend, Client, HeaderMatch, Observe, Policy, Queue
from gateway.twin.profiles import L20X4
from gateway.twin.server import TwinServer
from tests.observe import incident_c
from tests.observe.watched import BLOCK, Agent

KINDS = ("person", "agent", "job", "late")


def policy(url: str, folder: Path, speed: float) -> Policy:
    return Policy(
        backends=(Backend(name="l20", url=url, slots=incident_c.SLOTS),),
        clients=tuple(Client(name=k, header=HeaderMatch(name="x-kind", value=k)) for k in KINDS),
        queue=Queue(max_wait_s=600.0 / speed),
        observe=Observe(
            collect=folder, collect_every_s=5.0 / speed, records=folder / "records.jsonl"
        ),
        listen="127.0.0.1:0",
        control="127.0.0.1:0",
        drain_s=1.0,
    )


async def ask(http: aiohttp.ClientSession, url: str, agent: Agent, at: float) -> None:
    arrival = agent.ask(at)
    # Each block has a token of its own, as far as a vocabulary goes: nobody shares a beginning.
    tokens = (block * 7_919 % 151_643 for block in arrival.blocks for _ in range(BLOCK))
    prompt = [*tokens, *[1] * 100]
    body = {
        "prompt": prompt,
        "max_tokens": arrival.cap,
        "stream": True,
        "twin_output_tokens": arrival.output,
    }
    kind = agent.name.rstrip("0123456789")
    async with http.post(f"{url}/v1/completions", json=body, headers={"x-kind": kind}) as answer:
        async for _ in answer.content.iter_any():
            pass


async def live(
    agent: Agent, http: aiohttp.ClientSession, url: str, start: float, speed: float
) -> None:
    """Ask, think, ask again. What fails is tried again after a second, as agents do."""

    def now() -> float:
        return (asyncio.get_running_loop().time() - start) * speed

    await asyncio.sleep((agent.start - now()) / speed)
    while now() < agent.until:
        try:
            await ask(http, url, agent, now())
        except aiohttp.ClientError:
            await asyncio.sleep(1.0 / speed)
        await asyncio.sleep(agent.think_s / speed)


async def run(folder: Path, speed: float, seconds: float) -> list[Any]:
    async with TwinServer(L20X4, speed=speed) as twin:
        app = App(policy(twin.url, folder, speed))
        await app.start()
        try:
            await app.fleet.open.wait()
            timeout = aiohttp.ClientTimeout(total=None)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
                start = asyncio.get_running_loop().time()
                lives = [
                    asyncio.ensure_future(live(agent, http, app.listen_url, start, speed))
                    for agent in incident_c.people()
                ]
                end = min(seconds, incident_c.KILL_AT)
                await asyncio.sleep(end / speed)
                if seconds > end:
                    twin.kill()
                    await asyncio.sleep((seconds - end) / speed)
                for one in lives:
                    one.cancel()
                await asyncio.gather(*lives, return_exceptions=True)
                async with http.get(f"{app.control_url}/history") as answer:
                    return list((await answer.json())["minutes"])
        finally:
            await app.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=incident_c.SECONDS)
    args = parser.parse_args()
    configure("warning")
    before = time.process_time()
    minutes = uvloop.run(run(args.folder, args.speed, args.seconds))
    for one in minutes:
        print(one["at"][11:16], one["verdict"]["class"], one["verdict"]["sentence"]["en"])
    for path in sorted(args.folder.iterdir()):
        print(path.name, path.stat().st_size)
    print(json.dumps(minutes[len(minutes) // 2]["servers"]))
    print(f"{time.process_time() - before:.0f} s of processor time")


if __name__ == "__main__":
    main()
