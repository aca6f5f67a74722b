"""Install the clients that `make test-slow` tries: `python -m tests.clients.install`.

They go into a virtual environment (and a node_modules for the SDKs, one for agents) of their own under `.clients/`, or under
`KVGATE_CLIENTS_DIR`, so that none of them decides what the gate itself is tested with. A stamp tells
what is in it; a second run does nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTINUE = ("@continuedev/cli@1.5.47",)
PYTHON = (
    "anthropic==2.14.0",
    "openai==3.57.0",
    "langchain-openai==1.7.4",
    "litellm==1.110.2",
    "mini-swe-agent==2.4.6",
    "ollama==0.6.3",
)
AGENTS = ("opencode-ai@1.18.33",)
CODEX = ("@openai/codex@0.171.0",)
NODE = ("openai@7.25.0", "@anthropic-ai/sdk@0.122.0", "ollama@0.6.4")


def home() -> Path:
    """Where they are."""
    here = Path(__file__).parents[2] / ".clients"
    return Path(os.environ.get("KVGATE_CLIENTS_DIR", here))


def python() -> Path:
    """The interpreter of their environment."""
    return home() / "venv" / "bin" / "python"


def opencode() -> Path:
    """OpenCode's binary; of several for one machine that which needs least of the processor."""
    found = sorted((home() / "agents" / "node_modules").glob("opencode-*-*/bin/opencode"))
    return next((one for one in found if "baseline" in str(one)), found[0])


def installed(part: str, names: tuple[str, ...]) -> bool:
    """Whether a part holds just these."""
    stamp = home() / f"{part}.stamp"
    return stamp.is_file() and stamp.read_text().split() == list(names)


@contextmanager
def alone() -> Iterator[None]:
    """One process at a time: test workers come for the same things at once."""
    home().mkdir(parents=True, exist_ok=True)
    with (home() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cn() -> Path:
    """The program of Continue's CLI, installed where it is not: 80 MB."""
    with alone():
        packages("continue", CONTINUE)
    return home() / "continue" / "node_modules" / "@continuedev" / "cli" / "dist" / "cn.js"


def sdks() -> None:
    """Those in Python and, where there is npm, in JavaScript, unless they are there. Raises
    CalledProcessError where pip or npm fails."""
    with alone():
        if not installed("venv", PYTHON):
            venv = home() / "venv"
            subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
            pip = [str(python()), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, *PYTHON], check=True)
            (home() / "venv.stamp").write_text("\n".join(PYTHON))
        packages("node", NODE)


def agents() -> None:
    """Coding agents in JavaScript, likewise: 350 MB."""
    with alone():
        packages("agents", AGENTS)


def codex() -> Path:
    """Codex's binary, installed where it is not: 420 MB."""
    with alone():
        packages("codex", CODEX)
    return next((home() / "codex" / "node_modules" / "@openai").glob("codex-*/vendor/*/bin/codex"))


def packages(part: str, names: tuple[str, ...]) -> None:
    """A node_modules of these, where there is npm."""
    npm = shutil.which("npm")
    if npm is None or installed(part, names):
        return
    folder = home() / part
    folder.mkdir(exist_ok=True)
    # Without scripts: one of OpenCode's would run it, in the home of whoever installs.
    quietly = ["--silent", "--no-fund", "--no-audit", "--ignore-scripts"]
    subprocess.run([npm, "install", *quietly, *names], cwd=folder, check=True)
    (home() / f"{part}.stamp").write_text("\n".join(names))


if __name__ == "__main__":
    cn()
    sdks()
    agents()
    codex()
