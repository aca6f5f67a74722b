"""Hosts in a policy: `limits.media_hosts` and `control_hosts`, and what `kvgate check` says of mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from gateway.policy.bounds import Limits
from gateway.policy.hosts import is_here
from gateway.policy.load import load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.schema import Backend, Policy

if TYPE_CHECKING:
    from pathlib import Path

SERVERS = (Backend(url="http://127.0.0.1:30000"),)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("pictures.lan", "pictures.lan"),
        (" Pictures.LAN. ", "pictures.lan"),
        ("pictures.lan:8000", "pictures.lan:8000"),
        ("*.corp.example", "*.corp.example"),
        ("*.corp.example:80", "*.corp.example:80"),
        ("10.0.0.7", "10.0.0.7"),
        ("[fd00:0::7]", "[fd00::7]"),
        ("[FD00::7]:80", "[fd00::7]:80"),
        ("nas", "nas"),
    ],
)
def test_hosts_are_written_as_they_are_compared(written: str, meant: str) -> None:
    assert Limits(media_hosts=written).media_hosts == (meant,)


@pytest.mark.parametrize(
    ("written", "wrong", "remedy"),
    [
        ("http://pictures.lan", "with a scheme", "pictures.lan"),
        ("pictures.lan/", "path", "pictures.lan"),
        ("10.0.0.0/8", "prefix", "10.0.0.7"),
        ("u@pictures.lan", "credentials", "pictures.lan"),
        ("*", "every host", "media: any"),
        ("a.*.lan", "not its first label", "*.corp.example"),
        ("**.lan", "not its first label", "*.corp.example"),
        ("fd00::7", "without brackets", "[fd00::7]"),
        ("[fd00::x]", "not a host", "[fd00::7]"),
        ("[::::]", "not a host", "[fd00::7]"),
        ("pictures.lan:0", "not a host", "PORT"),
        ("pictures.lan:70000", "not a host", "PORT"),
        ("", "not a host", "pictures.lan"),
        ("bücher.lan", "not a host", "pictures.lan"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(
    tmp_path: Path, written: str, wrong: str, remedy: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        f"backends: [{{url: 'http://127.0.0.1:1'}}]\nlimits: {{media_hosts: ['{written}']}}\n"
    )
    with pytest.raises(PolicyError) as refused:
        load_policy(file)
    (problem,) = refused.value.errors
    assert problem.path == "limits.media_hosts[0]"
    assert wrong in problem.wrong
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("text", "path", "wrong"),
    [
        ("limits: {media: none}", "limits.media", "must be 'public', 'any' or 'data'"),
        (
            "limits: {media: any, media_hosts: nas.lan}",
            "limits.media_hosts",
            "passes every host",
        ),
        ("control_hosts: ['*']", "control_hosts[0]", "every host"),
        ("control_hosts: ['gpu.example:8081']", "control_hosts[0]", "has a port"),
    ],
)
def test_what_contradicts_itself_is_told(tmp_path: Path, text: str, path: str, wrong: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"backends: [{{url: 'http://127.0.0.1:1'}}]\n{text}\n")
    with pytest.raises(PolicyError) as refused:
        load_policy(file)
    (problem,) = refused.value.errors
    assert (problem.path, wrong in problem.wrong) == (path, True)


def test_a_port_of_the_control_plane_s_names_counts_for_nothing() -> None:
    assert Policy(backends=SERVERS, control_hosts="GPU.example").control_hosts == ("gpu.example",)
    with pytest.raises(ValidationError):
        Policy(backends=SERVERS, control_hosts="gpu.example:1")


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *((host, True) for host in ("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "10.1.2.3", "[::1]")),
        *((host, True) for host in ("box", "BOX", "box.")),
        *((host, False) for host in ("evil.example", "localhost.evil.example", "box.evil.example", "xlocalhost")),
        *((host, False) for host in ("127.0.0.1.nip.io", "1", "", ".", "evil.localhost.example")),
    ],
)  # fmt: skip
def test_which_names_nobody_else_answers_for(host: str, here: Any) -> None:
    assert is_here(host, "box") is here


def test_no_mistake_beside_hides_it(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "backends: [{url: 'http://127.0.0.1:1'}]\n"
        "limits: {media: any, media_hosts: [a.lan], image_pixels: 0}\n"
    )
    with pytest.raises(PolicyError) as refused:
        load_policy(file)
    assert {problem.path for problem in refused.value.errors} == {
        "limits.media_hosts",
        "limits.image_pixels",
    }
    with pytest.raises(ValidationError):
        Policy(
            backends=[{"url": "http://127.0.0.1:1"}],
            limits={"media": "any", "media_hosts": ["a.lan"]},
        )


def test_names_without_a_port_are_told_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("backends: [{url: 'http://127.0.0.1:1'}]\ncontrol_hosts: ['*', 'http://x']\n")
    with pytest.raises(PolicyError) as refused:
        load_policy(file)
    assert all("name alone" in problem.remedy for problem in refused.value.errors)
    assert len(refused.value.errors) == 2
