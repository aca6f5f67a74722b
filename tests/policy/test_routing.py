"""Rules from the top: the first that matches decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.policy.routing import Kind, RouteRule, servers

CHAT = Kind("a", "m", {"x-team": "red"}, 100, images=False, stream=True)


def rules(*written: dict[str, Any]) -> list[RouteRule]:
    return [RouteRule.model_validate(one) for one in written]


def test_without_rules_and_without_a_match_any_server_does() -> None:
    assert servers([], CHAT) is None
    assert servers(rules({"when": {"images": True}, "to": "eyes"}), CHAT) is None


def test_the_first_match_decides() -> None:
    both = rules({"when": {"client": "a"}, "to": ["one", "two"]}, {"to": "rest"})
    assert servers(both, CHAT) == ("one", "two")
    assert servers(both, replace(CHAT, client="b")) == ("rest",)


@pytest.mark.parametrize(
    ("when", "other"),
    [
        ({"client": ["b", "a"]}, {"client": "c"}),
        ({"model": "m"}, {"model": None}),
        ({"model": "m"}, {"model": "n"}),
        ({"prompt_tokens_over": 99}, {"prompt_tokens": 99}),
        ({"images": False}, {"images": True}),
        ({"stream": True}, {"stream": False}),
        ({"header": {"name": "X-Team", "value": "red"}}, {"headers": {}}),
        ({"header": {"name": "X-Team", "value": "red"}}, {"headers": {"x-team": "re\udcff"}}),
        ({"header": [{"name": "x-a", "value": "b"}, {"name": "x-team", "value": "red"}]},
         {"headers": {"x-a": "red"}}),
    ],
)  # fmt: skip
def test_each_condition(when: dict[str, Any], other: dict[str, Any]) -> None:
    one = rules({"when": when, "to": "here"})
    assert servers(one, CHAT) == ("here",)
    assert servers(one, replace(CHAT, **other)) is None


def test_all_that_is_named_must_hold() -> None:
    one = rules({"when": {"client": "a", "images": True}, "to": "here"})
    assert servers(one, CHAT) is None
    assert servers(one, replace(CHAT, images=True)) == ("here",)
