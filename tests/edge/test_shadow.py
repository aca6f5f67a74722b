"""`admission: shadow`: all goes through at once, and what would have become of it is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.edge.rig import CHAT, TEXT, chat, events, request
from tests.edge.test_cancellation import Cutter, _ask
from tests.fakes.behaviour import Behaviour
from tests.gate.steps import Cancelled

SHADOW = {"admission": "shadow"}
FULL = {"prompt": [1] * 20, "max_tokens": 5000, "stream": True}
MOST = 60
"""No way through the open door has as many suspensions."""


async def shadow(rig) -> Any:
    return (await rig.status())["shadow"]


async def a_moment(rig) -> None:
    """Until the gate's clock, which ticks in milliseconds, has moved: a wait is then a wait."""
    since = rig.app.gate.now()
    await rig.until(lambda: rig.app.gate.now() > since)


def no_shadows() -> bool:
    return not any(task.get_name().startswith("shadow") for task in asyncio.all_tasks())


def prefilling(rig) -> int:
    return sum(pool.prefill.reserved for pool in rig.app.gate.view().pools)


def queued(rig) -> int:
    return int(rig.app.gate.view().queue.requests)


async def test_what_would_start_at_once_is_held_in_the_books_until_its_answer_ends(start) -> None:
    async with start(SHADOW) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        asked = asyncio.ensure_future(rig.chat(max_tokens=1000, stream=True))
        await rig.until(lambda: rig.reserved)
        await rig.until(lambda: prefilling(rig) == 0)  # freed by the first token of the real one
        leave.set()
        assert (await asked).status == 200
        assert rig.reserved == 0
        counted = rig.app.metrics.registry.get_sample_value
        ended = {"backend": "gpu0", "why": "ended"}  # by its answer, so that its length is learned
        assert counted("kvgate_released_total", ended) == 1
        record = rig.records[0]
        assert (record["shadow"], record["shadow_wait_ms"]) == ("admit", 0)
        assert (record["shadow_code"], record["shadow_cap"]) == (None, 1000)
        assert (record["outcome"], record["prompt_tokens"]) == ("completed", 20)
        assert await shadow(rig) == {
            "would_admit": 1,
            "would_wait": 0,
            "would_refuse": {},
            "undecided": 0,
            "wait_s_p50": 0.0,
            "wait_s_p99": 0.0,
        }


async def test_the_cap_it_would_have_set_is_told_and_not_set(start) -> None:
    async with start({**SHADOW, "backend": {"default_output_tokens": 40}}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=3, hold=leave)
        body = b'{"model":"tiny",  "messages":[{"role":"user","content":"a b"}]}'
        asked = asyncio.ensure_future(rig.post(CHAT, body))
        await rig.until(lambda: rig.reserved)
        leave.set()
        got = await asked
        assert rig.engine.seen[0].received.body == body
        assert not {"x-kvgate-max-tokens", "x-kvgate-clamped-from"} & set(got.headers)
        assert rig.records[0]["shadow_cap"] == 40
        assert rig.records[0]["cap_forwarded"] is None


@pytest.mark.parametrize(
    ("policy", "fields", "code"),
    [
        ({"backend": {"max_prompt_tokens": 5}}, {}, "context_length_exceeded"),
        ({"limits": {"max_n": 1}}, {"n": 2}, "invalid_request"),
    ],
)
async def test_what_would_be_refused_goes_through(start, policy, fields, code: str) -> None:
    async with start({**SHADOW, **policy}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=3, hold=leave)
        body = json.dumps(chat(max_tokens=3, stream=True, **fields), indent=1).encode()
        asked = asyncio.ensure_future(rig.post(CHAT, body))
        await rig.engine.arrived()
        await rig.until(no_shadows)  # a refusal is the end of it
        leave.set()
        got = await asked
        assert got.status == 200
        assert events(got.body)[-1] == "[DONE]"
        assert rig.engine.seen[0].received.body == body
        record = rig.records[0]
        assert (record["shadow"], record["shadow_code"]) == ("refuse", code)
        assert (record["outcome"], record["code"], record["source"]) == ("completed", None, None)
        assert (await shadow(rig))["would_refuse"] == {code: 1}
        counted = rig.app.metrics.registry.get_sample_value
        assert counted("kvgate_shadow_total", {"verdict": "refuse", "code": code}) == 1
        assert counted("kvgate_refused_total", {"code": code, "source": "gateway"}) == 0


async def test_a_body_that_is_no_json_is_the_engines_to_refuse(start) -> None:
    async with start(SHADOW) as rig:
        got = await rig.post(CHAT, b"{")
        assert got.status == 400
        assert got.headers["x-kvgate-error-source"] == "upstream"
        assert rig.records[0]["shadow_code"] == "invalid_request"


async def test_what_would_wait_is_answered_at_once(start) -> None:
    """The second is answered whole while the first one holds the pool."""
    async with start(SHADOW) as rig:
        leave = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=2, hold=leave, hold_at=1))
        first = asyncio.ensure_future(rig.post(TEXT, FULL))
        await rig.engine.arrived()
        await rig.until(lambda: rig.reserved)
        held = rig.reserved
        between = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=between, hold_at=1)
        second = asyncio.ensure_future(rig.chat(max_tokens=3000, stream=True))
        await rig.queued()
        await a_moment(rig)
        between.set()
        assert (await second).status == 200
        assert (queued(rig), rig.reserved) == (0, held)
        record = rig.records[0]
        assert (record["shadow"], record["shadow_cap"]) == ("wait", None)
        assert record["shadow_wait_ms"] > 0
        assert record["queue_ms"] is None
        leave.set()
        await first
        seen = await shadow(rig)
        assert (seen["would_admit"], seen["would_wait"], seen["undecided"]) == (1, 1, 0)
        assert seen["wait_s_p50"] == 0
        assert seen["wait_s_p99"] >= 0


async def test_one_that_waited_takes_its_place_in_the_books_as_it_is_by_then(start) -> None:
    async with start(SHADOW) as rig:
        holds = [asyncio.Event(), asyncio.Event()]
        rig.engine.queue += [Behaviour(tokens=2, hold=hold, hold_at=1) for hold in holds]
        first = asyncio.ensure_future(rig.post(TEXT, FULL))
        await rig.until(lambda: rig.reserved)
        full = rig.reserved
        async with rig.socket() as second:
            await second.send(request(CHAT, chat(max_tokens=300, stream=True), "connection: close"))
            await second.head()
            await second.reader.readuntil(b"data: ")  # its first token is here
            await rig.queued()
            await a_moment(rig)
            holds[0].set()
            await first
            assert 0 < rig.reserved < full
            assert prefilling(rig) == 0
            holds[1].set()
            assert (await second.rest()).rstrip().endswith(b"0")
        record = rig.records[0]
        assert (record["shadow"], record["shadow_cap"]) == ("wait", 300)
        assert record["shadow_wait_ms"] > 0


async def test_a_wait_that_ends_in_a_refusal_ends_nothing_else(start) -> None:
    async with start({**SHADOW, "queue": {"max_wait_s": 0.05}}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        both = asyncio.gather(rig.post(TEXT, FULL), rig.post(TEXT, FULL))
        await rig.queued()
        await rig.queued(0)
        leave.set()
        assert [got.status for got in await both] == [200, 200]
        assert {record["shadow"] for record in rig.records} == {"admit", "refuse"}
        assert (await shadow(rig))["would_refuse"] == {"queue_timeout": 1}


@pytest.mark.parametrize("waits", [False, True])
async def test_a_client_that_leaves_takes_its_shadow_along(start, waits: bool) -> None:
    async with start(SHADOW) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        asked = [asyncio.ensure_future(rig.post(TEXT, FULL)) for _ in range(1 + waits)]
        await rig.until(lambda: rig.reserved and queued(rig) == waits)
        for one in reversed(asked):
            one.cancel()
        await rig.until(lambda: rig.reserved == 0 and queued(rig) == 0)
        await rig.at_rest()
        assert {record["outcome"] for record in rig.records} == {"cancelled"}


async def test_an_answer_that_breaks_takes_its_shadow_along(start) -> None:
    async with start(SHADOW) as rig:
        rig.engine.default = Behaviour(tokens=3, reset_at=1)
        await rig.chat(max_tokens=5, stream=True)
        assert rig.records[0]["outcome"] == "failed"
        assert rig.reserved == 0


async def test_a_fault_of_the_shadow_is_counted_and_reaches_nobody(start, monkeypatch) -> None:
    async with start(SHADOW) as rig:

        async def fails(*_: Any) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(rig.app.fleet.backends["gpu0"].counter, "count", fails)
        rig.engine.default = Behaviour(tokens=2)
        assert (await rig.chat(max_tokens=5)).status == 200
        assert rig.records[0]["shadow"] == "undecided"
        counted = rig.app.metrics.registry.get_sample_value
        assert counted("kvgate_observe_errors_total", {"part": "shadow"}) == 1


async def test_an_answer_does_not_wait_for_its_count(start, monkeypatch) -> None:
    async with start(SHADOW) as rig:

        async def hangs(*_: Any) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(rig.app.fleet.backends["gpu0"].counter, "count", hangs)
        rig.engine.default = Behaviour(tokens=2)
        assert (await rig.chat(max_tokens=5)).status == 200
        assert rig.records[0]["shadow"] == "undecided"
        assert (await shadow(rig))["undecided"] == 1


async def test_only_a_shadow_has_a_section(rig) -> None:
    rig.engine.default = Behaviour(tokens=2)
    await rig.chat(max_tokens=5)
    assert "shadow" not in await rig.status()
    assert rig.records[0]["shadow"] is None


@pytest.mark.parametrize("late", [False, True])
async def test_cancelled_at_every_await_it_leaves_nothing(start, late: bool) -> None:
    async with start(SHADOW) as rig:
        cutter = Cutter(rig, late=late)
        rig.engine.default = Behaviour(tokens=3, gap_s=0.003)
        cuts = 0
        for cutter.at in range(1, MOST):
            await _ask(rig, CHAT, chat(max_tokens=3, stream=True))
            await rig.at_rest()
            if cutter.outcome is not Cancelled:
                break
            cuts += 1
        assert 1 < cuts < MOST - 2, "from the first await to the last"
