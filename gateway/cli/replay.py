"""`kvgate replay RECORDS URL`: the same arrivals, sizes and shared beginnings, with made-up text.

RECORDS is the JSON-lines file the gate writes. Compare a change with `--json` before and after, and
`kvgate stress --compare`. A key goes into the environment as KVGATE_KEY. Exit codes: 0 when every
request was served, 1 when one was not, 2 usage.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from pathlib import Path

from gateway.cli.stress import EPILOG, KEY, finish, key_headers, progress
from gateway.cli.usage import UsageError, server_url, writable
from gateway.lab.replay import read, replay


def run(argv: list[str]) -> int:
    """Replay once."""
    p = argparse.ArgumentParser(
        prog="kvgate replay", description=__doc__.splitlines()[0], epilog=EPILOG
    )
    p.add_argument("records", type=Path, metavar="RECORDS", help="the gate's records, JSON lines")
    p.add_argument("url", metavar="URL", help="http://HOST:PORT of a server or a gate")
    p.add_argument("--faster", type=float, default=1.0, metavar="X", help="divide pauses by X")
    p.add_argument(
        "--as-asked",
        action="store_true",
        help="send the caps the clients sent, instead of making answers as long as they were",
    )
    p.add_argument("--model", default="default")
    p.add_argument("--json", type=Path, metavar="PATH", help="write the result there")
    args = p.parse_args(argv)
    try:
        requests = read(args.records)
        url = server_url(args.url, KEY)
        if not 0 < args.faster < math.inf:
            raise UsageError("--faster must be a number above 0.")  # noqa: TRY301
        writable("--json", args.json)
    except OSError as error:
        words = f"{args.records} cannot be read: {error.strerror or error}"
        print(f"kvgate replay: {words}", file=sys.stderr)  # noqa: T201
        return 2
    except (UsageError, ValueError) as error:
        print(f"kvgate replay: {error}", file=sys.stderr)  # noqa: T201
        return 2
    result = asyncio.run(
        replay(
            url,
            requests,
            faster=args.faster,
            as_asked=args.as_asked,
            model=args.model,
            headers=key_headers(),
            progress=lambda done, total: progress("replay", done, total),
        )
    )
    return finish(result, args.json)
