"""The policy's `leases`: what is a store, and where its password comes from."""

from __future__ import annotations

import pytest

from gateway.policy.load import load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.source import loaded

FILE = """
backends: [{url: "http://127.0.0.1:30000"}]
leases: {url: "URL"MORE}
"""


def load(tmp_path, url: str, more: str = "", **env: str):
    path = tmp_path / "policy.yaml"
    path.write_text(FILE.replace("URL", url).replace("MORE", more))
    return load_policy(path, env=env)


@pytest.mark.parametrize(
    "url", ["redis://10.0.0.5", "redis://s:6379/0", "rediss://s:6380/1", "unix:///run/valkey.sock"]
)
def test_these_are_stores(tmp_path, url) -> None:
    of = load(tmp_path, url).leases
    assert of is not None
    assert (of.url, of.ttl_s, of.prefix) == (url, 60.0, "kvgate")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://s:6379", "not the URL of a Redis"),
        ("redis://:hunter2@s:6379/0", "credentials"),
        ("redis://user:hunter2@s/0", "credentials"),
        ("redis:///0", "without a host"),
        ("redis://s:0/0", "without a host"),
        ("redis://s:99999/0", "not a URL"),
        ("redis://s/0?password=hunter2", "query"),
        ("unix://", "without a host"),
    ],
)
def test_these_are_not_and_a_password_is_never_repeated(tmp_path, url, word) -> None:
    with pytest.raises(PolicyError, match=word) as error:
        load(tmp_path, url)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("ttl", ["1", "0", "4000", '"60"'])
def test_a_lease_is_neither_too_short_nor_for_ever(tmp_path, ttl) -> None:
    with pytest.raises(PolicyError, match="ttl_s"):
        load(tmp_path, "redis://s", f", ttl_s: {ttl}")


def test_the_password_is_read_from_where_the_policy_says(tmp_path) -> None:
    more = ", password_env: STORE_PASSWORD"
    with pytest.raises(PolicyError, match=r"leases\.password_env"):
        load(tmp_path, "redis://s", more)
    policy = load(tmp_path, "redis://s", more, STORE_PASSWORD="hunter2")
    secrets = loaded(policy, {"STORE_PASSWORD": "hunter2"}).secrets
    assert secrets.leases is not None
    assert secrets.leases.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(secrets) + repr(policy)
