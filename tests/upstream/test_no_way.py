"""No connection to be had is not always a death: what the machine says itself, and what nobody does."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from pathlib import Path

import pytest

from gateway.upstream.ask import AskError, Wrong, ask
from gateway.upstream.client import Client
from gateway.upstream.discover import DiscoveryError, discover
from gateway.upstream.door import Door
from gateway.upstream.errors import Failure, UpstreamError, why_none
from tests.upstream.engine import closing_after, engine
from tests.upstream.scripted import ScriptedClient

CERTIFICATES = Path(__file__).parents[1] / "edge" / "certificates"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), Failure.CONNECT),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), Failure.CONNECT),
        (OSError("Multiple exceptions: [Errno 113] x, [Errno 111] y"), Failure.CONNECT),
        (OSError("Multiple exceptions: [Errno 113] x, [Errno 101] y"), Failure.NO_WAY),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), Failure.NO_WAY),
        (socket.gaierror(socket.EAI_NONAME, "Name not known"), Failure.NO_WAY),
        (OSError(errno.EHOSTUNREACH, "No route to host"), Failure.NO_WAY),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), Failure.NO_WAY),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), Failure.NO_WAY),
        (ssl.SSLCertVerificationError(1, "certificate has expired"), Failure.TLS),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), Failure.OURS),
    ],
)
def test_what_an_error_says_of_the_server(error: OSError, kind: Failure) -> None:
    assert why_none(error) is kind


async def test_a_certificate_that_is_not_trusted_is_no_shut_door() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
    server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0, ssl=context)
    client = Client(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        with pytest.raises(AskError) as caught:
            await ask(client, "/v1/models", (), timeout_s=5)
        assert caught.value.wrong is Wrong.TLS
    finally:
        await client.close()
        server.close()


async def test_a_door_that_shuts_at_once_is_shut() -> None:
    async with engine() as it:
        it.scripts.append(closing_after())
        client = Client(it.url)
        with pytest.raises(AskError) as caught:
            await ask(client, "/v1/models", (), timeout_s=5)
        await client.close()
    assert caught.value.wrong is Wrong.SHUT


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (Failure.CONNECT, "unreachable", "start the server"),
        (Failure.NO_WAY, "no_way", "the name server"),
        (Failure.TLS, "tls", "certificate"),
    ],
)
async def test_each_is_told_with_its_remedy(failure: Failure, kind: str, words: str) -> None:
    client = ScriptedClient()
    client.override["/v1/models"] = UpstreamError(failure, "No.", sent=False, answered=False)
    with pytest.raises(DiscoveryError, match=words) as caught:
        await discover(client, api_key=None, timeout_s=1)
    assert caught.value.kind == kind


# ---- when what it held is gone -------------------------------------------------------------------


def test_shut_twice_it_is_gone_and_that_is_said_once() -> None:
    door = Door(60)
    said = [door.failed("unreachable", now) for now in (0.0, 0.2, 0.6, 90.0)]
    assert said == [False, True, False, False]
    assert door.was_shut
    door.opened()
    assert not door.was_shut
    assert [door.failed("unreachable", now) for now in (100.0, 100.2)] == [False, True]


def test_no_way_to_it_takes_as_long_as_connections_live() -> None:
    door = Door(60)
    said = [door.failed("no_way", float(now)) for now in range(0, 70, 2)]
    assert said.index(True) == 30
    assert said.count(True) == 1
    assert not door.was_shut


def test_the_time_without_a_way_is_one_piece() -> None:
    door = Door(60)
    assert not door.failed("no_way", 0.0)
    assert not door.failed("hung", 50.0)  # it was found, and did not speak
    assert not door.failed("no_way", 70.0)
    assert not door.failed("no_way", 129.0)
    assert door.failed("no_way", 130.0)


def test_a_certificate_that_will_not_do_never_ends_what_runs() -> None:
    door = Door(60)
    assert not any(door.failed("tls", float(now)) for now in range(0, 10_000, 2))
