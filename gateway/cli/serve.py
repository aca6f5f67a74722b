"""`kvgate serve`: the gate, until SIGTERM or SIGINT.

Prints one line to stdout once a server takes work; everything else goes to the log on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.lease.store import StoreError
from gateway.observe.log import configure
from gateway.policy.problems import PolicyError
from gateway.policy.source import Source
from gateway.tasks import spawn

if TYPE_CHECKING:
    from gateway.app import App

if sys.platform == "win32":
    _run = asyncio.run
else:
    import uvloop

    _run = uvloop.run


YOUNG = 5_000
"""New objects before the collector looks at them (Python's own 700 is for small programs): a request
that waits has a hundred, and looking at those again and again frees nothing."""


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(
        prog="kvgate serve",
        description="Stand in front of SGLang: count, cap, reserve, queue, relay, explain.",
    )
    p.add_argument("policy", nargs="?", type=Path, help="policy file (YAML)")
    p.add_argument("--backend", action="append", default=[], metavar="URL", help="an SGLang server")
    p.add_argument("--listen", metavar="HOST:PORT", help="data plane (default 127.0.0.1:8080)")
    p.add_argument("--control", metavar="HOST:PORT", help="control plane (default 127.0.0.1:8081)")
    p.add_argument("--tokenizer", metavar="DIR", help="directory with tokenizer.json")
    return p


async def _tell_when_ready(app: App) -> None:
    """The one line on stdout: from here on a request is served, not refused for want of a server."""
    await app.fleet.open.wait()
    # What is here now stays: looking through it for garbage stopped the loop for 0.1-0.2 s at a time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
    print(f"kvgate ready on {app.listen_url}, control on {app.control_url}", flush=True)  # noqa: T201


def run(argv: list[str]) -> int:
    """Serve until told to stop."""
    args = parser().parse_args(argv)
    source = Source(args.policy, tuple(args.backend), args.listen, args.control, args.tokenizer)
    try:
        policy = source.load()
    except PolicyError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    configure(policy.observe.log_level)
    # Only here: a bad policy is told before anything is loaded.
    from gateway.app import App  # noqa: PLC0415

    async def serve() -> int:
        try:
            app = App(policy, source)
        except StoreError as error:
            print(f"kvgate: {error}", file=sys.stderr)  # noqa: T201
            return 2
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, stop.set)
        loop.add_signal_handler(
            signal.SIGHUP, lambda: spawn(app.reload.now("SIGHUP"), "reload on SIGHUP")
        )
        try:
            await app.start()
        except OSError as error:
            why = error.strerror or error
            remedy = "end what listens there, or choose others with --listen and --control"
            print(f"kvgate: cannot listen: {why}; {remedy}", file=sys.stderr)  # noqa: T201
            await app.close()  # one of the two may be open, and uvloop would wait for it
            return 2
        told = spawn(_tell_when_ready(app), "tell when ready")
        await stop.wait()
        told.cancel()
        drained = await app.stop()
        return 1 if drained.cut else 0

    return _run(serve())
