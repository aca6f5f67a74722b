"""Clients that leave: the server hears of it in every phase, and nothing is freed before it is."""

from __future__ import annotations

import asyncio

import pytest

from gateway.edge import reaper
from tests.cases.world import LIMIT, ids, kv
from tests.edge.rig import CHAT, TEXT, chat, request
from tests.fakes.behaviour import Behaviour

# Whether streamed, after how many tokens the client leaves (0: before any byte), and how.
PHASES = [
    pytest.param(True, 0, True, id="F01-before-any-byte"),
    pytest.param(True, 0, False, id="F03-before-the-first-chunk"),
    pytest.param(True, 5, True, id="F04-in-the-stream"),
    pytest.param(False, 0, False, id="F09-a-plain-answer"),
    pytest.param(False, 5, True, id="H06-a-plain-answer-half-made"),
]


@pytest.mark.parametrize(("stream", "at", "polite"), PHASES)
async def test_the_server_hears_of_it_and_the_connection_is_not_used_again(
    world, stream: bool, at: int, polite: bool
) -> None:
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=100, hold=asyncio.Event(), hold_at=at)
        rig.engine.aborts_work = False  # so that hanging up is all there is
        async with rig.socket() as peer:
            body = ids(20, 100, stream=stream)
            await peer.send(request(TEXT, body))
            seen = await rig.engine.arrived()
            await rig.engine.until(lambda: seen.events == at)
            peer.writer.close() if polite else peer.reset()
            await rig.until(lambda: rig.engine.aborts == [seen.rid], 1)
        assert rig.records[0]["outcome"] == "cancelled"
        assert rig.reserved == kv(20, 100), "held until the server shows it gone"
        rig.engine.default = Behaviour(tokens=1)
        assert (await rig.post(TEXT, ids(20, 5))).status == 200
        assert rig.engine.seen[1].wire is not seen.wire
        seen.abort.set()
        await rig.until(lambda: rig.reserved == 0)
        assert rig.engine.aborts == [seen.rid], "one abort for one request"


async def test_f01_a_retry_is_admitted_on_what_is_truly_free(world) -> None:
    """The ghost of the first try counts until the server has shown it gone; so the retry waits."""
    async with world() as rig:
        rig.engine.aborts_work = False
        rig.engine.default = Behaviour(never=True)
        half = ids(4000, 8000, n=8)
        async with rig.socket() as peer:
            await peer.send(request(TEXT, half))
            ghost = await rig.engine.arrived()
            peer.reset()
        retry = asyncio.ensure_future(rig.post(TEXT, half))
        await rig.queued()
        assert rig.reserved == 8 * kv(4000, 8000) > LIMIT // 2
        assert len(rig.engine.seen) == 1
        rig.engine.default = Behaviour(tokens=1)
        ghost.abort.set()
        assert (await retry).status == 200


@pytest.mark.parametrize("stalls", [False, True], ids=["F06-lost-abort", "C12-it-runs-on"])
async def test_a_reservation_stays_while_the_server_shows_the_request(
    world, monkeypatch, stalls: bool
) -> None:
    """Hung up and aborted, and still there: only its own end, or the server's count, frees it."""
    monkeypatch.setattr(reaper, "DRAIN_S", 0.05)
    async with world() as rig:
        rig.engine.aborts_work, rig.engine.notice_s = False, None
        leave = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=9, hold=leave, hold_at=0 if stalls else 3))
        async with rig.socket() as peer:
            await peer.send(request(TEXT, ids(1000, 2000)))
            seen = await rig.engine.arrived()
            await rig.engine.until(lambda: seen.events == (0 if stalls else 3))
            peer.reset()
        await seen.gone.wait()
        asked = rig.engine.calls["/v1/loads"]
        await rig.engine.until(lambda: rig.engine.calls["/v1/loads"] >= asked + 3)
        status = await rig.status()
        assert status["backends"][0]["lingering_tokens"] == kv(1000, 2000) == rig.reserved
        assert status["abandoned"] == 1
        leave.set()
        await rig.until(lambda: rig.reserved == 0)


async def test_f07_a_next_turn_beside_the_one_that_is_being_aborted(world) -> None:
    """Both are in the ledger, under ids of their own: there is nothing to collide."""
    async with world() as rig:
        rig.engine.aborts_work = False
        rig.engine.default = Behaviour(never=True)
        async with rig.socket() as peer:
            await peer.send(request(CHAT, chat(96, max_tokens=50, stream=True)))
            old = await rig.engine.arrived()
            peer.reset()
        await rig.until(lambda: rig.engine.aborts == [old.rid])
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=1, hold=leave)
        turn = asyncio.ensure_future(rig.chat(196, max_tokens=50, stream=True))
        new = await rig.engine.arrived(2)
        assert rig.reserved == kv(100, 50) + kv(200, 50)
        assert not new.rid.startswith(old.rid)
        leave.set()
        assert (await turn).status == 200
        old.abort.set()


async def ask_and_leave(rig, body, before: int) -> None:
    """Ask, and leave once the request is at the server or waits; `before` left already."""
    async with rig.socket() as peer:
        await peer.send(request(TEXT, body))
        here = 1 + (before > 0)
        await rig.until(lambda: len(rig.engine.seen) + rig.app.gate.view().queue.requests == here)
        peer.reset()
    await rig.until(lambda: len(rig.records) == before + 1)


async def test_i06_impatient_retries_never_add_up_to_more_than_the_pool(world) -> None:
    """Three tries of one body, each abandoned: what is at the server is what the ledger holds."""
    async with world() as rig:
        rig.engine.aborts_work, rig.engine.notice_s = False, None
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=0)
        body = ids(4000, 8000, n=8)
        for tries in range(3):
            await ask_and_leave(rig, body, tries)
            assert len(rig.engine.seen) == 1
        leave.set()
        await rig.until(lambda: rig.reserved == 0)
