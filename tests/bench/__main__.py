"""`make bench`: what the gate costs, beside the plainest pass-through, in one run.

Ratios carry over to other machines, times do not. Counting, ledgers, records and metrics are on.
Writes bench.json: {"rows": [{"target", "cpu_us_per_request", "cpu_us_per_chunk", "rps", "p50_ms",
"p99_ms"}]}, medians of the rounds.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import uvloop

from tests.bench.load import Seen, load, message

ROUNDS = 5
SECONDS = 3.0
STREAMS, CHUNKS, GAP = 64, 100, 0.01


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def wait_for(url: str) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    sys.exit(f"{url} did not come up")


async def rounds(targets: dict[str, tuple[int, int]]) -> list[dict[str, object]]:
    """In turns, so that a busy moment is unkind to all alike."""
    asks: dict[str, list[Seen]] = {name: [] for name in targets}
    alone: dict[str, list[Seen]] = {name: [] for name in targets}
    streams: dict[str, list[Seen]] = {name: [] for name in targets}
    short, long = message(stream=False), message(stream=True, chunks=CHUNKS, gap=GAP)
    for _ in range(ROUNDS):
        for name, (port, pid) in targets.items():
            asks[name].append(await load(port, short, connections=16, seconds=SECONDS, pid=pid))
            alone[name].append(await load(port, short, connections=1, seconds=1.0, pid=pid))
            streams[name].append(
                await load(port, long, connections=STREAMS, seconds=SECONDS, pid=pid)
            )
    rows = []
    for name in targets:
        if errors := sum(seen.errors for seen in asks[name] + alone[name] + streams[name]):
            sys.exit(f"{name}: {errors} answers were not a 200")
        median = statistics.median
        rows.append(
            {
                "target": name,
                "cpu_us_per_request": round(
                    median(s.cpu_s / len(s.latencies) * 1e6 for s in asks[name]), 1
                ),
                "cpu_us_per_chunk": round(
                    median(s.cpu_s / s.chunks * 1e6 for s in streams[name]), 1
                ),
                "rps": round(median(len(s.latencies) / s.seconds for s in asks[name])),
                "p50_ms": round(median(s.quantile_ms(0.5) for s in alone[name]), 3),
                "p99_ms": round(median(s.quantile_ms(0.99) for s in alone[name]), 3),
            }
        )
    return rows


def main() -> None:
    up, gate, control, plain = (free_port() for _ in range(4))
    upstream = f"http://127.0.0.1:{up}"
    running = [start("-m", "tests.bench.upstream", str(up))]
    try:
        wait_for(f"{upstream}/v1/models")
        listen = ("--listen", f"127.0.0.1:{gate}", "--control", f"127.0.0.1:{control}")
        served = start("-m", "gateway.cli", "serve", "--backend", upstream, *listen)
        running.append(served)
        passed = start("-m", "tests.bench.plain", str(plain), upstream)
        running.append(passed)
        wait_for(f"http://127.0.0.1:{control}/readyz")
        wait_for(f"http://127.0.0.1:{plain}/v1/models")
        targets = {"kvgate": (gate, served.pid), "plain aiohttp": (plain, passed.pid)}
        rows = uvloop.run(rounds(targets))
    finally:
        for process in running:
            process.terminate()
    for row in rows:
        print(row)
    Path("bench.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
