"""Many at once: what is at the server never adds up to more than it has, nor to less than fits."""

from __future__ import annotations

import asyncio

import pytest

from tests.cases.world import LIMIT, ids, kv, together
from tests.edge.rig import CHAT, TEXT, chat
from tests.fakes.behaviour import Behaviour

LONG_QUEUE = {"queue": {"max_requests": 300}}
SLOTS = {"queue": {"max_requests": 300}, "backend": {"slots": 10}}

# What differs in the world, how many requests of what size, and how many run at once.
SUMS = [
    pytest.param(LONG_QUEUE, {}, 20, 1000, None, 19, id="A01-no-cap-is-charged-what-is-injected"),
    pytest.param({}, {}, 5, 20_000, 1000, 4, id="A07-the-whole-prompt-before-it-is-sent"),
    pytest.param({}, {"pool": 16_384}, 4, 2000, 8000, 1, id="D03-the-sum-and-not-each-alone"),
    pytest.param(LONG_QUEUE, {"pool": 6400, "page": 64}, 60, 63, 2, 32, id="D07-whole-pages"),
    pytest.param(LONG_QUEUE, {"pool": 77_088}, 90, 1000, 300, 58, id="D09-tokens-not-slots"),
    pytest.param(SLOTS, {}, 120, 10, 10, 10, id="G09-a-limit-is-never-overshot"),
    pytest.param({}, {"pool": 1000}, 2, 400, 300, 1, id="N06-choose-and-take-in-one-step"),
]


async def waiting(rig, number: int) -> None:
    """Wait until so many wait; hundreds of connections take a loaded machine some seconds."""
    await rig.until(lambda: rig.app.gate.view().queue.requests == number, 20)


@pytest.mark.parametrize(("policy", "engine", "number", "prompt", "cap", "at_once"), SUMS)
async def test_so_many_run_at_once_and_the_others_wait(
    world, policy, engine, number: int, prompt: int, cap: int | None, at_once: int
) -> None:
    async with world(policy, **engine) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        body = ids(prompt, cap) if cap is not None else chat(prompt - 4, stream=True)
        asked = together(rig, CHAT if cap is None else TEXT, [body] * number)
        await waiting(rig, number - at_once)
        await rig.engine.until(lambda: len(rig.engine.seen) == at_once)
        forwarded = {seen.body["max_tokens"] for seen in rig.engine.seen}
        assert forwarded == {4096 if cap is None else cap}
        each = kv(prompt, forwarded.pop(), rig.engine.profile.page)
        limits = rig.app.gate.view().pools[0].limits
        assert rig.reserved == at_once * each <= limits.kv_tokens
        if limits.slots > at_once:
            assert rig.reserved + each > limits.kv_tokens, "one more would have fitted"
        rig.engine.default = Behaviour(tokens=1)
        leave.set()
        for got in await asyncio.gather(*asked):
            assert got.status == 200
        assert len(rig.engine.seen) == number


@pytest.mark.parametrize(
    ("prompts", "pool"),
    [
        pytest.param([30_000] * 3, 200_000, id="C01-long-prompts-one-by-one"),
        pytest.param([13_647] * 4, 200_000, id="C06-no-discount-for-a-shared-beginning"),
    ],
)
async def test_prompts_are_prefilled_within_their_budget(world, prompts, pool: int) -> None:
    """The ledger of prefill is given back at the first token, not at the end."""
    async with world({"backend": {"prefill_tokens": 20_000}}, pool=pool) as rig:
        speaking: list[bool] = []
        go, leave = asyncio.Event(), asyncio.Event()

        def arrives(seen) -> Behaviour:
            speaking.extend(before.events >= 1 for before in rig.engine.seen[:-1])
            if len(rig.engine.seen) == 1:
                return Behaviour(tokens=50, hold=go, gap_s=0.01)
            return Behaviour(tokens=2, hold=leave, hold_at=1)

        rig.engine.script = arrives
        asked = together(rig, TEXT, [ids(prompt, 1000) for prompt in prompts])
        await waiting(rig, len(prompts) - 1)
        await rig.engine.arrived()
        assert len(rig.engine.seen) == 1
        assert rig.reserved == kv(prompts[0], 1000)
        go.set()
        await rig.engine.arrived(len(prompts))
        assert all(speaking), "one was sent before the one ahead of it had shown its first token"
        assert rig.reserved >= sum(kv(prompt, 1000) for prompt in prompts[1:])
        leave.set()
        assert {got.status for got in await asyncio.gather(*asked)} == {200}


async def test_n01_what_comes_in_one_turn_runs_waits_or_is_refused_at_once(world) -> None:
    """A hundred arrivals, room for five, a queue of eight: eighty-seven hear so at once."""
    clients = [{"name": f"c{i}", "header": {"name": "x-who", "value": f"c{i}"}} for i in range(100)]
    async with world({"clients": clients}) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=leave, hold_at=1)
        each = ids(LIMIT // 5 - 1001, 1000)
        asked = [
            asyncio.ensure_future(rig.post(TEXT, each, headers={"x-who": f"c{i}"}))
            for i in range(100)
        ]
        await rig.until(lambda: sum(one.done() for one in asked) == 87, 20)
        assert rig.app.gate.view().queue.requests == 8
        assert len(rig.engine.seen) == 5
        assert (await rig.status())["queue"]["requests"] == 8
        for refused in [one.result() for one in asked if one.done()]:
            assert (refused.status, refused.code) == (429, "queue_full")
            assert int(refused.headers["retry-after"]) >= 1
        rig.engine.default = Behaviour(tokens=1)
        leave.set()
        statuses = [got.status for got in await asyncio.gather(*asked)]
        assert (statuses.count(200), statuses.count(429)) == (13, 87)


async def test_b04_small_ones_pass_a_large_one_and_it_still_starts(world) -> None:
    """Ten small ones go past a head that does not fit; a trickle of them cannot keep it out."""
    async with world({"queue": {"max_requests": 100}}) as rig:
        leave = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=2, hold=leave, hold_at=1))
        first = asyncio.ensure_future(rig.post(TEXT, ids(10_000, 2000, n=3)))
        await rig.engine.arrived()
        rig.engine.default = Behaviour(tokens=1, gap_s=0)
        large = asyncio.ensure_future(
            rig.post(TEXT, ids(7000, 1000, n=8))  # 64,000 tokens where 62,996 are free
        )
        await rig.queued()
        small = await asyncio.gather(*together(rig, TEXT, [ids(1000, 1000)] * 10))
        assert {got.status for got in small} == {200}
        assert not large.done()
        leave.set()
        await first
        stop = asyncio.Event()

        async def trickle() -> None:
            while not stop.is_set():
                await rig.post(TEXT, ids(1000, 1000))

        others = [asyncio.ensure_future(trickle()) for _ in range(4)]
        assert (await large).status == 200
        stop.set()
        await asyncio.gather(*others)


async def test_g12_the_queue_is_bounded_by_bytes(world) -> None:
    """Bodies that wait are memory: each bound sheds, and the gauge comes back to zero."""
    async with world({"queue": {"max_requests": 100, "max_bytes": 10_000}}) as rig:
        leave = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=2, hold=leave, hold_at=1))
        first = asyncio.ensure_future(rig.post(TEXT, ids(4000, 8000, n=8)))
        await rig.engine.arrived()
        rig.engine.default = Behaviour(tokens=1)
        body = ids(20, 90_000, user="x" * 900, n=11)
        asked = together(rig, TEXT, [body] * 30)
        await rig.until(lambda: sum(one.done() for one in asked) >= 19, 20)
        view = rig.app.gate.view().queue
        assert view.bytes <= 10_000
        assert view.requests == 10_000 // (view.bytes // view.requests)
        leave.set()
        await first
        statuses = [got.status for got in await asyncio.gather(*asked)]
        assert statuses.count(200) == view.requests
        assert statuses.count(429) == 30 - view.requests
        assert rig.app.gate.view().queue.bytes == 0
