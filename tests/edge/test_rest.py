"""What a connection lets go of while its request waits is back for what comes next."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import EMPTY_PAYLOAD, HttpVersion11, web
from aiohttp.http import RawRequestMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.edge.face import Face, _left_of, _Talk, rest
from tests.edge.rig import CHAT, TEXT, chat, request
from tests.fakes.behaviour import Behaviour

FULL = {"prompt": [1] * 20, "max_tokens": 5000, "stream": True}
KINDS = ("sized", "chunked", "bare", "empty", "blank")


class Transport(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


def one(number: int, kind: str) -> bytes:
    """A request; those of a length end like a head, or begin one."""
    head = f"POST /{number} HTTP/1.1\r\nhost: a\r\n"
    body = f"\r\n\r\nPOST /x HTTP/1.1\r\nhost: {number}\r\n\r\n"
    match kind:
        case "sized":
            return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()
        case "blank":  # lines before it, which HTTP lets pass
            return b"\r\n\r\n" + one(number, "sized")
        case "chunked":
            return f"{head}transfer-encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n".encode()
        case "bare":
            return f"GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n".encode()
        case _:
            return f"{head}content-length: 0\r\n\r\n".encode()


async def answers(pieces: list[bytes], requests: int) -> tuple[list[bytes], int]:
    """What comes of bytes that arrive in `pieces`, each while the one before is answered; and how
    often the parser was let go of."""
    dropped = 0

    async def handle(request: web.BaseRequest) -> web.Response:
        nonlocal dropped
        body = await request.read()
        rest(request)
        dropped += talk._parser is None
        for _ in range(3):
            await asyncio.sleep(0)
        assert request.headers["host"] == "a"
        told = [request.method, request.path, request.remote, len(body)]
        return web.Response(text=json.dumps(told) + "\n")

    face = Face(handle, access_log=None)
    talk = face()
    assert isinstance(talk, _Talk)
    transport = Transport()
    talk.connection_made(transport)
    for piece in pieces:
        talk.data_received(piece)
        await asyncio.sleep(0)
    for _ in range(50 * requests):
        await asyncio.sleep(0)
    talk.connection_lost(None)
    await asyncio.sleep(0)
    return [line for line in transport.written.splitlines() if line.startswith(b"[")], dropped


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 600), max_size=8),
)
def test_whatever_way_requests_arrive_each_is_answered_in_its_turn(kinds, cuts) -> None:
    sent = b"".join(one(number, kind) for number, kind in enumerate(kinds))
    at = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    pieces = [sent[a:b] for a, b in pairwise(at) if a < b]
    told, _ = asyncio.run(answers(pieces, len(kinds)))
    assert [json.loads(line)[1] for line in told] == [f"/{number}" for number in range(len(kinds))]
    bodies = {"sized": 33, "chunked": 33, "bare": 0, "empty": 0, "blank": 33}
    assert [json.loads(line)[3] for line in told] == [bodies[kind] for kind in kinds]


@pytest.mark.parametrize("cut", [0, 30, "head", "body"])
async def test_the_parser_goes_where_it_holds_nothing(cut: int | str) -> None:
    first = one(0, "sized")
    head = first.index(b"\r\n\r\n") + 4
    at = {"head": head, "body": head + 5}.get(cut, cut)  # type: ignore[arg-type]
    pieces = [piece for piece in (first[:at], first[at:]) if piece]
    _, dropped = await answers(pieces, 1)
    assert dropped == (cut != 30), "half a head was read: not known"


async def test_the_parser_stays_where_a_part_of_the_next_head_is_in_it() -> None:
    both = one(0, "sized") + one(1, "sized")
    told, dropped = await answers([both[:-60], both[-60:]], 2)
    assert len(told) == 2
    assert dropped == 0


async def test_a_body_that_was_read_goes_while_its_request_waits() -> None:
    kept = []

    async def handle(request: web.BaseRequest) -> web.Response:
        await request.read()
        rest(request)
        kept.append(request.content)
        return web.Response()

    talk = Face(handle, access_log=None)()
    talk.connection_made(Transport())
    talk.data_received(one(0, "sized"))
    for _ in range(50):
        await asyncio.sleep(0)
    talk.connection_lost(None)
    assert kept == [EMPTY_PAYLOAD], "one for all; its own has a kilobyte"


async def test_a_whole_address_is_still_what_it_was() -> None:
    seen = []

    async def handle(request: web.BaseRequest) -> web.Response:
        await request.read()
        rest(request)
        seen.append((str(request.url), request.host))
        return web.Response()

    talk = Face(handle, access_log=None)()
    talk.connection_made(Transport())
    sent = b"POST http://whole/0 HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx"
    talk.data_received(sent)
    for _ in range(20):
        await asyncio.sleep(0)
    talk.connection_lost(None)
    assert seen == [("http://whole/0", "whole")]


def test_a_head_that_ended_before_it_seemed_to_tells_nothing() -> None:
    head: Any = RawRequestMessage(
        *(
            "POST",
            "/",
            HttpVersion11,
            CIMultiDict({"content-length": "9"}),
            (),
            False,
            None,
            False,
            False,
            None,
        )
    )
    left = [
        _left_of(data, head, SimpleNamespace(total_bytes=had))  # type: ignore[arg-type]
        for data, had in (
            (b"head\r\n\r\n", 0),
            (b"head\r\n\r\nbody", 4),
            (b"head\r\n\r\nbody" + b"x" * 5, 9),
            (b"\r\n\r\nhead\r\n\r\nbody", 4),  # blank lines before it, which HTTP lets pass
            (b"head\r\n\r\n" + b"x" * 10, 10),  # more than it says
            (b"half a head", 0),
        )
    ]
    assert left == [9, 5, 0, None, None, None]


async def test_a_connection_whose_request_waits_keeps_next_to_nothing(rig) -> None:
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
    running = asyncio.ensure_future(rig.post(TEXT, FULL))
    await rig.engine.arrived()
    async with rig.socket() as peer:
        await peer.send(request(CHAT, chat(max_tokens=3)))
        await rig.queued()
        [trip] = [trip for trip in rig.app.data.under_way._tasks if trip.attempts == 0]
        talk = trip.request.protocol
        assert (talk._parser, talk._keepalive_handle, talk._cache) == (None, None, {})
        assert trip.request.raw_headers == ()
        assert not isinstance(talk._messages, deque)
        assert trip.request.content is EMPTY_PAYLOAD
        await peer.send(request(CHAT, chat(max_tokens=4)))  # the next one, before its answer
        hold.set()
        for _ in range(2):
            status, fields = await peer.head()
            assert status == 200
            await peer.reader.readexactly(int(fields["content-length"]))
        assert talk._keepalive_handle is not None, "a silent connection ends, as before"
        await peer.send(b"GET / HTTP/1.1\r\nhost: a\r\nx-long: " + b"x" * 20_000 + b"\r\n\r\n")
        assert (await peer.head())[0] == 431, "the limits hold for the next one"
    await running
