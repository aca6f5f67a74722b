"""The unit verifies, is as closed as it says, and gives the gate the time that draining takes."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from gateway.cli import COMMANDS, serve
from tests.deploy import parts
from tests.deploy.parts import CLOSING_S, DEPLOY, DRAIN_S

UNIT = DEPLOY / "systemd" / "kvgate.service"
SETTINGS = parts.unit()
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not here (Debian: apt install systemd)",
)

MOST_EXPOSED = 1.5
"""systemd's own score, 0 to 10: 1.2 as it is; what remains is the network, and its own root."""


def one(name):
    (value,) = SETTINGS[name]
    return value


@needs_systemd
def test_systemd_understands_every_line(tmp_path):
    """Verified with programs that exist: what /opt/kvgate holds is the operator's."""
    program = tmp_path / "kvgate"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(one("ExecStart").split()[0], str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    about_ours = [line for line in done.stderr.splitlines() if UNIT.stem in line]
    assert about_ours == []


@needs_systemd
def test_little_is_left_open():
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", UNIT],
        capture_output=True,
        text=True,
        check=False,
    )
    score = re.search(r"exposure level for kvgate\.service: ([\d.]+)", done.stdout)
    assert score, done.stderr
    assert float(score[1]) <= MOST_EXPOSED


def test_it_starts_the_gate_with_the_policy_that_the_pages_name():
    program, command, *rest = one("ExecStart").split()
    assert program == "/opt/kvgate/bin/kvgate"
    assert command in COMMANDS
    policy = str(serve.parser().parse_args(rest).policy)
    assert policy in (DEPLOY / "README.md").read_text()


def test_draining_ends_before_systemd_loses_patience():
    assert int(one("TimeoutStopSec")) >= DRAIN_S + CLOSING_S


def test_a_policy_that_does_not_load_is_not_tried_again_and_a_crash_is():
    assert one("Restart") == "always"
    assert one("RestartPreventExitStatus") == "2"  # see gateway/cli


def test_it_may_write_to_its_own_folder_only():
    assert one("ProtectSystem") == "strict"
    assert one("WorkingDirectory") == f"/var/lib/{one('StateDirectory')}"
    assert not {"ReadWritePaths", "BindPaths"} & set(SETTINGS)
