"""`python -m tests.soak --minutes N --seed S`: prints the report, exits 1 if a promise broke."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.soak.run import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long clients ask")
    parser.add_argument("--seed", type=int, default=1, help="of clients, faults and lengths")
    args = parser.parse_args()
    report = asyncio.run(soak(args.minutes * 60, args.seed))
    print("\n".join(report.lines()))
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
