"""What keeps several workers from starting is one sentence, told before any of them is started."""

from __future__ import annotations

import socket
import sys
from contextlib import closing

import pytest

from gateway.cli import serve
from gateway.workers import supervisor


@pytest.fixture(autouse=True)
def nobody_is_started(monkeypatch) -> None:
    monkeypatch.setattr(serve, "configure", lambda _: None)  # the log is other tests' as well

    def never(*_: object) -> None:
        raise AssertionError("it went on")

    monkeypatch.setattr(supervisor, "Supervisor", never)


def options(listen: str, control: str = "127.0.0.1:0") -> list[str]:
    return ["--backend", "http://127.0.0.1:1", "--listen", listen, "--control", control]


def taken(*, shared: bool) -> socket.socket:
    made = socket.socket()
    if shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_that_is_taken_is_a_sentence(capsys, shared) -> None:
    """Also by the workers of another gate, with which the system would let it be shared."""
    with closing(taken(shared=shared)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        for argv in (options(address), options("127.0.0.1:0", address)):
            assert serve.run([*argv, "--workers", "2"]) == 2
            told = capsys.readouterr().err
            assert told == (
                "kvgate: cannot listen: Address already in use; end what listens there, or choose "
                "others with --listen and --control\n"
            )


def test_a_store_that_cannot_be_used_is_a_sentence(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    path = tmp_path / "policy.yaml"
    path.write_text('leases: {url: "redis://127.0.0.1:1"}\nworkers: 2\n')
    assert serve.run([str(path), *options("127.0.0.1:0")]) == 2
    assert "pip install kvgate[redis]" in capsys.readouterr().err


def test_a_temporary_folder_too_deep_for_a_socket_is_a_sentence(
    tmp_path, monkeypatch, capsys
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert serve.run([*options("127.0.0.1:0"), "--workers", "2"]) == 2
    assert "set TMPDIR to a shorter one" in capsys.readouterr().err
    assert list(deep.iterdir()) == []


def test_a_number_that_is_none_is_a_sentence(capsys) -> None:
    assert serve.run([*options("127.0.0.1:0"), "--workers", "0"]) == 2
    assert "--workers: workers = 0" in capsys.readouterr().err


def test_more_than_one_is_what_starts_a_supervisor() -> None:
    with pytest.raises(AssertionError, match="it went on"):
        serve.run([*options("127.0.0.1:0"), "--workers", "2"])
