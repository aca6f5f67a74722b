"""A name with several addresses: one that leads nowhere costs a second, once, and not the server."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.upstream import way
from gateway.upstream.client import Client
from gateway.upstream.errors import Failure, UpstreamError
from tests.upstream.engine import engine

if TYPE_CHECKING:
    from collections.abc import Iterator

CERTIFICATES = Path(__file__).parents[1] / "edge" / "certificates"


@contextmanager
def nowhere() -> Iterator[tuple[str, int]]:
    """An address whose machine says nothing: its queue is full, and packets for it are dropped."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for one in fillers:
            one.setblocking(False)
            assert one.connect_ex(full.getsockname()) == errno.EINPROGRESS
        yield full.getsockname()
        for one in fillers:
            one.close()


def shut() -> tuple[str, int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address: tuple[str, int] = taken.getsockname()
    return address


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses of every name, to be filled in."""
    addresses: list[Any] = []

    async def found(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one) for one in addresses]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", found)
    return addresses


def address_of(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rpartition(":")[2])


async def asked(client: Client) -> float:
    began = time.monotonic()
    reply = await client.request("GET", "/v1/models", ())
    reply.close()
    return time.monotonic() - began


async def test_an_address_that_leads_nowhere_costs_a_second_once(name) -> None:
    async with engine() as it:
        with nowhere() as silent:
            name += [silent, address_of(it.url)]
            client = Client("http://gpu0.example:30000", keepalive_s=0)
            assert way.ONE_S <= await asked(client) < 3, "within the 5 s for a connection"
            assert await asked(client) < way.ONE_S, (
                "and the next one goes where that one came through"
            )
            await client.close()


async def test_of_several_that_answer_it_stays_with_one(name) -> None:
    async with engine() as one, engine() as other:
        name += [address_of(one.url), address_of(other.url)]
        client = Client("http://gpu0.example:30000", keepalive_s=0)
        await asked(client)
        for _ in range(3):
            name.reverse()  # as name servers do
            await asked(client)
        assert (len(one.requests), len(other.requests)) == (4, 0)
        name.remove(address_of(one.url))
        await asked(client)
        assert len(other.requests) == 1, "until the name has it no more"
        await client.close()


async def test_where_one_says_that_nobody_listens_that_is_told(name) -> None:
    with nowhere() as silent:
        name += [silent, shut()]
        client = Client("http://gpu0.example:30000", keepalive_s=0)
        with pytest.raises(UpstreamError) as told:
            await asked(client)
        assert told.value.kind is Failure.CONNECT
        name[:] = [silent]
        client = Client("http://gpu0.example:30000", connect_timeout_s=0.2)
        with pytest.raises(UpstreamError) as told:
            await asked(client)
        assert told.value.kind is Failure.NO_WAY


async def test_who_is_asked_by_its_address_needs_no_name_server(monkeypatch) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", away)
    async with engine() as it:
        client = Client(it.url)
        await asked(client)
        await client.close()


async def test_no_proxy_of_the_environment_is_between(monkeypatch) -> None:
    """Set for the way out of the house; a server of one's own would be asked through it."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    async with engine() as it:
        client = Client(it.url)
        await asked(client)
        await client.close()
        assert len(it.requests) == 1


async def test_the_certificate_is_held_against_the_name(name) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
    server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0, ssl=context)
    trusting = ssl.create_default_context(cafile=str(CERTIFICATES / "first.pem"))
    name.append(server.sockets[0].getsockname())
    for host, kind in (("localhost", Failure.RESET), ("gpu0.example", Failure.TLS)):
        client = Client(f"https://{host}:443", ssl=trusting)
        with pytest.raises(UpstreamError) as told:
            await asked(client)
        assert told.value.kind is kind, host
        await client.close()
    server.close()
