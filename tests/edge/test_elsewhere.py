"""A gate in front of an engine that is busy already: it does not promise the pool twice."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from gateway.app import App
from gateway.edge.elsewhere import GROWS, SHARE, Charge, Elsewhere
from gateway.upstream.loads import RankLoad
from tests.edge.rig import TEXT, _policy
from tests.fakes.behaviour import Behaviour
from tests.fakes.sglang import FakeSGLang


def load(running: int, total: int, waiting: int = 0) -> RankLoad:
    return RankLoad(
        rank=0,
        running=running,
        waiting=waiting,
        used=total,
        total=total,
        waiting_uncached=None,
        pool_tokens=2048,
        prefilled=None,
        age_s=0.0,
    )


def test_all_of_it_at_first_contact_and_ever_less() -> None:
    others = Elsewhere(2048)
    assert others.took(load(3, 600, waiting=1), 0, 0) == Charge(600 + 4 * 256, 4)
    assert others.took(load(3, 640), 0, 0) == Charge(640 + 3 * 256, 3)
    assert others.took(load(3, 700), 2, 60) == Charge(640 + 256, 1)
    assert others.took(load(5, 900), 2, 100).requests == 1, "what came later is not told from ours"
    assert others.took(load(2, 100), 2, 100) == Charge()
    assert others.over


def test_an_idle_engine_is_charged_nothing() -> None:
    others = Elsewhere(67_375)
    assert others.took(load(0, 0), 0, 0) == Charge()
    assert others.over


def test_ours_that_have_just_ended_are_not_taken_for_others() -> None:
    others = Elsewhere(2048)
    others.took(load(1, 100), 0, 0)
    others.took(load(6, 700), 5, 600)
    assert others.took(load(6, 700), 1, 100).requests == 1


NUMBERS = st.tuples(*(st.integers(0, 50) for _ in range(2)), st.integers(0, 5000))


@given(st.integers(1, 100_000), st.lists(NUMBERS, min_size=1, max_size=30))
def test_it_never_grows_in_number_and_ends_with_the_engine_s_work(pool: int, looks) -> None:
    others, before = Elsewhere(pool), None
    for running, ours, total in looks:
        charge = others.took(load(running, total), ours, 0)
        assert before is None or charge.requests <= before
        assert charge.kv >= charge.requests
        assert charge.kv <= max(total, charge.requests) + charge.requests * min(
            GROWS, pool // SHARE
        )
        assert (charge.kv == 0) == (charge.requests == 0)
        before = charge.requests
    assert others.took(load(0, 0), 0, 0) == Charge()


async def test_a_new_gate_before_a_busy_engine_waits_for_what_runs_there(tmp_path) -> None:
    """The pool never overflows, though the gate was not there when its first half was given away."""
    async with FakeSGLang() as engine, aiohttp.ClientSession() as http:
        hold = asyncio.Event()
        engine.queue.append(Behaviour(tokens=40, hold=hold, hold_at=2))
        body = {"prompt": [1] * 900, "max_tokens": 40, "rid": "somebody-elses"}
        direct = asyncio.ensure_future(http.post(engine.url + TEXT, json=body))
        await engine.arrived()
        app = App(_policy(tmp_path, engine.url, {}))
        await app.start()
        try:
            async with asyncio.timeout(5):
                await app.fleet.open.wait()
            (pool,) = app.gate.view().pools
            assert pool.kv.reserved == 902 + 256
            assert pool.slots.reserved == 1

            async def ask(prompt: int) -> Any:
                mine = {"prompt": [1] * prompt, "max_tokens": 20}
                async with http.post(app.listen_url + TEXT, json=mine) as answer:
                    return answer.status

            large = asyncio.ensure_future(ask(1000))
            async with asyncio.timeout(5):
                while app.gate.view().queue.requests != 1:
                    await asyncio.sleep(0.005)
                assert await ask(100) == 200, "what fits beside it runs"
                (backend,) = app.control.status()["backends"]
                assert backend["elsewhere"] == {"requests": 1, "tokens": 902 + 256}
                hold.set()
                assert await large == 200, "it came in when the other had ended"
            (await direct).close()
            (pool,) = app.gate.view().pools
            assert (pool.kv.reserved, pool.slots.reserved) == (0, 0)
            assert app.control.status()["backends"][0]["elsewhere"]["requests"] == 0
            assert engine.peak <= engine.profile.pool
        finally:
            await app.stop()


async def test_after_a_cut_network_what_was_written_off_is_charged_anew(rig) -> None:
    """The door was shut, so it was written off; the same process is back and still at it."""
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=3, hold=hold, hold_at=1))
    rig.engine.notice_s = None  # it goes on for nobody
    asked = asyncio.ensure_future(rig.post(TEXT, {"prompt": [1] * 400, "max_tokens": 9}))
    await rig.engine.arrived()
    backend = rig.app.fleet.backends["gpu0"]
    rig.app.fleet._down(backend, "cut")
    rig.app.fleet._gone(backend, "No connection.")
    assert rig.reserved == 0
    assert (await asked).status == 200, "sent again when the watch had found it alive"
    assert rig.app.gate.occupied(backend.pools[0]) == (401 + 256, 1)
    assert (await rig.status())["backends"][0]["elsewhere"]["requests"] == 1
    hold.set()
    await rig.until(lambda: rig.reserved == 0, 5)
