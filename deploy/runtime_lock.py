"""The part of requirements.lock that a plain installation of the gate brings with it, on stdout.

The lock pins the tests' and linters' packages too. What of it the gate itself needs, directly or
through others, is read from the metadata of what is installed: run this with the Python of an
environment made from the lock (`make sbom` does). Exit code 1 where something is not installed.
"""

# ruff: noqa: INP001 - a script, in no package

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def closure(wanted: list[str]) -> set[str]:
    """Canonical names of all packages that the requirements `wanted` bring in on this platform."""
    found: dict[str, set[str]] = {}  # name: extras already followed
    todo = [Requirement(text) for text in wanted]
    while todo:
        one = todo.pop()
        name, extras = canonicalize_name(one.name), {"", *one.extras}
        if name in found and extras <= found[name]:
            continue
        found.setdefault(name, set()).update(extras)
        for text in metadata.requires(name) or ():
            inner = Requirement(text)
            marker = inner.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(inner)
    return set(found)


def blocks(lock: str) -> dict[str, str]:
    """The entries of a lock file by canonical name, each with its hashes."""
    entries = re.findall(r"^[^\s#].*(?:\n    .*)*", lock, re.MULTILINE)
    return {
        canonicalize_name(re.split(r"[=\[ ]", entry, maxsplit=1)[0]): entry for entry in entries
    }


def main() -> int:
    """Print the entries; they are a lock file again."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        text
        for text in project["dependencies"]
        if (marker := Requirement(text).marker) is None or marker.evaluate()
    ]
    try:
        names = closure(wanted)
    except metadata.PackageNotFoundError as error:
        why = f"{error.name} is not installed here: use an environment of the lock"
        print(why, file=sys.stderr)  # noqa: T201
        return 1
    entries = blocks((ROOT / "requirements.lock").read_text())
    for name in sorted(names):
        print(entries[name])  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
