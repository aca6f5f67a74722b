"""No mistake hides another: all pairs of them, in the same entry where they can be, are both told."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.load import load_policy
from gateway.policy.problems import PolicyError, dotted

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.policy.problems import Loc

GOOD: dict[str, Any] = {
    "backends": [
        {"url": "http://a:1", "name": "a", "slots": 4},
        {"url": "http://b:1", "name": "b"},
        {"url": "http://c:1"},
    ],
    "clients": [
        {"name": "x", "key_env": "K1", "header": [{"name": "x-app", "value": "x"}]},
        {"name": "y", "key_env": "K2", "address": ["10.0.0.0/8"]},
        {"name": "anyone"},
    ],
    "models": {"big": ["m1", "m2"], "small": ["m3"]},
    "routes": [{"when": {"client": ["x"]}, "to": ["a"]}, {"to": ["a", "b"]}],
    "listen": "127.0.0.1:8080",
    "control": "127.0.0.1:8081",
    "queue": {},
    "limits": {},
    "leases": {"url": "redis://r:1/0"},
    "tls": {},
    "cors": ["https://page"],
}
ENV = {"K1": "one", "K2": "two"}
GONE = object()
"""The field is left out."""


class Mistake(NamedTuple):
    """What is written where, and what is found of it."""

    sets: dict[Loc, Any]
    at: Loc
    wrong: str
    needs: tuple[Loc, ...] = ()
    """What must be as it is in `GOOD`, that it is this mistake."""
    told: int = 1
    """Findings in all."""

    def __repr__(self) -> str:
        return f"{dotted(self.at)} {self.wrong}"


def server(index: int, field: str) -> Loc:
    return ("backends", index, field)


def caller(index: int, field: str) -> Loc:
    return ("clients", index, field)


MISTAKES = [
    # of a server
    Mistake({server(1, "url"): "b:1"}, server(1, "url"), "without a scheme"),
    Mistake({server(1, "url"): GONE}, server(1, "url"), "is missing"),
    Mistake(
        {server(2, "url"): "http://a:1"}, server(2, "url"), "already used by", (server(0, "url"),)
    ),
    Mistake(
        {server(1, "url"): "http://127.0.0.1:8080"}, server(1, "url"), "own address", (("listen",),)
    ),
    Mistake({server(1, "name"): "b b"}, server(1, "name"), "not usable as a name", told=2),
    Mistake({server(2, "name"): "a"}, server(2, "name"), "already used by", (server(0, "name"),)),
    Mistake({server(1, "slot"): 4}, server(1, "slot"), "not a known key"),
    Mistake({server(1, "slots"): "many"}, server(1, "slots"), "whole number"),
    Mistake({server(1, "kv_slack"): 2}, server(1, "kv_slack"), "at most"),
    Mistake({server(1, "tokenizer"): "/nowhere"}, server(1, "tokenizer"), "not a directory"),
    Mistake({server(1, "api_key_env"): "UNSET"}, server(1, "api_key_env"), "is not set"),
    Mistake(
        {server(1, "api_key_env"): "sk-x"},
        server(1, "api_key_env"),
        "not the name of an environment",
    ),
    Mistake({server(1, "api_key_file"): "/nowhere"}, server(1, "api_key_file"), "cannot be read"),
    Mistake(
        {server(0, "api_key_env"): "K1", server(0, "api_key_file"): "there"},
        server(0, "api_key_file"),
        "stands beside",
    ),
    Mistake(
        {server(1, "max_output_tokens"): 5, server(1, "default_output_tokens"): 6},
        server(1, "default_output_tokens"),
        "is above",
    ),
    # of a client
    Mistake({caller(1, "name"): "y y"}, caller(1, "name"), "not usable as a name"),
    Mistake({caller(1, "name"): GONE}, caller(1, "name"), "is missing"),
    Mistake({caller(1, "name"): "x"}, caller(1, "name"), "already used by", (caller(0, "name"),)),
    Mistake({caller(1, "nme"): "x"}, caller(1, "nme"), "not a known key"),
    Mistake({caller(1, "key_env"): "sk-y"}, caller(1, "key_env"), "not the name of an environment"),
    Mistake(
        {caller(1, "key_env"): "K1"}, caller(1, "key_env"), "the same key", (caller(0, "key_env"),)
    ),
    Mistake({caller(1, "key_env"): "UNSET"}, caller(1, "key_env"), "is not set"),
    Mistake({caller(1, "key_file"): "/nowhere"}, caller(1, "key_file"), "cannot be read"),
    Mistake({caller(1, "key_sha256"): ["z"]}, ("clients", 1, "key_sha256", 0), "not a SHA-256"),
    Mistake(
        {caller(1, "header"): [{"name": "X-App", "value": "x"}]},
        caller(1, "header"),
        "already used by",
        (caller(0, "header"),),
    ),
    Mistake(
        {caller(1, "header"): [{"name": "x-app", "value": "x", "valeu": 7}]},
        caller(1, "header"),
        "already used by",
        (caller(0, "header"),),
        told=2,
    ),
    Mistake(
        {caller(1, "header"): [{"value": 7}]},
        ("clients", 1, "header", 0, "name"),
        "is missing",
        told=2,
    ),
    Mistake(
        {caller(0, "address"): ["10.0.0.0/8", "home"]},
        ("clients", 0, "address", 1),
        "not a network",
        told=2,
    ),
    Mistake(
        {caller(0, "address"): ["nowhere", "10.0.0.0/8"]},
        caller(1, "address"),
        "already used by",
        (caller(1, "address"),),
        told=2,
    ),
    Mistake({caller(1, "weight"): 0}, caller(1, "weight"), "above 0"),
    Mistake({caller(1, "quota"): {}}, ("clients", 1, "quota", "tokens"), "is missing"),
    Mistake(
        {caller(1, "max_output_tokens"): 5, caller(1, "default_output_tokens"): 6},
        caller(1, "default_output_tokens"),
        "is above",
    ),
    Mistake(
        {caller(1, "overflow"): "trim", caller(1, "routes"): ["/v1/completions"]},
        caller(1, "overflow"),
        "nothing to trim",
    ),
    Mistake(
        {caller(2, "key_env"): "K3"},
        caller(2, "key_env"),
        "cannot belong to anyone",
        (caller(2, "name"),),
        told=2,
    ),
    Mistake({("clients", 3): 7}, ("clients", 3), "must be a mapping"),
    Mistake({("clients", 3): {"name": "z"}}, caller(3, "name"), "nothing would recognise"),
    # of models, routes and the rest
    Mistake({("models", "small"): ["m m"]}, ("models", "small", 0), "not usable as a model"),
    Mistake({("models", "big"): ["m1", "small"]}, ("models", "big"), "is an alias itself"),
    Mistake({("models", "big"): ["m m", "small"]}, ("models", "big"), "is an alias itself", told=2),
    Mistake({("models", "big"): ["m1", 7, "m1"]}, ("models", "big"), "stands there twice", told=2),
    Mistake({("routes", 0, "to"): ["a", "zz"]}, ("routes", 0, "to"), "name of a server"),
    Mistake({("routes", 0, "to"): ["z z", "zz"]}, ("routes", 0, "to"), "name of a server", told=2),
    Mistake({("routes", 0, "too"): "a"}, ("routes", 0, "too"), "not a known key"),
    Mistake(
        {("routes", 0, "when", "client"): ["zz"]},
        ("routes", 0, "when", "client"),
        "name of a client",
    ),
    Mistake(
        {("routes", 0, "when", "images"): "some"}, ("routes", 0, "when", "images"), "true or false"
    ),
    Mistake({("routes", 2): {"to": ["b"]}}, ("routes", 2), "is never reached", (("routes", 1),)),
    Mistake({("routes", 2): {"to": ["b"], "x": 1}}, ("routes", 2), "is never reached", told=2),
    Mistake({("listen",): "here"}, ("listen",), "not an address"),
    Mistake({("control",): "there"}, ("control",), "not an address"),
    Mistake(
        {("control",): "127.0.0.1:8080"}, ("control",), "the data plane's address", (("listen",),)
    ),
    Mistake({("queue",): []}, ("queue",), "must be a mapping"),
    Mistake({("limits", "max_n"): 0}, ("limits", "max_n"), "above 0"),
    Mistake({("leases", "password_env"): "UNSET"}, ("leases", "password_env"), "is not set"),
    Mistake({("leases", "url"): "http://r"}, ("leases", "url"), "not the URL of a Redis"),
    Mistake({("leases", "ttl_s"): 1}, ("leases", "ttl_s"), "at least"),
    Mistake(
        {("tls", "cert"): "/nowhere", ("tls", "key"): "there"}, ("tls", "cert"), "cannot be read"
    ),
    Mistake(
        {("tls", "cert"): 7, ("tls", "key"): "/nowhere"}, ("tls", "key"), "cannot be read", told=2
    ),
    Mistake({("cors",): ["*", "https://page"]}, ("cors",), "a * beside others"),
    Mistake({("cors",): ["*", "page"]}, ("cors",), "a * beside others", told=2),
    Mistake({("flavour",): "blue"}, ("flavour",), "not a known key"),
    Mistake({("reservation",): "hopeful"}, ("reservation",), "must be 'forecast'"),
]


def touches(one: Loc, other: Loc) -> bool:
    """Whether one is within the other."""
    size = min(len(one), len(other))
    return one[:size] == other[:size]


def independent(one: Mistake, other: Mistake) -> bool:
    """Whether both can be made."""
    mine, theirs = [*one.sets], [*other.sets]
    return not any(
        touches(a, b)
        for left, right in ((mine, theirs), (mine, other.needs), (theirs, one.needs))
        for a in left
        for b in right
    )


def put(document: Any, loc: Loc, value: Any) -> None:
    for part in loc[:-1]:
        document = document.setdefault(part, {}) if isinstance(document, dict) else document[part]
    if value is GONE:
        document.pop(loc[-1], None)
    elif isinstance(document, list):
        assert loc[-1] == len(document)
        document.append(value)
    else:
        document[loc[-1]] = value


def found(folder: Path, *made: Mistake) -> set[tuple[str, str]]:
    document = copy.deepcopy(GOOD)
    if not any("tls" in loc for one in made for loc in one.sets):
        del document["tls"]
    (folder / "there").write_text("key\n")
    for one in made:
        for loc, value in one.sets.items():
            put(document, loc, value)
    (folder / "p.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    try:
        load_policy(folder / "p.yaml", env=ENV)
    except PolicyError as error:
        return {(problem.path, problem.wrong) for problem in error.errors}
    return set()


def lacks(told: set[tuple[str, str]], *made: Mistake) -> list[Mistake]:
    return [
        one
        for one in made
        if not any(path == dotted(one.at) and one.wrong in wrong for path, wrong in told)
    ]


def test_without_one_it_is_good(tmp_path: Path) -> None:
    assert found(tmp_path) == set()


@pytest.mark.parametrize("near", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("one", MISTAKES, ids=repr)
def test_no_mistake_hides_another(tmp_path: Path, one: Mistake, near: bool) -> None:
    """`near`: those of the same part of a policy, where that is likely."""
    told = found(tmp_path, one)
    assert lacks(told, one) == []
    assert len(told) == one.told, "nothing is found for it that only follows"
    later = MISTAKES[MISTAKES.index(one) + 1 :]
    others = [other for other in later if (one.at[0] == other.at[0]) is near]
    hidden = [
        (other, lost)
        for other in others
        if independent(one, other) and (lost := lacks(found(tmp_path, one, other), one, other))
    ]
    assert hidden == []


@settings(deadline=None)
@given(made=st.lists(st.sampled_from(range(len(MISTAKES))), min_size=2, max_size=6, unique=True))
def test_nor_do_several(tmp_path_factory: pytest.TempPathFactory, made: list[int]) -> None:
    kept: list[Mistake] = []
    for one in map(MISTAKES.__getitem__, made):
        if all(independent(one, other) for other in kept):
            kept.append(one)
    assert lacks(found(tmp_path_factory.getbasetemp(), *kept), *kept) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # Both the address and the name are there twice, and both are written.
        ("backends: [{url: 'http://a', name: x}, {url: 'http://a', name: x}]",
         ["backends[1].url", "backends[1].name"]),
        # Nobody knows what that rule takes.
        ("backends: [{url: 'http://a', name: x}]\nroutes: [{when: {imags: true}, to: x}, {to: x}]",
         ["routes[0].when.imags"]),
        ("backends: [{url: 'http://a', name: x}]\nroutes: [{when: 7, to: x}, {to: x}]",
         ["routes[0].when"]),
        # Who there is cannot be read.
        ("backends: {url: 'http://a'}\nclients: 7\nroutes: [{when: {client: y}, to: x}]",
         ["backends", "clients"]),
        # A client by whatever name, and one by whatever key.
        ("backends: [{url: 'http://a'}]\nclients: [{name: 7}, {name: y, key_file: 7}]",
         ["clients[0].name", "clients[1].key_file"]),
        ("backends: []\nqueue: {}\nqueue: {}", ["backends", "queue"]),
        # Two of a kind, in one place.
        ("backends: [{url: 'http://a', name: x}]\nroutes: [{to: [x, y, z]}]\nmodels: {a: [b, b, c, c]}",
         ["routes[0].to", "routes[0].to", "models.a", "models.a"]),
        ("backends: [{url: 'http://a'}]\ncors: ['*', 'https://b']", ["cors"]),
        ("queue: {}\nqueue: {}", ["backends", "queue"]),
        ("a: [", [""]),
    ],
)  # fmt: skip
def test_what_only_follows_is_not_told(tmp_path: Path, text: str, told: list[str]) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_policy(tmp_path / "p.yaml", env={})
    assert sorted(problem.path for problem in caught.value.errors) == sorted(told)
