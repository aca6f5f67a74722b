"""`kvgate twin`: a model of an SGLang server with its HTTP face, to try things on."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys

from gateway.twin.profiles import PROFILES
from gateway.twin.server import TwinServer

LAST_PORT = 65_535

EPILOG = (
    "It has chats, completions, generate and messages (from 0.5.12 on), and what tells of the server. "
    "It has no responses, embeddings, rerank, score or classify: a gate before it passes on its 404, or refuses scores "
    "as it would before a server of that version."
)


def run(argv: list[str]) -> int:
    """Serve until interrupted; prints one line when ready."""
    p = argparse.ArgumentParser(prog="kvgate twin", description=__doc__, epilog=EPILOG)
    p.add_argument("--profile", choices=sorted(PROFILES), default=next(iter(PROFILES)))
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=30000)
    p.add_argument("--version", default="0.5.17", help="the SGLang version to behave like")
    p.add_argument("--speed", type=float, default=1.0, help="how much faster time runs")
    args = p.parse_args(argv)
    if not 0 <= args.port <= LAST_PORT or not 0 < args.speed < math.inf:
        print(  # noqa: T201
            f"kvgate twin: --port takes 0 (any) to {LAST_PORT} and --speed a number above 0, "
            f"not {args.port} and {args.speed:g}",
            file=sys.stderr,
        )
        return 2

    async def serve() -> None:
        server = TwinServer(
            PROFILES[args.profile],
            version=args.version,
            host=args.host,
            port=args.port,
            speed=args.speed,
        )
        async with server:
            print(f"kvgate twin ready on {server.url}", flush=True)  # noqa: T201
            await asyncio.Event().wait()

    try:
        asyncio.run(serve())
    except BrokenPipeError:
        raise  # whoever reads the output has read enough
    except (OSError, OverflowError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        print(f"kvgate twin: {why}", file=sys.stderr)  # noqa: T201
        return 2
    return 0
