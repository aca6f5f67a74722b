"""The bill of materials: what an installation brings, each with the hashes of the lock."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.deploy.parts import NO_TOOLS, ROOT, TOOLS

LOCK = (ROOT / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def runtime():
    script = [sys.executable, ROOT / "deploy" / "runtime_lock.py"]
    return subprocess.run(script, capture_output=True, text=True, check=True).stdout


def names(lock):
    return re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)


def test_it_is_a_part_of_the_lock_with_every_hash(runtime):
    blocks = re.findall(r"^\S.*(?:\n    .*)+", runtime, re.MULTILINE)
    assert blocks
    assert all(block in LOCK for block in blocks)
    assert len(blocks) == len(set(names(runtime)))


def test_it_holds_what_the_gate_needs_through_others_and_no_tool(runtime):
    found = set(names(runtime))
    assert {"aiohttp", "multidict", "pydantic-core", "numpy", "uvloop"} <= found
    assert not {"pytest", "mypy", "ruff", "hypothesis", "openai", "hatchling"} & found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not TOOLS.is_dir(), reason=NO_TOOLS)
def test_cyclonedx_makes_a_document_of_it(runtime, tmp_path):
    lock, bom = tmp_path / "runtime.lock", tmp_path / "bom.json"
    lock.write_text(runtime)
    recipe = subprocess.run(
        ["make", "-n", "sbom"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.replace("\\\n", " ")
    (line,) = (line for line in recipe.splitlines() if "cyclonedx-py" in line)
    command = line.replace("dist/runtime.lock", str(lock)).replace("dist/kvgate.cdx.json", str(bom))
    subprocess.run(command.split(), cwd=ROOT, check=True, capture_output=True)
    document = json.loads(bom.read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "kvgate"
    components = {one["name"]: one for one in document["components"]}
    assert set(components) == set(names(runtime))
    for one in components.values():
        assert any(ref.get("hashes") for ref in one["externalReferences"])
