"""What counts as proof that an abandoned request is gone."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.model import RequestId
from gateway.edge import backend as of_backend
from gateway.edge.backends import Backend
from gateway.policy.schema import Backend as BackendPolicy
from gateway.upstream.loads import LoadsFacts, RankLoad


def _loads(running: int, waiting: int = 0, age_s: float | None = 0.0) -> LoadsFacts:
    rank = RankLoad(
        rank=0,
        running=running,
        waiting=waiting,
        used=0,
        total=0,
        waiting_uncached=None,
        pool_tokens=1000,
        prefilled=None,
        age_s=age_s,
    )
    return LoadsFacts((rank,))


@pytest.fixture
def backend() -> Backend:
    policy = BackendPolicy(url="http://127.0.0.1:1", name="gpu0")
    return Backend(policy, api_key=None, connect_s=1.0)


async def _after(backend: Backend, *snapshots: LoadsFacts) -> bool:
    """Whether these, coming one after the other, prove a request gone that was left now."""
    since = asyncio.get_running_loop().time()
    waiting = asyncio.ensure_future(backend.gone(since, backend.life, 0.05))
    for loads in snapshots:
        await asyncio.sleep(0.001)
        backend.took_loads(loads)
    return await waiting


async def test_two_snapshots_without_it_are_proof_and_one_is_not(backend: Backend) -> None:
    assert await _after(backend, _loads(0), _loads(0))
    assert not await _after(backend, _loads(0))
    assert not await _after(backend, _loads(0), _loads(1), _loads(0))


async def test_a_snapshot_taken_before_it_was_left_proves_nothing(backend: Backend) -> None:
    """Since 0.5.17 loads tell their age: a frozen scheduler answers for ever with the last ones."""
    assert not await _after(backend, *[_loads(0, age_s=5.0)] * 4)


async def test_requests_that_are_alive_are_not_taken_for_it(backend: Backend, monkeypatch) -> None:
    monkeypatch.setattr(of_backend, "SETTLE_S", 0.0)
    backend.began(RequestId("alive"), 2)
    assert await _after(backend, _loads(2), _loads(1, 1))
    assert not await _after(backend, _loads(3), _loads(2, 1))
    backend.ended(RequestId("alive"))
    assert not await _after(backend, _loads(2), _loads(2))


async def test_a_request_just_written_does_not_stand_in_for_it(backend: Backend) -> None:
    """The snapshot may have been taken before the engine knew of it: the one it shows is the other."""
    assert not await _after(backend, _loads(1), _loads(1))
    backend.began(RequestId("just written"), 1)
    assert not await _after(backend, _loads(1), _loads(1))
    assert await _after(backend, _loads(0), _loads(0))


async def test_a_server_that_died_holds_nothing(backend: Backend) -> None:
    since = asyncio.get_running_loop().time()
    waiting = asyncio.ensure_future(backend.gone(since, backend.life, 5.0))
    await asyncio.sleep(0.001)
    backend.died()
    assert await waiting


async def test_busy_is_only_what_an_engine_says_that_holds_more_than_we_know_of(
    backend: Backend,
) -> None:
    """Loads that are old but show nothing running do not prolong a reservation."""
    since = asyncio.get_running_loop().time()
    assert not backend.says_busy(since)
    await asyncio.sleep(0.001)
    backend.took_loads(_loads(1))
    assert backend.says_busy(since)
    backend.took_loads(_loads(0, age_s=60.0))
    assert not backend.says_busy(since)
    backend.took_loads(_loads(1))
    assert not backend.says_busy(asyncio.get_running_loop().time())


async def test_a_server_tells_its_count_and_its_ids(rig) -> None:
    backend = rig.app.fleet.backends["gpu0"]
    body = {"messages": [{"role": "user", "content": "a b c"}]}
    assert await backend.tokenize(body) == 3 + 4
    assert await backend.token_ids(body) == list(range(3 + 4))
