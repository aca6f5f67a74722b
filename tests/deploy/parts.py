"""What deploy/ holds, read for the tests: YAML documents, unit files, a Dockerfile's instructions."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import yaml

from gateway.control import ControlPlane
from gateway.policy.schema import Policy

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = ROOT / ".tools" / "bin"
NO_TOOLS = "the linters of deploy/ are not installed: run `make .tools/ready` first"

DATA_PORT, CONTROL_PORT = 8080, 8081
DRAIN_S = float(Policy.model_fields["drain_s"].default)
CLOSING_S = 5
"""What closing takes after the drain: open connections and the last aborts have a second each
(app.CUT_S), and an interpreter ends."""

PINNED_IMAGE = re.compile(
    r"(?:[a-z0-9./-]+:v?\d+\.\d+\.\d+(?:-[a-z0-9.-]+)?@sha256:[0-9a-f]{64}|kvgate:\d+\.\d+\.\d+)"
)
"""Somebody else's image by tag and digest; ours, which is built here, by version."""


def documents(path: Path) -> list[dict[str, Any]]:
    """All YAML documents of a file."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def control_paths() -> set[tuple[str, str]]:
    """Method and path of all routes that the control plane has."""
    needed = list(inspect.signature(ControlPlane.__init__).parameters)[1:]
    app = ControlPlane(**{name: MagicMock() for name in needed}).app()
    return {(route.method, route.resource.canonical) for route in app.router.routes()}


@dataclass(frozen=True)
class Step:
    """One instruction of a Dockerfile, with the number of its stage."""

    stage: int
    word: str
    rest: str

    @property
    def form(self) -> list[str]:
        """The arguments: of the JSON form, else as the shell would split them."""
        return json.loads(self.rest) if self.rest.startswith("[") else shlex.split(self.rest)


def dockerfile() -> list[Step]:
    """The instructions of our Dockerfile; arguments before the first stage are filled in."""
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    steps: list[Step] = []
    args: dict[str, str] = {}
    stage = -1
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word:
            continue
        rest = " ".join(rest.split()) if word != "HEALTHCHECK" else rest.strip()
        if word == "ARG" and stage < 0:
            name, _, value = rest.partition("=")
            args[name] = value
            continue
        stage += word == "FROM"
        for name, value in args.items():
            rest = rest.replace("${" + name + "}", value) if word == "FROM" else rest
        steps.append(Step(stage, word, rest))
    return steps


def unit() -> dict[str, list[str]]:
    """The systemd unit: each setting with its values, in order."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / "kvgate.service").read_text().splitlines():
        if line and line[0] not in "#[;":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """The Kubernetes objects by kind and name."""
    found = {}
    names = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    for name in names:
        for one in documents(DEPLOY / "kubernetes" / name):
            found[one["kind"], one["metadata"]["name"]] = one
    return found
