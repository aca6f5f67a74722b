"""What is measured: the gate, the plainest pass-through, and those rivals that are installed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.version import VERSION
from tests.bench import vocabulary
from tests.bench.processes import answers, free_port
from tests.bench.rivals import RIVALS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bench.processes import Processes

CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
READY_S = 90.0
"""LiteLLM imports for 20 s on a busy machine."""


@dataclass(frozen=True)
class Target:
    """`argv` is made from (port, another free port, upstream URL, scratch folder)."""

    name: str
    version: str
    alive: str
    argv: Callable[[int, int, str, Path], list[str]]
    cwd: str | None = None
    most_waiting: int = 10_000
    most_streams: int = 10_000


@dataclass(frozen=True)
class Running:
    """A target that answers."""

    target: Target
    port: int
    pid: int


def gate(
    name: str, version: str, cwd: str | None, workers: int = 1, python: str = sys.executable
) -> Target:
    """kvgate as it is in the checkout at `cwd` (None: this one), run by `python`."""

    def argv(port: int, other: int, upstream: str, scratch: Path) -> list[str]:
        policy = scratch / "policy.yaml"
        policy.write_text(
            f"listen: 127.0.0.1:{port}\ncontrol: 127.0.0.1:{other}\n"
            f"backends: [{{name: up, url: '{upstream}', tokenizer: '{vocabulary.folder(scratch)}'}}]\n"
            # A queue that takes them all: what is asked here is what waiting costs.
            "queue: {max_requests: 20000, max_tokens: 100000000, max_wait_s: 3600}\n"
            f"observe: {{records: '{scratch / 'records.jsonl'}'}}\n"
            # A checkout of before may not know the word.
            + (f"workers: {workers}\n" if workers > 1 else "")
        )
        return [python, "-m", "gateway.cli", "serve", str(policy)]

    return Target(name, version, "/", argv, cwd=cwd)


def plain() -> Target:
    """See `tests.bench.plain`."""
    return Target(
        "plain aiohttp",
        "",
        "/alive",
        lambda port, _, upstream, __: [
            *(sys.executable, "-m", "tests.bench.plain", str(port), upstream)
        ],
    )


def all_targets(
    also: dict[str, str], pythons: dict[str, str]
) -> tuple[list[Target], dict[str, str]]:
    """Everything that can be measured here; and why the rest is not, by name."""
    targets = [
        gate("kvgate", VERSION, None),
        gate("kvgate of 2 workers", VERSION, None, 2),
        plain(),
    ]
    targets += [gate(name, "", folder) for name, folder in also.items()]
    targets += [gate(name, VERSION, None, python=path) for name, path in pythons.items()]
    missing = {}
    for rival in RIVALS:
        if rival.installed:
            targets.append(
                Target(
                    rival.name,
                    rival.version,
                    rival.alive,
                    rival.argv,
                    most_waiting=rival.most_waiting,
                    most_streams=rival.most_streams,
                )
            )
        else:
            missing[f"{rival.name} {rival.version}"] = "not installed (make bench RIVALS=1)"
    return targets, missing


def launch(target: Target, processes: Processes, upstream: str, scratch: Path) -> Running | None:
    """Start one, and wait until a chat comes back through it; None where none does."""
    port, home = free_port(), scratch / target.name.replace(" ", "-")
    home.mkdir(exist_ok=True)
    argv = target.argv(port, free_port(), upstream, home)
    pid = processes.start(target.name.replace(" ", "-"), argv, cwd=target.cwd)
    if answers(f"http://127.0.0.1:{port}/v1/chat/completions", READY_S, CHAT):
        return Running(target, port, pid)
    processes.end(pid)
    return None
