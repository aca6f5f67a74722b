"""The Dockerfile builds on a bare Debian, and what it builds serves with a root it cannot write.

Without Docker: its instructions are carried out in folders (see `chroot`), and the result runs as
compose.twin.yaml says (see `container`). Slow: a minute for Debian, once, and another to build.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy import chroot, parts
from tests.deploy.parts import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CACHE = ROOT / ".real" / "debian"
"""Beside the other large things that tests install; `make clean` removes it."""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    if (why := chroot.cannot()) is not None:
        pytest.skip(why)
    scratch = tmp_path_factory.mktemp("image")
    yield chroot.build(chroot.bare(CACHE), scratch)
    shutil.rmtree(scratch)


def packages(root):
    site = next((root / "opt/kvgate/lib").glob("python3.*/site-packages"))
    found = (one.name.split("-")[0] for one in site.glob("*.dist-info"))
    return {name.lower().replace("_", "-").replace(".", "-") for name in found}


def test_the_image_holds_what_the_bill_of_materials_names_and_nothing_else(image):
    script = ROOT / "deploy" / "runtime_lock.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    named = {line.split("==")[0] for line in done.stdout.splitlines() if "==" in line}
    assert packages(image.root) == named | {"kvgate"}


def test_it_is_small(image):
    size = subprocess.run(
        ["du", "-sm", image.root / "opt/kvgate"], capture_output=True, text=True, check=True
    )
    assert int(size.stdout.split()[0]) < 200  # MiB; 150 when this was written


def test_the_compose_file_runs_on_a_root_that_cannot_be_written(image):
    (check,) = (s for s in parts.dockerfile() if s.word == "HEALTHCHECK")
    settings = {
        "root": str(image.root),
        "env": image.env,
        "user": image.user,
        "workdir": image.workdir,
        "healthcheck": json.loads(check.rest[check.rest.index("[") :]),
    }
    run = ["unshare", "--mount", "--net", sys.executable, "-m", "tests.deploy.container"]
    done = subprocess.run(
        [*run, json.dumps(settings)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["twin_healthy"] == 0
    for number, workers in (("1", 0), ("2", 2)):
        gate = seen[number]
        assert gate["said"].startswith("kvgate ready on "), gate["log"]
        assert gate["uid"] == image.user.split(":")[0]
        assert gate["healthy"] == 0, gate["log"]
        assert gate["writes"] != 0  # the compose file gives it no volume
        assert gate["workers"] == workers
        assert gate["chat"] == 200
        assert gate["finish"] in {"stop", "length"}
        assert gate["ended"] == 0


def test_a_wheel_that_is_not_the_locked_one_is_not_installed(image, tmp_path):
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    name = next(line.split("==")[0] for line in lock if line.startswith("idna=="))
    start = lock.index(next(line for line in lock if line.startswith("idna==")))
    wrong = image.root.parent / "stage0" / "wrong.lock"
    wrong.write_text(f"{lock[start].split()[0]} --hash=sha256:{'0' * 64}\n")
    command = ["python", "-m", "pip", "download", "-q", "--require-hashes", "--no-deps"]
    with pytest.raises(subprocess.CalledProcessError) as error:
        chroot.inside(
            Path(wrong.parent),
            [*command, "-d", "/wrong", "-r", "/wrong.lock"],
            {},
            capture_output=True,
        )
    assert b"HASH" in error.value.stderr, (name, error.value.stderr)
