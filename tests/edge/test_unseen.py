"""Answers in one piece show no first token: what their server says of itself gives their prefill back."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from gateway.core.model import PoolId
from gateway.edge import backends
from gateway.edge.backend import Backend, Others
from gateway.edge.elsewhere import Elsewhere
from gateway.policy.schema import Backend as BackendPolicy
from gateway.upstream.life import Pace
from gateway.upstream.loads import LoadsFacts, RankLoad
from tests.fakes.behaviour import Behaviour


def load(rank: int, running: int, *, age_s: float | None = None) -> RankLoad:
    return RankLoad(
        rank=rank,
        running=running,
        waiting=1,
        used=0,
        total=0,
        waiting_uncached=7,
        pool_tokens=1000,
        prefilled=100,
        age_s=age_s,
        prefill_s=0.5,
    )


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(backends, "Pace", partial(Pace, loads_s=0.02))


async def test_a_prompt_is_read_once_its_engine_says_so(rig) -> None:
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=40, hold=hold)
    use, running = rig.engine.use, 0
    rig.engine.use = lambda: [one.__class__(running, 0, 0, 0, one.prefilled) for one in use()]
    asked = asyncio.ensure_future(rig.chat(1000, max_tokens=40))
    await rig.engine.arrived()
    pool = rig.app.gate.core.books.pools[PoolId("gpu0", 0)]

    async def reading() -> int:
        seen = rig.engine.calls["/v1/loads"]
        await rig.engine.until(lambda: rig.engine.calls["/v1/loads"] > seen + 2)
        (backend,) = (await rig.status())["backends"]
        return int(backend["ledgers"]["prefill"]["reserved"])

    assert await reading() > 0, "it has not begun"
    running = 1
    assert await reading() == 0
    assert pool.whole == []
    hold.set()
    assert (await asked).status == 200
    await rig.until(lambda: rig.reserved == 0)
    (spent,) = pool.whole
    assert 0 < spent < 1, "how fast it was written, which nothing else tells"


@pytest.fixture
def backend() -> Backend:
    policy = BackendPolicy(url="http://127.0.0.1:1", name="gpu0")
    made = Backend(policy, api_key=None, connect_s=1.0)
    made.pools = [PoolId("gpu0", 0), PoolId("gpu0", 2)]
    return made


async def test_what_a_server_says_is_told_rank_by_rank(backend) -> None:
    loads = LoadsFacts((load(0, 3, age_s=2.0), load(1, 5), load(2, 4)))
    backend.took_loads(loads)
    (first, one), (second, two) = backend.looks(loads)
    assert (first, second) == (PoolId("gpu0", 0), PoolId("gpu0", 2)), "the others are not ours"
    assert (one.running, one.waiting, one.unread, one.read, one.read_s) == (3, 1, 7, 100, 0.5)
    assert two.at - one.at == pytest.approx(2.0), "as old as it says"
    assert two.running == 4


async def test_what_runs_for_others_is_no_proof_for_ours(backend) -> None:
    backend.others = {0: Others(2)}
    backend.elsewhere = {0: Elsewhere(1000), 2: Elsewhere(1000)}
    backend.elsewhere[2].took(load(2, 1), 0, 0)
    loads = LoadsFacts((load(0, 3), load(2, 4)))
    backend.took_loads(loads)
    assert [look.running for _, look in backend.looks(loads)] == [1, 2]
    backend.others = {0: Others(9)}
    assert [look.running for _, look in backend.looks(loads)] == [0, 2]
