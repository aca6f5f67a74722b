"""Fixtures: one shared engine, the gate before it, and the report of what was measured."""

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

MEASURED = "measured"
"""What such a line is called on its way from the test, which may run in another process."""

_lines: list[str] = []


@pytest.fixture(scope="session")
def installed() -> None:
    """Skips, loudly (see the summary), where there is no engine to test with."""
    if reason := install.missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def engine(installed: None) -> Iterator[Engine]:
    """The shared server; a test that leaves it changed is marked `changes_engine`."""
    with Engine.start(pool=POOL) as running:
        yield running


@pytest.fixture
def make_gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Gate]]:
    """Start `kvgate serve` before an engine, with a policy if given; stopped after the test."""
    with ExitStack() as started:

        def make(engine: Engine, policy: dict[str, Any] | None = None) -> Gate:
            folder: Path = tmp_path_factory.mktemp("gate")
            return started.enter_context(Gate(engine.url, folder, policy))

        yield make


@pytest.fixture(scope="module")
def gate(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """`kvgate serve --backend URL`, nothing else said, before the shared engine."""
    with Gate(engine.url, tmp_path_factory.mktemp("gate")) as running:
        yield running


@pytest.fixture(autouse=True)
def _quiet(request: pytest.FixtureRequest) -> None:
    """Let the shared engine and gate come to rest before a test measures them."""
    if "engine" not in request.fixturenames:
        return
    engine: Engine = request.getfixturevalue("engine")
    deadline = time.monotonic() + QUIET_WITHIN_S
    while (load := engine.loads())["num_running_reqs"] or load["num_waiting_reqs"]:
        assert time.monotonic() < deadline, f"an earlier test left work in the engine: {load}"
        time.sleep(0.05)
    if "gate" in request.fixturenames:
        gate: Gate = request.getfixturevalue("gate")
        while held := gate.reserved():
            assert time.monotonic() < deadline, f"an earlier test left {held} tokens reserved"
            time.sleep(0.05)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run those that change the shared engine last, the more the later, whatever the shuffle said.

    A server of their own, or another restart after them, would cost a start each: 20 to 40 s.
    """
    items.sort(key=_change)


def _change(item: pytest.Item) -> int:
    mark = item.get_closest_marker("changes_engine")
    return sum(mark.args) if mark else -1


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "changes_engine(how): runs last; 0: leaves the usual engine, 1: with another pool, "
        "2: with another environment",
    )
    config.addinivalue_line(
        "markers", "alone: its numbers are told to people; nothing else may run beside it"
    )


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Note:
    """Note a measurement: printed at once (see it with -s) and written to report.txt."""

    def note(line: str) -> None:
        request.node.user_properties.append((MEASURED, line))
        print(f"\n  {line}", end="")

    return note


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect what was measured."""
    if report.when == "teardown":
        name = report.nodeid.rpartition("::")[2]
        _lines.extend(
            f"{name}: {line}" for kind, line in report.user_properties if kind == MEASURED
        )


def _of_other_tests(written: Path) -> list[str]:
    """What an earlier run measured by tests that were no part of this one."""
    if not written.exists():
        return []
    ours = {line.partition(": ")[0] for line in _lines}
    return [
        line for line in written.read_text().splitlines() if line.partition(": ")[0] not in ours
    ]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write report.txt beside the install; say in red when nothing could be tested."""
    if reason := install.missing():
        terminalreporter.section("REAL ENGINE NOT TESTED", red=True, bold=True)
        terminalreporter.write_line(reason, red=True)
    elif _lines:
        written = install.real_dir() / "report.txt"
        written.write_text("\n".join(sorted([*_of_other_tests(written), *_lines])) + "\n")
        terminalreporter.write_line(f"measurements: {written}")
