"""`kvgate stress URL`: concurrency x prompt x output, or the two demands of incident A.

    kvgate stress http://127.0.0.1:8080 --concurrency 1 4 16 --prompt 1000 --output 200
    kvgate stress http://127.0.0.1:8080 --demand agents --demand proof --json after.json
    kvgate stress --compare before.json after.json

A key goes into the environment as KVGATE_KEY, never on the command line. Exit codes: 0 when every
request was served, 1 when one was not, 2 usage.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.usage import UsageError, server_url, writable
from gateway.lab.loads import comparison, table
from gateway.lab.stress import DEMANDS, Point, stress

if TYPE_CHECKING:
    from collections.abc import Mapping


KEY = "a key goes into the environment as KVGATE_KEY"

EPILOG = (
    "Where the gate or the server wants a key, put it into the environment as KVGATE_KEY: a command "
    "line is seen by everybody on the machine."
)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(
        prog="kvgate stress",
        description="Put a server or a gate under load and say what its clients saw.",
        epilog=EPILOG,
    )
    p.add_argument("url", nargs="?", metavar="URL", help="http://HOST:PORT of a server or a gate")
    p.add_argument("--concurrency", type=int, nargs="+", default=[4], metavar="N")
    p.add_argument("--prompt", type=int, nargs="+", default=[1000], metavar="TOKENS")
    p.add_argument(
        "--output",
        type=int,
        nargs="+",
        default=[200],
        metavar="TOKENS",
        help="generated in full; 0: no max_tokens",
    )
    p.add_argument("--each", type=int, default=2, metavar="N", help="requests of each asker")
    p.add_argument(
        "--demand",
        action="append",
        choices=sorted(DEMANDS),
        help="incident A instead of a grid: agents (3 × 19,000 in, no cap) or proof "
        "(3 × 14,000 in, 15,181 out); one request an asker",
    )
    p.add_argument("--model", default="default")
    p.add_argument("--json", type=Path, metavar="PATH", help="write the result there")
    p.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="two results side by side, nothing sent",
    )
    return p


def run(argv: list[str]) -> int:
    """Load, or compare."""
    args = parser().parse_args(argv)
    if args.compare is not None:
        return compare(*args.compare, prog="stress")
    sizes = [*args.concurrency, *args.prompt, args.each]
    if args.url is None or min(sizes) < 1 or min(args.output) < 0:
        wrong = "a URL (or --compare BEFORE AFTER) and sizes of at least 1; --output may be 0"
        print(f"kvgate stress: this takes {wrong}.", file=sys.stderr)  # noqa: T201
        return 2
    try:
        url = server_url(args.url, KEY)
        writable("--json", args.json)
    except UsageError as error:
        print(f"kvgate stress: {error}", file=sys.stderr)  # noqa: T201
        return 2
    if args.demand:
        points, each = [DEMANDS[name] for name in args.demand], 1
    else:
        grid = itertools.product(args.concurrency, args.prompt, args.output)
        points, each = [Point(*sizes) for sizes in grid], args.each
    result = asyncio.run(
        stress(
            url,
            points,
            each=each,
            model=args.model,
            headers=key_headers(),
            progress=lambda point, done, total: progress(point.name, done, total),
        )
    )
    return finish(result, args.json)


def key_headers() -> dict[str, str]:
    """The key of the environment, as a header."""
    key = os.environ.get("KVGATE_KEY")
    return {} if not key else {"authorization": f"Bearer {key}"}


def progress(what: str, done: int, total: int) -> None:
    """One line that moves, where there is somebody to look at it."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r\x1b[2K{what}: {done} of {total}", end=end, file=sys.stderr, flush=True)  # noqa: T201


def finish(result: Mapping[str, Any], path: Path | None) -> int:
    """Show the table, write the file; 1 when not everything was served."""
    print(table(result))  # noqa: T201
    if path is not None:
        path.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 1 if any(row["errors_total"] for row in result["rows"]) else 0


def compare(before: Path, after: Path, *, prog: str) -> int:
    """Print two results side by side; 2 with a sentence where that cannot be."""
    try:
        results = [json.loads(path.read_text(encoding="utf-8")) for path in (before, after)]
        print(comparison(*results))  # noqa: T201
    except BrokenPipeError:
        raise  # whoever reads the output has read enough
    except (OSError, ValueError, KeyError, TypeError) as error:
        words = f"no result of kvgate stress or replay ({error})"
        print(f"kvgate {prog}: {words}", file=sys.stderr)  # noqa: T201
        return 2
    return 0
