"""`kvgate check POLICY…`: validate policy files, all mistakes at once."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.policy.load import load_policy
from gateway.policy.notes import notes
from gateway.policy.problems import PolicyError

STDIN = "-"
"""What is read from standard input. A file of that name is ./-."""


def run(argv: list[str]) -> int:
    """0 when every file is good, 2 when one is not."""
    p = argparse.ArgumentParser(prog="kvgate check", description="Validate policy files.")
    p.add_argument("policies", nargs="+", metavar="POLICY", help="a file, or - for standard input")
    bad = False
    for name in p.parse_args(argv).policies:
        given = sys.stdin.buffer.read() if name == STDIN else None
        # Paths in it then count from here.
        path = Path(name if given is None else "stdin")
        try:
            policy = load_policy(path, text=given)
        except PolicyError as error:
            bad = True
            print(error, file=sys.stderr)  # noqa: T201
        else:
            servers = ", ".join(backend.name for backend in policy.backends)
            print(f"{path}: good, in front of {servers}")  # noqa: T201
            for note in notes(policy):
                print(f"{path}: note: {note}")  # noqa: T201
    return 2 if bad else 0
