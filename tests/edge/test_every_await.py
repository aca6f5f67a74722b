"""Class G, the proof: there is no await on a request's way at which it was not cancelled.

`test_cancellation` goes through the common ways one suspension at a time. Here the rarer ones are
gone through as well, each cut notes where in the source it fell, and what the source has and no cut
fell on fails the test. A new await on the way needs a situation here that reaches it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import aiohttp
import aiohttp.http_writer
import pytest

from gateway.edge import backends, counting, handler, heartbeat, reaper, wire
from gateway.upstream.life import Pace
from tests.edge.awaits import awaits, places
from tests.edge.rig import API_CHAT, CHAT, GENERATE, TEXT, chat, request
from tests.fakes.behaviour import Behaviour, queue_full
from tests.fakes.typed import MESSAGES
from tests.gate.steps import Cancelled, cancelled_at

MOST = 80

ROUNDS = 3
"""On a loaded machine two parts of an answer may arrive as one, and an await does not wait."""
PARAMS = {"sampling_params": {"max_new_tokens": 3}}


class Cutter:
    """Cuts the requests marked with a header at a given suspension, and notes where that was."""

    def __init__(self, rig) -> None:
        self.at = 0
        self.late = False
        self.outcome: Any = None
        self.cut: set[tuple[str, int]] = set()
        self._generate = rig.app.data._generate
        rig.app.data._generate = self

    async def __call__(self, request, *args: Any) -> Any:
        way = self._generate(request, *args)
        if "x-cut" not in request.headers:
            return await way

        def look(work: Any) -> None:
            self.cut |= places(work)

        self.outcome = await cancelled_at(way, self.at, late=self.late, look=look)
        if self.outcome is Cancelled:
            raise asyncio.CancelledError
        return self.outcome


class Situation:
    """What surrounds the victim. `before` and `after` are called around each of its cuts."""

    path = CHAT
    body: Any = chat(max_tokens=3, stream=True)

    async def before(self, rig) -> None:
        rig.engine.default = Behaviour(tokens=3)

    async def ask(self, rig) -> None:
        with suppress(aiohttp.ClientError):
            await rig.post(self.path, self.body, headers={"x-cut": "1"})

    async def after(self, rig) -> None:
        rig.engine.queue.clear()


class OnAFreshConnection(Situation):
    path, body = TEXT, {"prompt": [1] * 9, "max_tokens": 3, "stream": True}

    async def before(self, rig) -> None:
        await super().before(rig)
        for connection in list(rig.app.fleet.backends["gpu0"].client._idle):
            connection.close()


class CountedOnAFreshConnection(OnAFreshConnection):
    """The server is asked how long the chat is before it is asked to answer it."""

    path, body = CHAT, chat(max_tokens=3, stream=True)


class EventByEvent(Situation):
    async def before(self, rig) -> None:
        rig.engine.default = Behaviour(tokens=3, gap_s=0.003)


class LargeEvents(Situation):
    """Too large to be written without a limit on the wait."""

    async def before(self, rig) -> None:
        rig.engine.default = Behaviour(tokens=2, pad=40 * 1024, gap_s=0.003)


class Generate(EventByEvent):
    path, body = GENERATE, {"text": "a b", "stream": True, **PARAMS}


class Messages(EventByEvent):
    """The engine knows it by no id of ours: it is hung up on."""

    path = MESSAGES


class InOtherWords(EventByEvent):
    path = API_CHAT
    body: ClassVar[Any] = {"messages": [{"role": "user", "content": "a b"}]}


class WholeInOtherWords(InOtherWords):
    """It comes in parts, and is read to its end before any of it goes out."""

    body: ClassVar[Any] = {**InOtherWords.body, "stream": False}

    async def before(self, rig) -> None:
        rig.engine.default = Behaviour(tokens=3, pad=1 << 20)


class SlowBody(Situation):
    async def ask(self, rig) -> None:
        data = request(TEXT, {"prompt": [1] * 9}, "x-cut: 1", "expect: 100-continue")
        async with rig.socket() as peer:
            with suppress(asyncio.IncompleteReadError, ConnectionError, RuntimeError):
                for part in (data[:-20], data[-20:-3], data[-3:]):
                    await peer.send(part)  # RuntimeError: uvloop, where the gate has hung up
                    await asyncio.sleep(0.005)
                await peer.head()


class Queued(Situation):
    async def before(self, rig) -> None:
        self.release = asyncio.Event()
        number = len(rig.engine.seen) + 1
        rig.engine.queue.append(Behaviour(hold=self.release, hold_at=1, tokens=2))
        rig.engine.default = Behaviour(tokens=2)
        full = {"prompt": [1] * 20, "max_tokens": 5000, "stream": True}
        self.blocker = asyncio.ensure_future(rig.post(TEXT, full))
        await rig.engine.arrived(number)

    async def ask(self, rig) -> None:
        ended = len(rig.records) + 1
        victim = asyncio.ensure_future(super().ask(rig))
        await rig.until(
            lambda: rig.app.gate.view().queue.requests == 1 or len(rig.records) == ended
        )
        self.release.set()
        await self.blocker
        await victim


class Beating(Queued):
    """It has been told that it waits, then it is served; one more beat is being written meanwhile.

    Token ids: nothing is asked of a server for counting, so each cut falls where the last one did
    plus one.
    """

    path = TEXT
    body: ClassVar[Any] = {"prompt": [1] * 20, "max_tokens": 3, "stream": True}

    async def ask(self, rig) -> None:
        asyncio.get_running_loop().call_later(0.01, self.release.set)
        await Situation.ask(self, rig)
        self.release.set()
        await self.blocker


class BeatenAndRefused(Queued):
    """It has been told that it waits, and waits too long."""

    path = TEXT
    body: ClassVar[Any] = Beating.body

    async def ask(self, rig) -> None:
        await Situation.ask(self, rig)
        self.release.set()
        await self.blocker


class PushedBack(Situation):
    async def before(self, rig) -> None:
        await super().before(rig)
        rig.engine.queue.append(queue_full())


class InParts(Situation):
    """The server writes its answer part by part; `None` is a reset."""

    parts: tuple[bytes | None, ...] = ()

    async def before(self, rig) -> None:
        first = iter([self.parts])

        async def generate(wire, _received) -> None:
            for part in next(first, PLAIN):
                if part is None:
                    wire.reset()
                    return
                await wire.send(part)
                await asyncio.sleep(0.004)
            if self.parts[-1] is not None and b"content-length" not in self.parts[0]:
                wire.close()

        rig.engine._generate = generate

    async def after(self, rig) -> None:
        rig.engine._generate = type(rig.engine)._generate.__get__(rig.engine)


def framed(status: str, kind: str, *parts: bytes) -> tuple[bytes, ...]:
    """A head with the length of all parts, then the parts."""
    size = sum(map(len, parts))
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\n\r\n"
    return head.encode(), *parts


PLAIN = framed(
    "200 OK", "application/json", b'{"choices":[{"index":0,', b'"finish_reason":"stop"}', b"]}"
)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"w"},"finish_reason":null}]}\n\n'


class PlainAnswer(InParts):
    body, parts = chat(max_tokens=3), PLAIN


class FirstEventInPieces(InParts):
    parts = (
        STREAM,
        TOKEN[:9],
        TOKEN[9:],
        b'data: {"choices":[{"index":0,"finish_reason":"stop"}]}\n\n',
    )


class BrokenOff(InParts):
    parts = (STREAM, TOKEN, TOKEN, None)


class WithoutItsEnd(InParts):
    parts = (STREAM, TOKEN, b'data: {"choices":[],"us')


class RefusedInTheStream(InParts):
    """A 200 whose first event is an error: its real status is told, and the rest is read."""

    parts = framed(
        "200 OK", "text/event-stream", b'data: {"error": {"code": 400}}\n\n', b"data: [DONE]\n\n"
    )


class PushedBackPlainly(InParts):
    body, parts = chat(max_tokens=3), framed("503 Busy", "application/json", b'{"message":', b"1}")


class ResentOnce(InParts):
    """A kept connection that breaks before any byte of an answer."""

    body, parts = chat(max_tokens=3), (None,)


class BrokenBeforeItsAnswer(InParts):
    """Every try breaks: the server is doubted, and then found to be alive."""

    async def before(self, rig) -> None:
        async def generate(wire, _received) -> None:
            wire.reset()

        rig.engine._generate = generate


class Counting(Situation):
    """Two others are being counted, and the answer to the count comes in two parts."""

    async def before(self, rig) -> None:
        await super().before(rig)
        self.go = asyncio.Event()
        self.asked = 0

        async def answer(wire, received) -> None:
            if "tokenize" not in received.path:
                await usual(wire, received)
                return
            self.asked += 1
            await self.go.wait()
            for part in framed("200 OK", "application/json", b'{"cou', b'nt": 20}'):
                await wire.send(part)
                await asyncio.sleep(0.003)

        usual = type(rig.engine)._answer.__get__(rig.engine)
        rig.engine._answer = answer
        self.others = [asyncio.ensure_future(rig.chat(max_tokens=2)) for _ in range(2)]
        await rig.until(lambda: self.asked == 2)

    async def ask(self, rig) -> None:
        asyncio.get_running_loop().call_later(0.02, self.go.set)
        await super().ask(rig)
        await asyncio.gather(*self.others)

    async def after(self, rig) -> None:
        rig.engine._answer = type(rig.engine)._answer.__get__(rig.engine)


class Doubted(Situation):
    """Its server is being asked whether it lives, and will have said so in a moment."""

    async def ask(self, rig) -> None:
        self.doubt(rig)
        await super().ask(rig)
        await rig.until(lambda: rig.app.fleet.backends["gpu0"].ready)

    def doubt(self, rig) -> None:
        fleet = rig.app.fleet
        server = fleet.backends["gpu0"]
        server.ready, server._expected_until = False, asyncio.get_running_loop().time() + 9

        def it_lives() -> None:
            server.ready = True
            fleet._turn(server)

        asyncio.get_running_loop().call_later(0.01, it_lives)


class DoubtedMeanwhile(Doubted):
    """... and that began while the prompt was counted."""

    async def ask(self, rig) -> None:
        count = counting.count

        async def counted(*args: Any) -> Any:
            found = await count(*args)
            self.doubt(rig)
            return found

        counting.count = counted
        try:
            await Situation.ask(self, rig)
        finally:
            counting.count = count
        await rig.until(lambda: rig.app.fleet.backends["gpu0"].ready)


class Bounded(Situation):
    """Too large to be counted by the server: the bytes are, in a thread; then it is refused."""

    path, body = TEXT, {"prompt": "w " * 600_000, "max_tokens": 3}


class AnAdapterNobodyLists(Situation):
    """The server is asked whether it has got one meanwhile."""

    body = chat(max_tokens=3, model="tiny:poems")

    async def before(self, rig) -> None:
        await super().before(rig)
        server = rig.app.fleet.backends["gpu0"]
        server.facts = replace(server.facts, takes_adapters=True)
        rig.app.data._lobby.names._read_at.clear()


class Crowded(Situation):
    """As many as are worked on in one turn of the loop are there already, each time it passes."""

    async def before(self, rig) -> None:
        await super().before(rig)
        turnstile = rig.app.data._lobby.turnstile
        through = type(turnstile).through

        async def behind(client: str, size: int) -> int:
            turnstile._left = 0
            return await through(turnstile, client, size)

        turnstile.through = behind

    async def after(self, rig) -> None:
        await super().after(rig)
        del rig.app.data._lobby.turnstile.through


class CrowdedWithASlowBody(Crowded, SlowBody):
    pass


class CrowdedAndDoubted(Crowded, Doubted):
    pass


SITUATIONS = [
    AnAdapterNobodyLists,
    OnAFreshConnection,
    CountedOnAFreshConnection,
    EventByEvent,
    LargeEvents,
    Generate,
    Messages,
    InOtherWords,
    WholeInOtherWords,
    SlowBody,
    Queued,
    PushedBack,
    PlainAnswer,
    FirstEventInPieces,
    BrokenOff,
    WithoutItsEnd,
    RefusedInTheStream,
    PushedBackPlainly,
    ResentOnce,
    BrokenBeforeItsAnswer,
    Counting,
    Doubted,
    DoubtedMeanwhile,
    Bounded,
    Crowded,
    CrowdedWithASlowBody,
    CrowdedAndDoubted,
]


async def go_through(rig, cutter: Cutter, situation: Situation) -> None:
    """Cut the request of `situation` at its first suspension, its second, … until it gets through."""
    for cutter.at in range(1, MOST):
        cutter.outcome = None
        await rig.ready()
        await situation.before(rig)
        await situation.ask(rig)
        await situation.after(rig)
        rig.engine.queue.clear()
        await rig.at_rest()
        if cutter.outcome is not Cancelled:
            return
    msg = f"{type(situation).__name__}: more than {MOST} suspensions"
    raise AssertionError(msg)


@pytest.fixture
def writes_wait(monkeypatch) -> None:
    """Whatever is written to a client waits for a turn of the loop first, as it does where the
    client's window is full: so each write is a place to be cancelled at."""
    for owner, name in (
        (aiohttp.web.StreamResponse, "prepare"),
        (aiohttp.web.StreamResponse, "write"),
        (aiohttp.web.StreamResponse, "write_eof"),
        (aiohttp.http_writer.StreamWriter, "write"),
        (aiohttp.http_writer.StreamWriter, "drain"),
    ):
        monkeypatch.setattr(owner, name, _later(getattr(owner, name)))
    put = wire.Wire.put

    def and_full(self: wire.Wire, data: bytes) -> bool:
        put(self, data)
        return False

    monkeypatch.setattr(wire.Wire, "put", and_full)


@pytest.fixture
def beats_take_time(monkeypatch) -> None:
    """A beat is being written at nearly every moment."""
    one = heartbeat.Heart._one

    async def slowly(self) -> None:
        await asyncio.sleep(0.03)
        await one(self)

    monkeypatch.setattr(heartbeat.Heart, "_one", slowly)


def _later(write: Any) -> Any:
    async def later(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return await write(*args, **kwargs)

    return later


@pytest.mark.usefixtures("writes_wait", "beats_take_time")
@pytest.mark.parametrize(
    "late",
    [
        pytest.param(False, id="while it waits"),
        pytest.param(True, id="when what it waits for has come", marks=pytest.mark.slow),
    ],
)
async def test_no_await_was_left_out(start, monkeypatch, late: bool) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.01)
    monkeypatch.setattr(reaper, "DRAIN_S", 0.2)
    monkeypatch.setattr(backends, "Pace", partial(Pace, loads_wanted_s=0.005))
    records = {"observe": {"recent": 5000}}
    every = awaits()
    missed = set(every)
    cuts = 0
    worlds: list[tuple[dict[str, Any], dict[str, Any], list[type[Situation]]]] = [
        (records, {}, SITUATIONS),
        (records | {"admission": "off"}, {}, [OnAFreshConnection, EventByEvent, Doubted]),
        (records, {"version": "0.5.6"}, [EventByEvent]),
        (
            records | {"queue": {"heartbeat_s": 0.002, "max_wait_s": 0.05}},
            {},
            [Beating, BeatenAndRefused],
        ),
    ]
    for _ in range(ROUNDS):
        for policy, engine, situations in worlds:
            async with start(policy, **engine) as rig:
                cutter = Cutter(rig)
                cutter.late = late
                for situation in situations:
                    await go_through(rig, cutter, situation())
                missed -= cutter.cut
                outcomes = [record["outcome"] for record in rig.records]
                ends = {"cancelled", "completed", "failed", "rejected"}
                ends |= {"evicted"} if BeatenAndRefused in situations else set()
                assert set(outcomes) <= ends
                cuts += outcomes.count("cancelled")
        if not missed:
            break
    told = {place: every[place] for place in missed}
    assert not told, "no cancellation fell on these: a situation is missing that reaches them"
    assert (len(every) > 50, cuts > 100) == (True, True), (len(every), cuts)
    print(f"{len(every)} awaits, {cuts} cuts")
