"""`kvgate schema`: the JSON schema of policy files, for editors."""

from __future__ import annotations

import argparse
import json

from gateway.policy.load import json_schema


def run(argv: list[str]) -> int:
    """Print it."""
    argparse.ArgumentParser(prog="kvgate schema", description=__doc__).parse_args(argv)
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))  # noqa: T201
    return 0
