"""The shipped policy files load, and say what their comments say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.policy.load import load_policy
from gateway.policy.problems import PolicyError

POLICIES = Path(__file__).parents[2] / "policies"


STORIES = {"single", "dual-3090", "l20-tp4-262k", "shared-lab", "agents"}


def keys(path: Path) -> dict[str, str]:
    """A key for each variable a policy names."""
    names = re.findall(r"key_env: (\w+)", path.read_text(encoding="utf-8"))
    return {name: f"key-of-{name}" for name in names}


def test_there_are_some() -> None:
    """Each has its story played in `tests/lab/test_shipped_policies`."""
    assert {path.stem for path in POLICIES.iterdir()} == STORIES


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda path: path.name)
def test_it_loads_and_opens_with_its_story(path: Path) -> None:
    assert load_policy(path, env=keys(path)).backends
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_the_two_cards_of_the_incident() -> None:
    policy = load_policy(POLICIES / "dual-3090.yaml", env={})
    caps = {b.name: b.max_output_tokens for b in policy.backends}
    assert caps == {"gpu0": 16_384, "gpu1": 32_000}


def test_the_shared_lab_says_which_keys_it_needs() -> None:
    path = POLICIES / "shared-lab.yaml"
    policy = load_policy(path, env=keys(path))
    assert [client.name for client in policy.clients if client.quota] == ["scripts", "anyone"]
    with pytest.raises(PolicyError) as caught:
        load_policy(path, env={})
    missing = {problem.found.strip("'") for problem in caught.value.errors}
    assert missing == set(keys(path))
