"""Fixtures: one shared engine, engines of one's own, the gate before them, and the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.real import install
from tests.real.engine import Engine
from tests.real.gateproc import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The KV pool of the shared engine, tokens: incident A's 67,375 scaled by 33.
POOL = 2048

# How long what an earlier test started may take to leave the engine: SGLang notices an abandoned
# request that is not streamed at polls 4 s apart.
QUIET_WITHIN_S = 30.0

Note = Callable[[str], None]
"""Takes one line for the report."""

_lines: list[str] = []


@pytest.fixture(scope="session")
def installed() -> None:
    """Skips, loudly (see the summary), where there is no engine to test with."""
    if reason := install.missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def engine(installed: None) -> Iterator[Engine]:
    """The shared server; a test that changes it takes `make_engine`."""
    with Engine.start(pool=POOL) as running:
        yield running


@pytest.fixture
def make_engine(installed: None) -> Iterator[Callable[..., Engine]]:
    """`Engine.start` for servers with other arguments, stopped after the test."""
    with ExitStack() as started:
        yield lambda *args, **kwargs: started.enter_context(Engine.start(*args, **kwargs))


@pytest.fixture
def make_gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Gate]]:
    """Start `kvgate serve` before an engine, with a policy if given; stopped after the test."""
    with ExitStack() as started:

        def make(engine: Engine, policy: dict[str, Any] | None = None) -> Gate:
            folder: Path = tmp_path_factory.mktemp("gate")
            return started.enter_context(Gate(engine.url, folder, policy))

        yield make


@pytest.fixture
def gate(engine: Engine, make_gate: Callable[..., Gate]) -> Gate:
    """`kvgate serve --backend URL`, nothing else said, before the shared engine."""
    return make_gate(engine)


@pytest.fixture(autouse=True)
def _quiet(request: pytest.FixtureRequest) -> None:
    """Let the shared engine come to rest before a test measures it."""
    if "engine" not in request.fixturenames:
        return
    engine: Engine = request.getfixturevalue("engine")
    deadline = time.monotonic() + QUIET_WITHIN_S
    while (load := engine.loads())["num_running_reqs"] or load["num_waiting_reqs"]:
        assert time.monotonic() < deadline, f"an earlier test left work in the engine: {load}"
        time.sleep(0.05)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Note:
    """Note a measurement: printed at once (see it with -s) and written to report.txt."""

    def note(line: str) -> None:
        _lines.append(f"{request.node.name}: {line}")
        print(f"\n  {line}", end="")

    return note


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write report.txt beside the install; say in red when nothing could be tested."""
    if reason := install.missing():
        terminalreporter.section("REAL ENGINE NOT TESTED", red=True, bold=True)
        terminalreporter.write_line(reason, red=True)
    elif _lines:
        written = install.real_dir() / "report.txt"
        written.write_text("\n".join(sorted(_lines)) + "\n")
        terminalreporter.write_line(f"measurements: {written}")
