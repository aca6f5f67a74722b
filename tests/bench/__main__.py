"""`make bench`: what the gate costs, beside the plainest pass-through and other gateways, in one run.

Ratios carry over to other machines, times do not. Exact counting, ledgers, records and metrics are on
in the gate, and each request ends in words never sent before. All are in front of one server that
costs next to nothing and whose time is not counted; they take turns in every round, so that a busy
moment is unkind to all alike. Processor time is that of the process and its children, from the kernel.

Writes bench.json: {"rows": [{"target", "cpu_us_per_request", "cpu_us_per_chunk", "rps", "p50_ms",
"p99_ms", …}], …}, medians of the rounds, and prints them as a table. See docs/bench.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import deque
from pathlib import Path

import uvloop

from tests.bench import targets, vocabulary
from tests.bench.load import BODY_BYTES, Message, load
from tests.bench.processes import Processes, answers, free_port
from tests.bench.report import Rounds, machine, row, table
from tests.bench.waiting import enough_files, waiting

CONNECTIONS, STREAMS = 16, 64
SETTLE_S = 5.0
"""After a target answers: workers that are found in the background, calibrations."""
TURNS = 4
"""Of each process in a round."""
POOL = 1200
"""Tokens of a server that takes one request of BODY_BYTES, and not two."""
FILES = 45_000
"""Open at once: two for each of ten thousand that wait, at both ends."""


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    p.add_argument("--only", help="names of targets, with commas")
    p.add_argument(
        "--waiting", type=int, default=10_000, help="requests that wait; 0: not measured"
    )
    p.add_argument("--streams", type=int, default=STREAMS, help="open at once")
    p.add_argument("--fresh", action="store_true", help="nothing of a prompt was sent before")
    p.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="the gate of another checkout",
    )
    p.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="this gate, run by another Python that has what it needs",
    )
    p.add_argument("--json", type=Path, default=Path("bench.json"))
    return p.parse_args()


class Bench:
    """One run."""

    def __init__(self, args: argparse.Namespace, processes: Processes, scratch: Path) -> None:
        self._args, self._processes, self._scratch = args, processes, scratch
        also = dict(one.split("=", 1) for one in args.also)
        pythons = dict(one.split("=", 1) for one in args.python)
        chosen, self.missing = targets.all_targets(also, pythons)
        only = args.only.split(",") if args.only else [one.name for one in chosen]
        self._targets = [one for one in chosen if one.name in only]
        self.gone: list[targets.Target] = []

    async def run(self) -> list[dict[str, object]]:
        """The rows."""
        direct, seen = await self._speed()
        if self._args.waiting:
            for target in self._targets:
                if target in seen:
                    seen[target].waiting_bytes = await self._waiting(target)
        return [row(one.name, one.version, rounds, direct) for one, rounds in seen.items()]

    def _server(self, *more: str) -> str:
        port = free_port()
        argv = [sys.executable, "-m", "tests.bench.upstream", str(port), *more]
        self._upstream = self._processes.start("upstream", argv), port
        url = f"http://127.0.0.1:{port}"
        if not answers(f"{url}/v1/models", 20.0):
            sys.exit("the fake server did not come up")
        return url

    def _launch(self, target: targets.Target, url: str) -> targets.Running | None:
        running = targets.launch(target, self._processes, url, self._scratch)
        if running is None:
            self.missing[f"{target.name} {target.version}".strip()] = "it did not answer"
            self.gone.append(target)
        return running

    async def _speed(self) -> tuple[Rounds, dict[targets.Target, Rounds]]:
        """In turns, in new processes each round. The server asked directly is measured at one connection.

        The same code differed by a sixth between two processes measured one after the other: the machine's
        speed wanders within seconds, and a twentieth hangs on what is drawn at a process's start (where its
        memory lies, how it hashes). So turns are short, all are there at once, and nobody is always first.
        """
        url = self._server()
        pid, port = self._upstream
        direct, short = Rounds(), Message(stream=False, fresh=self._args.fresh)
        seen = {target: Rounds() for target in self._targets}
        for _ in range(self._args.rounds):
            found = [self._launch(target, url) for target in self._targets]
            all_ = deque(one for one in found if one is not None)
            await asyncio.sleep(SETTLE_S)
            for one in all_:  # pools, caches, code that is compiled when it is first used
                await load(one.port, short, connections=CONNECTIONS, seconds=1.0, pid=one.pid)
            for _ in range(TURNS):
                direct.alone.append(await load(port, short, connections=1, seconds=0.5, pid=pid))
                for one in tuple(all_):
                    await self._turn(one, seen[one.target])
                all_.rotate()
            for one in all_:
                self._processes.end(one.pid)
            # Started first, the same code took a twenty-fifth more than second (four pairs of five).
            there = [one for one in self._targets if one not in self.gone]
            self._targets = there[1:] + there[:1]
        for target, told in seen.items():
            if told.errors:
                sys.exit(f"{target.name}: {told.errors} answers were not a 200")
        return direct, {one: told for one, told in seen.items() if one not in self.gone}

    async def _turn(self, one: targets.Running, told: Rounds) -> None:
        """One of its turns."""
        at, seconds = {"port": one.port, "pid": one.pid}, self._args.seconds / TURNS
        short = Message(stream=False, fresh=self._args.fresh)
        long = Message(stream=True, fresh=self._args.fresh)
        told.asks.append(await load(**at, message=short, connections=CONNECTIONS, seconds=seconds))
        told.alone.append(await load(**at, message=short, connections=1, seconds=0.5))
        streams = min(self._args.streams, one.target.most_streams)
        probe = one.target.alive
        told.streams.append(
            await load(**at, message=long, connections=streams, seconds=seconds, probe=probe)
        )

    async def _waiting(self, target: targets.Target) -> float | None:
        """One at a time: thousands of connections each."""
        running = self._launch(target, self._server(str(POOL)))
        if running is None:
            return None
        await asyncio.sleep(SETTLE_S)
        held = Message(stream=True)
        number = min(self._args.waiting, target.most_waiting)
        try:
            return await waiting(running.port, held, requests=number, pid=running.pid)
        finally:
            self._processes.end(running.pid)
            self._processes.end(self._upstream[0])


def main() -> None:
    args = options()
    enough_files(FILES)
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    with Processes(scratch) as processes:
        bench = Bench(args, processes, scratch)
        rows = uvloop.run(bench.run())
    told = {
        "machine": machine(),
        "tokenizer": vocabulary.name(),
        "rounds": args.rounds,
        "body_bytes": BODY_BYTES,
        "not_measured": bench.missing,
    }
    args.json.write_text(json.dumps({"rows": rows, **told}, indent=1) + "\n")
    print(table(rows, bench.missing, args.streams))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
