"""Other gateways, each in an environment of its own under `.rivals/`: `python -m tests.bench.rivals`.

They are measured, never imported. Versions are pinned, so that a number can be had again. One that
cannot be installed is named in the table as not measured, with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def folder() -> Path:
    """Where their environments are."""
    named = os.environ.get("KVGATE_RIVALS")
    return Path(named) if named else Path(__file__).parents[2] / ".rivals"


@dataclass(frozen=True)
class Rival:
    """`launch` makes the arguments after the environment's bin folder from (port, another free port,
    upstream URL, a scratch folder)."""

    name: str
    needs: str
    version: str
    alive: str
    """A page that it answers by itself."""
    launch: Callable[[int, int, str, Path], list[str]]
    most_waiting: int = 10_000
    """Requests it is given at once in the measurement of memory."""
    most_streams: int = 10_000

    @property
    def bin(self) -> Path:
        return folder() / self.name / "bin"

    @property
    def installed(self) -> bool:
        return (folder() / self.name / self.version).is_file()

    def argv(self, port: int, other: int, upstream: str, scratch: Path) -> list[str]:
        program, *rest = self.launch(port, other, upstream, scratch)
        return [str(self.bin / program), *rest]


def _smg(port: int, other: int, upstream: str, _: Path) -> list[str]:
    return [
        *("smg", "launch", "--worker-urls", upstream, "--host", "127.0.0.1", "--port", str(port)),
        *("--policy", "round_robin", "--prometheus-host", "127.0.0.1"),
        *("--prometheus-port", str(other), "--max-concurrent-requests", "20000"),
    ]


def _router(port: int, other: int, upstream: str, _: Path) -> list[str]:
    return [
        *("python", "-m", "sglang_router.launch_router", "--worker-urls", upstream),
        *("--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(other)),
        *("--max-concurrent-requests", "20000"),
    ]


def _litellm(port: int, _: int, upstream: str, scratch: Path) -> list[str]:
    config = scratch / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: m\n    litellm_params:\n"
        f"      {{model: openai/m, api_base: '{upstream}/v1', api_key: none}}\n"
        # It listens on loopback, for the time of the run.
        "general_settings: {dangerously_permit_weak_or_unset_master_key: true}\n"
    )
    return ["litellm", "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]


RIVALS = (
    Rival("smg", "smg==1.13.0", "1.13.0", "/liveness", _smg),
    Rival("sglang-router", "sglang-router==0.3.2", "0.3.2", "/liveness", _router),
    Rival(
        "litellm",
        "litellm[proxy]==1.108.7",
        "1.108.7",
        "/health/liveliness",
        _litellm,
        most_streams=8,
        most_waiting=500,  # ten milliseconds of processor time each
    ),
)


def install(rival: Rival) -> str | None:
    """Make its environment, unless it is there. Why that was not possible."""
    if rival.installed:
        return None
    home = folder() / rival.name
    print(f"installing {rival.needs} …", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    done = subprocess.run(
        [home / "bin" / "pip", "install", "-q", "--disable-pip-version-check", rival.needs],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(home, ignore_errors=True)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return (lines or ["pip failed"])[-1]
    (home / rival.version).touch()
    return None


def main() -> int:
    """Install all; those that could not be are named. Always 0: the bench goes on without them."""
    for rival in RIVALS:
        if (why := install(rival)) is not None:
            print(f"{rival.name} could not be installed: {why}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
