"""More connections than there is room for: who waits for nothing makes room, and the server is not to blame."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from itertools import pairwise
from typing import Any

import pytest

from gateway.edge import face
from gateway.edge.handler import CONNECTS
from gateway.upstream.errors import Failure, UpstreamError, is_ours
from tests.edge.rig import CHAT, Peer, chat, request
from tests.fakes.behaviour import Behaviour


@pytest.fixture
def three(rig, monkeypatch: pytest.MonkeyPatch):
    """A gate with room for three clients."""
    monkeypatch.setattr(rig.app.listeners.runners[0].server, "_most", 3)
    monkeypatch.setattr(face, "LOOK_S", 0.0)
    return rig


async def _connected(rig, stack: list[Peer]) -> Peer:
    """One more client; the gate has seen it."""
    server = rig.app.listeners.runners[0].server
    before = server.requests_count, len(server._connections)
    peer = Peer(*await asyncio.open_connection("127.0.0.1", rig.port))
    stack.append(peer)
    await rig.until(lambda: (server.requests_count, len(server._connections)) != before)
    return peer


@pytest.fixture
async def peers():
    made: list[Peer] = []
    yield made
    for peer in made:
        peer.writer.close()


async def _answered(peer: Peer) -> int:
    status, fields = await peer.head()
    await peer.reader.readexactly(int(fields["content-length"]))
    return status


async def test_the_one_that_is_idle_for_longest_makes_room(three, peers) -> None:
    rig = three
    rig.engine.default = Behaviour(tokens=1)
    first, second, third = [await _connected(rig, peers) for _ in range(3)]
    for peer in (first, third):  # the second has said nothing since it came
        await peer.send(request(CHAT, chat(max_tokens=1)))
        assert await _answered(peer) == 200
    fourth = await _connected(rig, peers)
    assert await second.rest() == b""
    for peer in (first, third, fourth):
        await peer.send(request(CHAT, chat(max_tokens=1)))
        assert await _answered(peer) == 200
    rig.handled = 5


async def test_as_many_as_come_at_once_find_room_where_as_many_are_idle(
    three, peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search does for all of them."""
    monkeypatch.setattr(face, "LOOK_S", 0.1)
    rig = three
    rig.engine.default = Behaviour(tokens=1)
    old = [await _connected(rig, peers) for _ in range(3)]
    came = [socket.create_connection(("127.0.0.1", rig.port)) for _ in range(3)]
    for sock in came:
        sock.sendall(request(CHAT, chat(max_tokens=1)))
        sock.setblocking(False)
    for sock in came:
        with sock:
            answer = await asyncio.get_running_loop().sock_recv(sock, 65536)
            assert answer.startswith(b"HTTP/1.1 200 ")
    assert [await peer.rest() for peer in old] == [b""] * 3
    await rig.until(lambda: not rig.app.listeners.runners[0].server._idle, within_s=5)
    rig.handled = 3


async def test_where_all_are_busy_one_more_is_told(three, peers) -> None:
    rig = three
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=1, hold=hold)
    busy = [await _connected(rig, peers) for _ in range(3)]
    for peer in busy:
        await peer.send(request(CHAT, chat(max_tokens=1)))
    await rig.engine.arrived(3)
    late = Peer(*await asyncio.open_connection("127.0.0.1", rig.port))
    peers.append(late)
    head, _, body = (await late.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in head
    assert json.loads(body)["error"]["code"] == "queue_full"
    hold.set()
    assert [await _answered(peer) for peer in busy] == [200] * 3
    rig.handled = 3


async def _full(rig, peers: list[Peer]) -> tuple[asyncio.Event, list[Peer]]:
    """Three clients whose requests run until the event is set."""
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=1, hold=hold)
    busy = [await _connected(rig, peers) for _ in range(3)]
    for peer in busy:
        await peer.send(request(CHAT, chat(max_tokens=1)))
    await rig.engine.arrived(3)
    return hold, busy


async def _said(sock: socket.socket) -> bytes:
    """All that comes on a connection, to its end."""
    data = b""
    while more := await asyncio.get_running_loop().sock_recv(sock, 65536):
        data += more
    return data


async def test_one_more_that_has_sent_its_request_already_is_told_as_well(three, peers) -> None:
    """A connection that is closed with bytes unread ends in a reset, which overtakes the answer."""
    rig = three
    hold, busy = await _full(rig, peers)
    server = rig.app.listeners.runners[0].server
    with socket.create_connection(("127.0.0.1", rig.port)) as late:
        late.sendall(request(CHAT, chat(words=2000)))  # before the gate has looked at it
        late.setblocking(False)
        assert (await _said(late)).startswith(b"HTTP/1.1 503 ")
        await asyncio.get_running_loop().sock_sendall(late, b"x" * 1_000)  # it is still listened to
        assert len(server._connections) == 4
        hold.set()
        assert [await _answered(peer) for peer in busy] == [200] * 3
    await rig.until(lambda: len(server._connections) == 3)
    assert not server.refused
    rig.handled = 3


async def test_nobody_is_listened_to_for_long_or_where_many_are(
    three, peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(face, "REFUSED_S", 0.1)
    rig = three
    hold, busy = await _full(rig, peers)
    server = rig.app.listeners.runners[0].server
    with socket.create_connection(("127.0.0.1", rig.port)) as silent:
        silent.setblocking(False)
        assert (await _said(silent)).startswith(b"HTTP/1.1 503 ")
        await rig.until(lambda: len(server._connections) == 3)
    monkeypatch.setattr(face, "MOST_REFUSED", 0)
    monkeypatch.setattr(face, "REFUSED_S", 3600.0)
    with socket.create_connection(("127.0.0.1", rig.port)) as one_too_many:
        one_too_many.setblocking(False)
        assert (await _said(one_too_many)).startswith(b"HTTP/1.1 503 ")
        await rig.until(lambda: len(server._connections) == 3)
    hold.set()
    assert [await _answered(peer) for peer in busy] == [200] * 3
    rig.handled = 3


async def test_who_is_told_takes_nobodys_room(three, peers) -> None:
    rig = three
    hold, busy = await _full(rig, peers)
    server = rig.app.listeners.runners[0].server
    with socket.create_connection(("127.0.0.1", rig.port)) as late:
        late.setblocking(False)
        assert (await _said(late)).startswith(b"HTTP/1.1 503 ")
        busy[0].writer.close()
        await rig.until(lambda: len(server._connections) == 3)
        fourth = await _connected(rig, peers)
        hold.set()
        await fourth.send(request(CHAT, chat(max_tokens=1)))
        assert await _answered(fourth) == 200
    assert [await _answered(peer) for peer in busy[1:]] == [200] * 2
    rig.handled = 4


async def test_a_gate_without_open_files_waits_and_blames_nobody(rig, monkeypatch) -> None:
    """Class E: one client's idle connections took all files, and its server was said to have died:
    every running answer was cut."""
    monkeypatch.setattr("gateway.edge.handler.PAUSE_S", 0.02)
    loop = asyncio.get_running_loop()
    tried = 0

    async def none_left(*_: object, **__: object) -> None:
        nonlocal tried
        tried += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=3, hold=hold, hold_at=2)
    running = asyncio.ensure_future(rig.chat(stream=True, max_tokens=3))
    await rig.engine.arrived()
    said: list[str] = []
    log = rig.app.deaths.failures._log
    monkeypatch.setattr(
        rig.app.deaths.failures,
        "_log",
        type("Log", (), {"error": lambda _, *a, **k: said.append(a[0])})(),
    )
    client = rig.app.fleet.backends["gpu0"].client
    with monkeypatch.context() as patch:
        for connection in list(client._idle):
            connection.close()
        patch.setattr(client, "_idle", {})
        patch.setattr(loop, "create_connection", none_left)
        waits = Peer(*await _dial(rig.port))
        await waits.send(request(CHAT, chat(max_tokens=1)))
        await rig.until(lambda: tried > 2 * 3)
        assert (await _state(rig)) == "ready"
        assert not running.done()
    monkeypatch.setattr(rig.app.deaths.failures, "_log", log)
    hold.set()
    assert (await running).status == 200
    assert await _answered(waits) == 200
    waits.writer.close()
    assert said == ["no_room_for_connections"], "once a minute"
    rig.handled = 2


async def _dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Not by `loop.create_connection`."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setblocking(False)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _state(rig) -> str:
    return str(rig.app.fleet.backends["gpu0"].watch.snapshot().state)


@pytest.mark.parametrize(
    ("code", "ours"),
    [
        (errno.EMFILE, True),
        (errno.ENFILE, True),
        (errno.EADDRNOTAVAIL, True),
        (errno.ECONNREFUSED, False),
        (errno.EHOSTUNREACH, False),
        (None, False),
    ],
)
def test_what_says_nothing_of_a_server(code: int | None, ours: bool) -> None:
    assert is_ours(OSError(code, "x")) is ours


def test_a_name_that_cannot_be_looked_up_for_want_of_a_file_is_ours(monkeypatch) -> None:
    def none_left(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "x")

    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert not is_ours(error)
    monkeypatch.setattr(os, "open", none_left)
    assert is_ours(error)


async def test_a_name_server_that_is_away_is_no_death_of_a_server(rig, monkeypatch) -> None:
    """Its name was not found for a second: every running answer was cut, "the server died"."""
    loop = asyncio.get_running_loop()
    tried = 0

    async def no_name(*_: object, **__: object) -> None:
        nonlocal tried
        tried += 1
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=3, hold=hold, hold_at=2)
    running = asyncio.ensure_future(rig.chat(stream=True, max_tokens=3))
    await rig.engine.arrived()
    backend = rig.app.fleet.backends["gpu0"]
    with monkeypatch.context() as patch:
        for connection in list(backend.client._idle):
            connection.close()
        patch.setattr(backend.client, "_idle", {})
        patch.setattr(loop, "create_connection", no_name)
        await rig.until(lambda: not backend.ready, 5)
        before = tried
        await rig.until(lambda: tried > before + 2, 5)
        assert (await _state(rig)) == "down"
        assert not running.done()
    await rig.until(lambda: backend.ready, 5)
    hold.set()
    assert (await running).status == 200
    assert backend.deaths == 0
    rig.handled = 1


NO_NAME = UpstreamError(Failure.NO_WAY, "No connection: no name.", sent=False, answered=False)


def _no_way(rig, patch: pytest.MonkeyPatch) -> list[float]:
    """Requests find no way to the server, while its watch has a connection. When each was tried."""
    client, tries = rig.app.fleet.backends["gpu0"].client, list[float]()
    send = client.send

    async def none(method: str, target: str, *args: Any, **more: Any) -> Any:
        if target != CHAT:
            return await send(method, target, *args, **more)
        tries.append(asyncio.get_running_loop().time())
        raise NO_NAME.with_traceback(None)

    patch.setattr(client, "send", none)
    return tries


async def test_a_request_waits_for_a_way_as_long_as_it_may(rig, monkeypatch) -> None:
    """The server's name was not found for ten seconds: who could have waited for 120 got a 503 after 3."""
    pause_s = 0.05
    monkeypatch.setattr("gateway.edge.handler.PAUSE_S", pause_s)
    backend = rig.app.fleet.backends["gpu0"]
    doubts: list[str] = []
    suspect = backend.suspect
    monkeypatch.setattr(backend, "suspect", lambda why: (doubts.append(why), suspect(why)))
    with monkeypatch.context() as patch:
        tries = _no_way(rig, patch)
        asked = asyncio.ensure_future(rig.chat(max_tokens=3))
        await rig.until(lambda: len(tries) > 3 * CONNECTS, 10)
        assert backend.ready, "others may go on"
    assert (await asked).status == 200
    assert len(doubts) == CONNECTS - 1
    gaps = [after - before for before, after in pairwise(tries)]
    assert min(gaps) >= pause_s - 0.002, "one try, and then a pause"
    rig.handled = 1


async def test_no_way_until_the_time_in_the_queue_is_over(start, monkeypatch) -> None:
    monkeypatch.setattr("gateway.edge.handler.PAUSE_S", 0.02)
    async with start({"queue": {"max_wait_s": 0.5}}) as rig:
        tries = _no_way(rig, monkeypatch)
        asked = asyncio.ensure_future(rig.chat(max_tokens=3))
        await rig.until(lambda: len(tries) > CONNECTS)
        # The last pause does not end in the moment in which its time is over.
        monkeypatch.setattr("gateway.edge.handler.PAUSE_S", 60.0)
        got = await asked
        assert (got.status, got.code) == (503, "queue_timeout")
        assert "takes nothing new for the moment" in got.error["message"]
        rig.handled = 1
