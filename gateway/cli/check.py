"""`kvgate check POLICY…`: validate policy files, all mistakes at once."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.policy.load import load_policy
from gateway.policy.notes import notes
from gateway.policy.problems import PolicyError


def run(argv: list[str]) -> int:
    """0 when every file is good, 2 when one is not."""
    p = argparse.ArgumentParser(prog="kvgate check", description="Validate policy files.")
    p.add_argument("policies", nargs="+", type=Path, metavar="POLICY")
    bad = False
    for path in p.parse_args(argv).policies:
        try:
            policy = load_policy(path)
        except PolicyError as error:
            bad = True
            print(error, file=sys.stderr)  # noqa: T201
        else:
            servers = ", ".join(backend.name for backend in policy.backends)
            print(f"{path}: good, in front of {servers}")  # noqa: T201
            for note in notes(policy):
                print(f"{path}: note: {note}")  # noqa: T201
    return 2 if bad else 0
