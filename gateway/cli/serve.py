"""`kvgate serve`: the gate, until SIGTERM or SIGINT.

Prints one line to stdout once a server takes work; everything else goes to the log on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from gateway.observe.log import configure, write_aside
from gateway.policy.problems import PolicyError
from gateway.policy.source import Source

if sys.platform == "win32":
    _run = asyncio.run
else:
    import uvloop

    _run = uvloop.run


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
    p.add_argument("--workers", type=int, metavar="N", help="processes on the one port (default 1)")
    return p


def run(argv: list[str]) -> int:
    """Serve until told to stop."""
    args = parser().parse_args(argv)
    source = Source(
        args.policy, tuple(args.backend), args.listen, args.control, args.tokenizer, args.workers
    )
    try:
        policy = source.load()
    except PolicyError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    write_aside()
    configure(policy.observe.log_level)
    # Only here: a bad policy is told before anything is loaded.
    if policy.workers > 1:
        from gateway.workers.supervisor import supervise  # noqa: PLC0415

        return _run(supervise(policy, source))
    from gateway.app import App  # noqa: PLC0415
    from gateway.process import say_ready, serve  # noqa: PLC0415

    def tell(app: App) -> None:
        say_ready(app.listen_url, app.control_url)

    return _run(serve(lambda: App(policy, source), ready=tell))
