"""Who is calling: keys, headers, strangers; and that keys are nowhere to be found afterwards."""

from __future__ import annotations

import gc
import hashlib
import hmac
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.clients import Identify, Secrets, Unauthorized, read_secrets
from gateway.policy.leases import Leases
from gateway.policy.problems import PolicyError
from gateway.policy.schema import Backend, Client, HeaderMatch, Policy

if TYPE_CHECKING:
    from pathlib import Path

KEYED = Policy(
    clients=(
        Client(name="red", key_env="RED"),
        Client(name="blue", key_env="BLUE"),
        Client(name="team", header=HeaderMatch(name="X-Team", value="green")),
    )
)
ANY_TEXT = st.text(st.characters())  # with lone surrogates
ENV = {"RED": "sk-planted-red", "BLUE": "sk-planted-blue"}


def identify(policy: Policy, env: dict[str, str] | None = None) -> Identify:
    return Identify(policy, read_secrets(policy, ENV if env is None else env))


@pytest.mark.parametrize(
    ("headers", "who"),
    [
        ({"authorization": "Bearer sk-planted-red"}, "red"),
        ({"authorization": "bearer   sk-planted-blue "}, "blue"),
        ({"x-api-key": "sk-planted-red"}, "red"),
        ({"authorization": "Bearer EMPTY", "x-api-key": "sk-planted-blue"}, "blue"),
        ({"api-key": "sk-planted-red"}, "red"),
        ({"x-api-key": "EMPTY", "api-key": "sk-planted-blue"}, "blue"),
        ({"x-team": "green"}, "team"),
        ({"x-team": "green", "x-api-key": "sk-planted-red"}, "red"),
    ],
)
def test_known_callers(headers: dict[str, str], who: str) -> None:
    assert identify(KEYED).resolve(headers, "10.0.0.1") == who


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Basic sk-planted-red"},
        {"authorization": "sk-planted-red"},
        {"authorization": "Bearer sk-planted-re"},
        {"authorization": "Bearer sk-planted-red2"},
        {"x-api-key": "\udcff"},
        {"x-team": "blue"},
        {"x-team": "gr\udcffen"},
    ],
)
def test_strangers_are_refused_where_no_anyone_is_listed(headers: dict[str, str]) -> None:
    answer = identify(KEYED).resolve(headers, "")
    assert isinstance(answer, Unauthorized)


def test_the_refusal_tells_a_missing_key_from_an_unknown_one_and_quotes_neither() -> None:
    who = identify(KEYED)
    missing, unknown = who.resolve({}), who.resolve({"x-api-key": "sk-other-secret"})
    assert isinstance(missing, Unauthorized)
    assert isinstance(unknown, Unauthorized)
    assert missing.message == "The API key is missing"
    assert unknown.message == "The API key is not known here"
    assert "other" not in repr(unknown)


@given(
    st.dictionaries(st.sampled_from(["authorization", "x-api-key", "api-key", "x-team"]), ANY_TEXT)
)
def test_no_header_makes_it_raise(headers: dict[str, str]) -> None:
    assert isinstance(identify(KEYED).resolve(headers), str | Unauthorized)


def test_strangers_are_anyone_where_it_is_listed_or_nobody_is() -> None:
    with_anyone = Policy(
        clients=(Client(name="red", key_env="RED"), Client(name="anyone", max_inflight=1))
    )
    for policy in (with_anyone, Policy()):
        assert identify(policy).resolve({"authorization": "Bearer EMPTY"}) == "anyone"
        assert identify(policy).resolve({}) == "anyone"
    assert identify(with_anyone).resolve({"x-api-key": "sk-planted-red"}) == "red"


def test_keys_by_digest_several_headers_and_addresses() -> None:
    policy = Policy(
        clients=(
            Client(
                name="lab",
                key_sha256=[hashlib.sha256(key).hexdigest() for key in (b"k1", b"k2")],
                header=[HeaderMatch(name="x-a", value="1"), HeaderMatch(name="x-b", value="2")],
                address=["10.0.0.0/8", "fd00::/8"],
            ),
            Client(name="desk", address="10.1.2.3"),
            Client(name="floor", address="10.1.0.0/16"),
        )
    )
    who = identify(policy)
    assert [who.resolve({"x-api-key": key}) for key in ("k1", "k2")] == ["lab", "lab"]
    assert [who.resolve(h) for h in ({"x-a": "1"}, {"x-b": "2"})] == ["lab", "lab"]
    callers = {
        "10.1.2.3": "desk",
        "10.1.2.4": "floor",
        "10.2.0.1": "lab",
        "::ffff:10.1.2.3": "desk",
        "fd00::1": "lab",
    }
    assert {peer: who.resolve({}, peer) for peer in callers} == callers
    for peer in ("11.0.0.1", "fe80::1%eth0", "", "localhost", "/run/kvgate.sock"):
        assert isinstance(who.resolve({}, peer), Unauthorized), peer
    assert who.resolve({"x-api-key": "k1"}, "10.1.2.3") == "lab", "a key says more than an address"
    assert who.resolve({"x-a": "1"}, "10.1.2.3") == "lab", "and so does a header"


def test_a_key_file_holds_several_keys_of_one_client(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("old\n\n  new  \n")
    who = identify(Policy(clients=(Client(name="a", key_file=path),)))
    assert [who.resolve({"x-api-key": key}) for key in ("old", "new")] == ["a", "a"]


def test_keys_are_kept_as_digests_and_shown_by_nothing() -> None:
    policy = Policy(
        backends=(Backend(url="http://b", name="b", api_key_env="BLUE"),),
        clients=(KEYED.clients[0],),
    )
    secrets = read_secrets(policy, ENV)
    assert secrets.digests == ((hashlib.sha256(b"sk-planted-red").digest(), "red"),)
    assert secrets.backend_keys["b"].get_secret_value() == "sk-planted-blue"
    who = Identify(policy, secrets)
    for thing in (secrets, who, secrets.backend_keys):
        assert "planted" not in repr(thing)
    held = gc.get_referents(who, secrets, *secrets.digests)
    assert not any("planted-red" in str(thing) for thing in held)


def test_every_digest_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def spy(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return a == b

    who = identify(KEYED)
    monkeypatch.setattr(hmac, "compare_digest", spy)
    assert who.resolve({"x-api-key": "sk-planted-red"}) == "red"
    assert len(compared) == 2


def test_a_variable_that_vanished_is_told() -> None:
    with pytest.raises(PolicyError, match=r"clients\[1\].key_env = 'BLUE': is not set"):
        read_secrets(KEYED, {"RED": "x"})


def test_no_secrets_is_a_value() -> None:
    assert read_secrets(Policy(), {}) == Secrets()


WRAPPED = {
    "sk-a\nsk-b": "line break",
    "sk-a\tsk-b": "control character",
    '"sk-a"': "without quotes",
    "'sk-a'": "without quotes",
    "Bearer sk-a": "word Bearer",
}


@pytest.mark.parametrize("key", list(WRAPPED))
def test_a_key_that_came_with_its_wrapping_is_found_at_the_start(key: str) -> None:
    """A server's key with a line break in it can be written into no header: nothing would be asked of
    that server any more. Of a client's key nobody would know why each of its requests is a 401."""
    server = Policy(backends=(Backend(url="http://b", name="b", api_key_env="K"),))
    for policy in (server, Policy(clients=(Client(name="a", key_env="K"),))):
        with pytest.raises(PolicyError, match=WRAPPED[key]) as told:
            read_secrets(policy, {"K": key})
        assert "sk-" not in str(told.value)
    leases = Leases(url="redis://r", password_env="K")
    secrets = read_secrets(Policy(leases=leases), {"K": key})
    assert secrets.of_leases == key, "a password may be anything"


@pytest.mark.parametrize("text", [b'"sk-a"\r\n', b"sk-a\nBearer sk-b\n"])
def test_and_so_is_one_in_a_file(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(text)
    with pytest.raises(PolicyError, match="write the key"):
        read_secrets(Policy(clients=(Client(name="a", key_file=path),)))


@pytest.mark.parametrize("odd", ["pipe", "/dev/zero", "/dev/null"])
def test_a_key_file_that_is_no_file_is_not_read(tmp_path: Path, odd: str) -> None:
    """Of a pipe nobody knows when it speaks, and a device may never end."""
    path = tmp_path / odd
    if odd == "pipe":
        os.mkfifo(path)
    with pytest.raises(PolicyError, match="is no plain file"):
        read_secrets(Policy(clients=(Client(name="a", key_file=path),)))


def test_a_key_file_that_cannot_even_be_looked_for_is_told_of_like_any_other(
    tmp_path: Path,
) -> None:
    """A folder that may not be entered, or, as root may enter all, a name that is too long."""
    with pytest.raises(PolicyError, match="cannot be read: file name too long"):
        read_secrets(Policy(clients=(Client(name="a", key_file=tmp_path / ("k" * 300)),)))


def test_the_mark_that_editors_of_windows_begin_a_file_with_is_no_part_of_the_key(
    tmp_path: Path,
) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"\xef\xbb\xbfsk-a\r\n")
    who = identify(Policy(clients=(Client(name="a", key_file=path),)))
    assert who.resolve({"x-api-key": "sk-a"}) == "a"
