"""The gate of a soak: `kvgate serve`, and a snapshot of its inside for each line on its stdin."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
from pathlib import Path
from typing import Any

import uvloop

from gateway.app import App
from gateway.observe.log import configure
from gateway.policy.load import load_policy


def snapshot(app: App, handled: int) -> dict[str, Any]:
    """What the process holds now."""
    view = app.gate.view()
    pools = [
        (str(p.pool), p.kv.limit, p.kv.reserved, p.prefill.reserved, p.slots.reserved)
        for p in view.pools
    ]
    server = app.listeners.runners[0].server
    return {
        "rss": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "tasks": len(asyncio.all_tasks()),
        "connections": 0 if server is None else len(server.connections),
        "upstream": sum(backend.client.stats.open for backend in app.fleet),
        "handled": handled,
        "pools": pools,
        "queue": (view.queue.requests, view.queue.tokens, view.queue.bytes),
        "clients": len(view.clients),
        "waiters": len(app.gate._waiters),
        "holding": app.gate.holding,
        "running": len(app.reaper._running),
        "dying": app.reaper.dying,
        "totals": app.journal.totals.to_dict(),
        "timers": len(app.gate.core.books._timers),
    }


async def serve(policy: Path) -> None:
    """Until stdin ends."""
    app = App(load_policy(policy, env={}))
    handled = 0
    generate = app.data._generate

    async def counted(*args: Any) -> Any:
        nonlocal handled
        handled += 1
        return await generate(*args)

    app.data._generate = counted  # type: ignore[method-assign]
    await app.start()
    await app.fleet.open.wait()
    print(json.dumps({"listen": app.listen_url, "control": app.control_url}), flush=True)
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        if line.strip() == b"gc":
            gc.collect()
        print(json.dumps(snapshot(app, handled)), flush=True)
    await app.stop()


if __name__ == "__main__":
    configure("error")
    uvloop.run(serve(Path(sys.argv[1])))
