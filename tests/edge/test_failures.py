"""Failures on a server that lives: a client's before they are the server's, and told in words."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from aiohttp import ClientPayloadError

from gateway.core import blame
from gateway.core.blame import FAILURES
from gateway.core.quarantine import TRIAL
from gateway.edge import backends, handler
from gateway.upstream import reply
from gateway.upstream.life import Pace
from tests.edge.rig import CHAT, chat, events
from tests.fakes.behaviour import Behaviour, refuse
from tests.fakes.sglang import FakeSGLang

CLIENTS = {
    "clients": [{"name": name, "header": {"name": "x-who", "value": name}} for name in "abc"]
}
BAD = 30
"""Words of a request that fails, where only those do."""

RESET, CUT, ERROR = Behaviour(reset_at=0), Behaviour(tokens=4, close_at=2), refuse(500, "internal")
SILENT = Behaviour(never=True)
BROKEN_STREAM = Behaviour(tokens=8, reset_at=3)


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.02)
    pace = partial(Pace, backoff_s=(0.02, 0.1), loads_s=0.1)
    monkeypatch.setattr(backends, "Pace", pace)
    monkeypatch.setattr(reply, "_RACE_S", -1.0)


def asks(rig, who: str, words: int = 8, **fields: Any) -> Any:
    body = chat(words, max_tokens=4, **fields)
    return rig.post(CHAT, body, headers={"x-who": who})


async def one(rig, who: str, words: int = 8, **fields: Any) -> Any:
    """Once the server takes work again: what follows a reset is no refusal."""
    await rig.until(lambda: rig.app.fleet.any_ready)
    return await asks(rig, who, words, **fields)


def fails_for_some(how: Behaviour):
    def behave(seen) -> Behaviour:
        return how if sum(seen.job.prompts) == BAD + 4 else Behaviour(tokens=2)

    return behave


async def backend_of(rig) -> Any:
    return (await rig.status())["backends"][0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "how", [ERROR, RESET, BROKEN_STREAM, CUT, SILENT], ids=["500", "reset", "rst", "cut", "silent"]
)
async def test_a_client_whose_requests_fail_where_others_are_served_cools_down(
    start, how: Behaviour, stream: bool
) -> None:
    policy = CLIENTS | {"limits": {"first_byte_s": 0.4, "answer_s": 0.4, "idle_s": 0.4}}
    async with start(policy) as rig:
        rig.engine.script = fails_for_some(how)
        for _ in range(FAILURES):
            assert (await one(rig, "b")).status == 200
            with suppress(
                ClientPayloadError
            ):  # half an answer in one piece ends with its connection
                bad = await one(rig, "a", BAD, stream=stream)
                assert bad.status >= 500 or "error" in events(bad.body)[-1]
        # Whether a reset was a death is known when the server has been asked.
        await rig.until(lambda: bool(rig.app.fleet.cooling(rig.app.fleet.backends["gpu0"])))
        got = await one(rig, "a")
        assert (got.status, got.code) == (429, "cooling_down")
        assert 1 <= int(got.headers["retry-after"]) <= 10
        assert f"last {FAILURES} requests of client 'a' failed on gpu0" in got.error["message"]
        assert rig.records[0]["code"] == "cooling_down"
        assert (await one(rig, "b")).status == 200, "nobody else is concerned"
        backend = await backend_of(rig)
        assert 0 < backend["cooling"]["a"] <= 10
        assert (backend["state"], backend["held"]) == ("ready", None)


async def test_it_is_let_in_after_its_time_and_one_good_answer_clears_it(
    start, monkeypatch
) -> None:
    monkeypatch.setattr(blame, "COOL_S", 0.2)
    async with start(CLIENTS) as rig:
        rig.engine.script = fails_for_some(ERROR)
        for _ in range(FAILURES):
            assert (await asks(rig, "b")).status == 200
            assert (await asks(rig, "a", BAD)).status == 500
        assert (await asks(rig, "a")).status == 429
        await rig.until(lambda: not rig.app.fleet.cooling(rig.app.fleet.backends["gpu0"]))
        assert (await asks(rig, "a")).status == 200
        for _ in range(FAILURES - 1):
            assert (await asks(rig, "a", BAD)).status == 500
        assert (await asks(rig, "a")).status == 200


async def test_it_may_go_to_another_server_meanwhile(start) -> None:
    async with FakeSGLang() as second:
        more = [{"url": second.url, "name": "gpu1"}]
        routes = [{"when": {"header": {"name": "x-to", "value": "gpu0"}}, "to": ["gpu0"]}]
        async with start(CLIENTS | {"more": more, "routes": routes}) as rig:
            await rig.until(lambda: all(backend.ready for backend in rig.app.fleet))
            rig.engine.script = fails_for_some(ERROR)
            to = {"x-to": "gpu0"}
            for _ in range(FAILURES):
                for who, words in (("b", 8), ("a", BAD)):
                    await rig.post(CHAT, chat(words, max_tokens=4), headers={"x-who": who, **to})
            got = await asks(rig, "a", BAD)
            assert (got.status, got.headers["x-kvgate-backend"]) == (200, "gpu1")


async def test_4xx_back_pressure_and_one_s_own_successes_are_no_failures(start) -> None:
    async with start(CLIENTS) as rig:
        assert (await asks(rig, "b")).status == 200
        for number in range(4 * FAILURES):
            mix = [refuse(400, "no"), refuse(503, "The request queue is full."), ERROR]
            rig.engine.queue.append(mix[number % 3])
            if number % 9 == 8:
                assert (await asks(rig, "a")).status in (200, 500)
            await asks(rig, "a")
        assert (await backend_of(rig))["cooling"] == {}
        assert not (await backend_of(rig))["on_trial"]


async def test_a_server_that_fails_two_clients_gets_probes_and_nobody_is_refused_for_it(
    start, monkeypatch
) -> None:
    """The breaker: what waits goes on waiting, few at a time, until one is answered well."""
    monkeypatch.setattr(blame, "PROBE_S", 0.3)
    async with start(CLIENTS) as rig:
        assert (await asks(rig, "c")).status == 200
        rig.engine.default = ERROR
        for number in range(FAILURES):
            assert (await asks(rig, "ab"[number % 2])).status == 500
        backend = await backend_of(rig)
        assert (backend["on_trial"], backend["cooling"]) == (True, {})
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=0)
        asked = [asyncio.ensure_future(asks(rig, "abc"[n % 3], stream=True)) for n in range(9)]
        await rig.queued(9)
        before = len(rig.engine.seen)
        await rig.engine.arrived(before + 1)
        await rig.queued(8)
        assert rig.app.gate.view().pools[0].limits.trial == TRIAL
        hold.set()
        assert {got.status for got in await asyncio.gather(*asked)} == {200}
        assert not (await backend_of(rig))["on_trial"]


async def test_a_server_that_serves_nobody_is_on_probes_for_one_client_too(start) -> None:
    async with start(CLIENTS) as rig:
        rig.engine.default = ERROR
        for _ in range(FAILURES):
            assert (await asks(rig, "a")).status == 500
        backend = await backend_of(rig)
        assert (backend["on_trial"], backend["cooling"]) == (True, {})


async def test_a_death_is_no_failure_of_anybody_s(rig) -> None:
    """All of one client's streams break while others were served: that was the server's death."""
    assert (await rig.chat(max_tokens=2)).status == 200
    rig.engine.default = Behaviour(tokens=8, hold=asyncio.Event(), hold_at=3)
    asked = [
        asyncio.ensure_future(rig.post(CHAT, chat(8, max_tokens=8, stream=True, user=str(n))))
        for n in range(2 * FAILURES)
    ]
    await rig.engine.until(lambda: sum(seen.events == 3 for seen in rig.engine.seen) == len(asked))
    await rig.engine.die()
    await asyncio.gather(*asked)
    rig.engine.default = Behaviour(tokens=2)
    await rig.engine.revive()
    await rig.until(lambda: rig.app.fleet.any_ready, 5)
    failures = rig.app.deaths.failures
    assert failures._of == {} or all(not one._streaks for one in failures._of.values())
    assert (await rig.chat(max_tokens=2)).status == 200
