"""Pieces of a stream on the client's socket: framing, a full socket, a client that is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.edge.wire import Wire


def wire(*, chunked: bool = True, paused: bool = False, closing: bool = False) -> tuple[Wire, Any]:
    written: list[bytes] = []
    transport = SimpleNamespace(write=written.append, is_closing=lambda: closing)
    protocol = SimpleNamespace(transport=transport, writing_paused=paused)
    request = SimpleNamespace(protocol=protocol, writer=SimpleNamespace(chunked=chunked))
    return Wire(request), SimpleNamespace(written=written, protocol=protocol)  # type: ignore[arg-type]


def test_a_piece_is_one_chunk() -> None:
    one, peer = wire()
    assert one.put(b"x" * 17)
    assert peer.written == [b"11\r\n" + b"x" * 17 + b"\r\n"]


def test_a_client_of_http_1_0_gets_bare_bytes() -> None:
    one, peer = wire(chunked=False)
    assert one.put(b"data: 1\n\n")
    assert peer.written == [b"data: 1\n\n"]


def test_a_full_socket_is_told_so_that_the_server_is_slowed_down() -> None:
    one, peer = wire(paused=True)
    assert not one.put(b"x")
    assert len(peer.written) == 1, "what came is not lost"


@pytest.mark.parametrize("gone", ["closing", "closed"])
def test_nothing_is_written_to_a_client_that_is_gone(gone) -> None:
    one, peer = wire(closing=gone == "closing")
    if gone == "closed":
        peer.protocol.transport = None
    with pytest.raises(ConnectionResetError):
        one.put(b"x")
    assert peer.written == []
