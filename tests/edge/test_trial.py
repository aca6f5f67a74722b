"""Ready means that it has generated since it was reached; until then a server is sent little.

And nobody waits for nothing: one small request opens a server that works, a server that has worked
before this gate came is open at once, and so is one whose own count of prefilled tokens grows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from gateway.core.quarantine import TRIAL
from gateway.edge import backends, handler
from gateway.upstream import reply
from gateway.upstream.life import Pace
from tests.edge.rig import CHAT, TEXT, chat
from tests.fakes.behaviour import Behaviour, refuse


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.02)
    pace = partial(Pace, backoff_s=(0.02, 0.1), loads_s=0.05)
    monkeypatch.setattr(backends, "Pace", pace)
    monkeypatch.setattr(reply, "_RACE_S", -1.0)


def ask(rig, number: int = 0, *, stream: bool = True, words: int = 8) -> asyncio.Future[Any]:
    body = chat(words, max_tokens=4, stream=stream, user=str(number))
    return asyncio.ensure_future(rig.post(CHAT, body))


async def trial(rig) -> bool:
    (backend,) = (await rig.status())["backends"]
    return bool(backend["on_trial"])


def limits(rig) -> tuple[int, int]:
    limits = rig.app.gate.view().pools[0].limits
    return limits.prefill_tokens, limits.trial


async def test_the_first_token_opens_a_server_that_has_never_generated(start) -> None:
    """Started without its own warm-up: the first request goes at once, the rest after its token."""
    async with start(warm_up=0) as rig:
        assert await trial(rig)
        first, rest = asyncio.Event(), asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=4, hold=first, hold_at=0))
        rig.engine.queue.append(Behaviour(tokens=4, hold=rest, hold_at=1))
        rig.engine.default = Behaviour(tokens=4, hold=rest, hold_at=1)
        one = ask(rig)
        await rig.engine.arrived()
        assert rig.records == []
        others = [ask(rig, n) for n in range(1, 8)]
        await rig.queued(7)
        assert limits(rig)[0] == 1
        first.set()
        await rig.engine.arrived(8)
        assert not await trial(rig)
        rest.set()
        got = await asyncio.gather(one, *others)
        assert {answer.status for answer in got} == {200}


async def test_a_server_that_generated_before_this_gate_came_is_open_at_once(rig) -> None:
    assert not await trial(rig)
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=0)
    asked = [ask(rig, n) for n in range(8)]
    await rig.engine.arrived(8)
    hold.set()
    assert {got.status for got in await asyncio.gather(*asked)} == {200}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_answers_nothing_swallows_a_few_and_no_more(
    start, stream: bool
) -> None:
    """Answers in one piece show no first token: after the time of a prefill the next one goes."""
    async with start({"queue": {"max_wait_s": 0.6}}, quiet=False, warm_up=0) as rig:
        rig.engine.default = Behaviour(never=True)
        asked = [ask(rig, n, stream=stream) for n in range(12)]
        swallowed = 1 if stream else TRIAL
        await rig.queued(12 - swallowed)
        await rig.until(lambda: len(rig.records) == 12 - swallowed)
        assert {record["code"] for record in rig.records} == {"queue_timeout"}
        assert len(rig.engine.seen) == swallowed
        for one in asked:
            one.cancel()


async def test_the_engine_s_own_count_opens_it_while_an_answer_in_one_piece_is_made(start) -> None:
    async with start(warm_up=0) as rig:
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=4, hold=hold, hold_at=0)
        asked = [ask(rig, n, stream=False) for n in range(9)]
        await rig.queued(9 - TRIAL)
        rig.engine.prefilled += 12
        await rig.engine.arrived(9)
        hold.set()
        assert {got.status for got in await asyncio.gather(*asked)} == {200}


async def test_a_refusal_by_its_http_process_proves_nothing(start) -> None:
    async with start(warm_up=0) as rig:
        rig.engine.queue.append(refuse(400, "no"))
        assert (await ask(rig, stream=False)).status == 400
        assert await trial(rig)
        assert (await ask(rig, stream=False)).status == 200
        assert not await trial(rig)


async def test_a_new_start_is_on_trial_though_it_warmed_itself_up(rig) -> None:
    """No death of ours: it was restarted with nothing in flight."""
    await rig.engine.die()
    rig.app.fleet.backends["gpu0"].suspect("a test")
    await rig.until(lambda: not rig.app.fleet.any_ready, 5)
    await rig.engine.revive()
    await rig.until(lambda: rig.app.fleet.any_ready, 5)
    assert await trial(rig)
    assert limits(rig) == (1, TRIAL)
    assert (await ask(rig)).status == 200
    assert limits(rig)[0] > 1
    assert not await trial(rig)


async def test_a_stream_that_goes_on_proves_a_server_that_was_reached_anew(rig) -> None:
    """A reset that was no death: whoever streams opens it again, nobody has to try."""
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=9, hold=hold, hold_at=3))
    running = ask(rig)
    await rig.engine.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 3)
    rig.app.fleet.backends["gpu0"].suspect("a reset")
    await rig.until(lambda: rig.app.fleet.any_ready, 5)
    assert await trial(rig)
    hold.set()
    assert (await running).status == 200
    assert not await trial(rig)


async def test_a_standstill_ends_in_a_trial(start) -> None:
    async with start({"limits": {"stall_s": 0.4}}) as rig:
        rig.engine.queue.append(Behaviour(never=True))
        asked = ask(rig, stream=False)
        await rig.engine.arrived()
        rig.engine.freeze()
        await rig.until(lambda: not rig.app.fleet.any_ready, 6)
        rig.engine.thaw()
        await rig.until(lambda: rig.app.fleet.any_ready, 6)
        assert await trial(rig)
        assert (await ask(rig, 1)).status == 200
        assert not await trial(rig)
        asked.cancel()


async def test_a_request_of_more_sequences_than_a_trial_takes_runs_alone(start) -> None:
    async with start(warm_up=0) as rig:
        body = {"prompt": [1] * 20, "max_tokens": 4, "n": TRIAL + 3}
        assert (await rig.post(TEXT, body)).status == 200
