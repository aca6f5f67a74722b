"""The shipped policy files load, and say what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.load import load_policy

POLICIES = Path(__file__).parents[2] / "policies"


def test_there_are_some() -> None:
    assert {"single.yaml", "dual-3090.yaml"} <= {path.name for path in POLICIES.iterdir()}


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda path: path.name)
def test_it_loads_and_opens_with_its_story(path: Path) -> None:
    assert load_policy(path, env={}).backends
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_the_two_cards_of_the_incident() -> None:
    policy = load_policy(POLICIES / "dual-3090.yaml", env={})
    caps = {b.name: b.max_output_tokens for b in policy.backends}
    assert caps == {"gpu0": 16_384, "gpu1": 32_000}
