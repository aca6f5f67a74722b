"""A request that has ended is gone from memory at once, and not when the collector of cycles looks:
bodies are large, and a collector that finds nothing need not stop the loop to search."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from gateway.core.model import QueueRule
from gateway.edge import handler
from gateway.edge.trip import Trip
from tests.edge.rig import API_CHAT, CHAT, GENERATE, chat
from tests.fakes.behaviour import Behaviour, queue_full, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN = [{"role": "user", "content": "a b c"}]


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Trip]]]:
    """All that are made, while nothing looks for cycles."""
    seen: list[weakref.ref[Trip]] = []
    begun = Trip.__init__

    def begin(self: Trip, *args: Any) -> None:
        seen.append(weakref.ref(self))
        begun(self, *args)

    monkeypatch.setattr(Trip, "__init__", begin)
    gc.collect()
    gc.disable()
    yield seen
    gc.enable()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(max_tokens=3)),
        (CHAT, chat(max_tokens=3, stream=True)),
        (CHAT, chat(max_tokens=3, stream=True, n=2)),
        (GENERATE, {"text": "a b", "sampling_params": {"max_new_tokens": 3}}),
        (API_CHAT, {"model": "m", "messages": TURN, "options": {"num_predict": 3}}),
        ("/v1/messages", {"model": "m", "messages": TURN, "max_tokens": 3, "stream": True}),
        ("/v1/responses", {"model": "m", "input": "a b", "max_output_tokens": 3, "store": False}),
        (CHAT, chat(99_999)),
        (CHAT, b"{"),
        (CHAT, chat(model="nobody's")),
    ],
)
async def test_an_answered_request_is_gone(rig, trips, path: str, body: Any) -> None:
    await rig.post(path, body)
    rig.handled = len(trips)
    await rig.until(lambda: all(trip() is None for trip in trips))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "first",
    [
        queue_full(),
        refuse(400, "no"),
        refuse(500, "no"),
        Behaviour(reset_at=0),
        Behaviour(reset_at=1),
        Behaviour(tokens=3, close_at=2),
        Behaviour(tokens=3, error=(500, "no"), error_at=1),
        Behaviour(raw=b"no HTTP\r\n\r\n"),
    ],
)
async def test_so_is_one_that_its_server_failed(
    rig, trips, monkeypatch, first: Behaviour, stream: bool
) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.01)
    rig.engine.queue.append(first)
    with suppress(aiohttp.ClientPayloadError):
        await rig.post(CHAT, chat(max_tokens=3, stream=stream))
    rig.handled = len(trips)
    await rig.until(lambda: all(trip() is None for trip in trips))


@pytest.mark.parametrize("stream", [False, True])
async def test_so_is_one_whose_client_left(rig, trips, stream: bool) -> None:
    rig.engine.default = Behaviour(tokens=9, hold=asyncio.Event(), hold_at=1)
    async with rig.socket() as peer:
        body = json.dumps(chat(max_tokens=9, stream=stream)).encode()
        await peer.send(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await rig.engine.arrived()
        peer.reset()
    rig.handled = len(trips)
    await rig.until(lambda: all(trip() is None for trip in trips))


async def test_so_is_one_that_waited_for_word_of_its_server(rig, trips) -> None:
    """Refused for want of a place, made to give way, gone, and answered."""
    server = rig.app.fleet.backends["gpu0"]
    rig.engine.default = Behaviour(tokens=1)
    rig.app.gate.core.queue = QueueRule(max_requests=2)
    server.ready, server._expected_until = False, asyncio.get_running_loop().time() + 9
    asked = [asyncio.ensure_future(rig.chat(max_tokens=1)) for _ in range(3)]
    await rig.until(lambda: any(one.done() for one in asked))
    (left,) = [one for one in asked if not one.done()][:1]
    left.cancel()
    await rig.until(lambda: rig.app.gate.view().queue.aside == 1)
    server.opens()
    rig.app.fleet._turn(server)
    await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(one.result().status for one in asked if not one.cancelled()) == [200, 429]
    rig.handled = len(trips)
    await rig.until(lambda: all(trip() is None for trip in trips))


async def test_a_running_answer_keeps_nothing_of_what_was_sent_and_tells_that_its_server_lives(
    rig,
) -> None:
    """A body may have a megabyte, and its answer last for minutes; each piece is a sign of life."""
    assert (await rig.chat(max_tokens=1)).status == 200  # a kept connection: what may be sent again
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=3, hold=hold, hold_at=2)
    asked = asyncio.ensure_future(rig.chat(max_tokens=3, stream=True))
    await rig.until(lambda: len(rig.engine.seen) == 2 and rig.engine.seen[1].events == 2)
    (flight,) = rig.app.reaper._running.values()
    await rig.until(lambda: flight.reply.status == 200)
    assert (flight.reply._resend, flight.reply._on_write) == (None, None)
    watch = rig.app.fleet.backends["gpu0"].watch
    watch._bytes_at = before = 0.0
    hold.set()
    assert (await asked).status == 200
    assert watch._bytes_at > before
