"""README's two commands, on a Debian that has Python and make and nothing else of ours.

Slow: it installs everything anew.
"""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.deploy import chroot
from tests.deploy.parts import ROOT
from tests.deploy.test_image import CACHE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

MOUNTED = (
    "mount -t proc proc proc && mount --bind /dev dev && exec {chroot} . /bin/sh -ec '{script}'"
)


def first_commands():
    """The commands of README's first block."""
    block = re.search(r"```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [line.partition("#")[0].strip() for line in block[1].splitlines()]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A bare Debian with the files that are committed, and nothing that was built here."""
    if (why := chroot.cannot()) is not None:
        pytest.skip(why)
    root = chroot.copy_of(chroot.bare(CACHE), tmp_path_factory.mktemp("fresh") / "root")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (root / "src" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / "src" / name)
    yield root
    shutil.rmtree(root)


def test_the_two_commands_are_the_documented_ones():
    assert first_commands() == ["make demo", "make test"]


def run(machine, command):
    tool = shutil.which("chroot") or "/usr/sbin/chroot"
    script = MOUNTED.format(chroot=tool, script=f"cd /src; {command}")
    return subprocess.run(
        ["unshare", "--mount", "/bin/sh", "-ec", script],
        cwd=machine,
        env={"HOME": "/root", "PATH": chroot.PATH, **chroot.pip_settings()},
        capture_output=True,
        text=True,
        check=False,
    )


def test_readme_s_first_command_works_on_a_bare_machine(machine):
    done = run(machine, "make demo")
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def test_readme_s_second_command_finds_all_it_needs_on_a_bare_machine(machine):
    """The whole suite has run before this one does; here it is asked whether anything is missing."""
    short = "tests/policy tests/gate tests/edge/test_routes.py tests/twin/test_kinds.py"
    done = run(machine, f"make .venv/ready && .venv/bin/pytest -q -n 2 {short}")
    if done.returncode:  # a machine busy with other slow tests may fail one for want of time
        done = run(machine, ".venv/bin/pytest -q --last-failed --last-failed-no-failures none")
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
