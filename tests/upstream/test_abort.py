"""Abort: one request, by its whole id, and never an exception for a server that is away."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.upstream.abort import MIN_RID, AbortResult, abort
from gateway.upstream.errors import UpstreamError
from tests.upstream.scripted import refused

RID = "0123456789abcdef0123456789abcdef"


class Client:
    """Answers every request with `status`, or raises it, or never answers (None)."""

    def __init__(self, status: int | UpstreamError | None = 200) -> None:
        self.status = status
        self.sent: list[tuple[str, str, dict[str, str], bytes]] = []
        self.closed = 0

    async def request(self, method, target, headers, body=b""):
        self.sent.append((method, target, dict(headers), body))
        if isinstance(self.status, UpstreamError):
            raise self.status
        return self

    async def read_all(self, limit: int) -> bytes:
        if self.status is None:
            await asyncio.Event().wait()
        return b""

    def close(self) -> None:
        self.closed += 1


async def test_says_the_whole_id_and_nothing_else():
    client = Client()
    assert await abort(client, RID, api_key=None, timeout_s=1.0) is AbortResult.TOLD
    ((method, target, headers, body),) = client.sent
    assert (method, target) == ("POST", "/abort_request")
    assert json.loads(body) == {"rid": RID}
    assert headers == {"content-type": "application/json"}
    assert client.closed == 1


async def test_carries_the_key():
    client = Client()
    await abort(client, RID, api_key="sk-one", timeout_s=1.0)
    assert client.sent[0][2]["authorization"] == "Bearer sk-one"


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("status", "result"),
    [
        (200, AbortResult.TOLD),
        (401, AbortResult.DENIED),
        (404, AbortResult.DENIED),
        (refused(), AbortResult.UNHEARD),
        (None, AbortResult.UNHEARD),
    ],
)
async def test_every_ending_is_a_word(status, result):
    client = Client(status)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await abort(client, RID, api_key=None, timeout_s=2.0) is result
    assert loop.time() - began <= 2.01
    assert client.closed == (not isinstance(status, UpstreamError))


@pytest.mark.parametrize("rid", ["", "a", "HEALTH_CHECK", RID[: MIN_RID - 1]])
async def test_short_ids_never_leave(rid):
    client = Client()
    with pytest.raises(ValueError, match="by prefix"):
        await abort(client, rid, api_key=None, timeout_s=1.0)
    assert client.sent == []


async def test_the_shortest_whole_id_leaves():
    assert await abort(Client(), RID[:MIN_RID], api_key=None, timeout_s=1.0) is AbortResult.TOLD
