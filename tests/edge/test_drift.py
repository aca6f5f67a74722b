"""What the engine counts and the books do not: a number for people, from which nothing follows."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from gateway.edge import backends
from gateway.upstream.life import Pace
from tests.edge.rig import CHAT, chat
from tests.fakes.behaviour import Behaviour


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(backends, "Pace", partial(Pace, loads_s=0.02))


def drift(rig) -> dict[int, int]:
    return rig.app.fleet.backends["gpu0"].drift


async def told(rig) -> tuple[int | None, int | None, float | None]:
    """/status of the server and of its rank, and the metric."""
    (backend,) = (await rig.status())["backends"]
    metric = rig.app.metrics.registry.get_sample_value
    labels = {"backend": "gpu0", "rank": "0"}
    return (
        backend["drift_tokens"],
        backend["ranks"][0]["drift_tokens"],
        metric("kvgate_drift_tokens", labels),
    )


async def test_none_while_both_say_the_same_in_every_phase(rig) -> None:
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=9, hold=hold, hold_at=0)
    asked = asyncio.ensure_future(rig.post(CHAT, chat(100, max_tokens=9, stream=True)))
    await rig.engine.arrived()
    for _ in range(2):  # while it is being read, and while it writes
        seen = rig.engine.calls["/v1/loads"]
        await rig.engine.until(lambda seen=seen: rig.engine.calls["/v1/loads"] > seen + 2)
        assert await told(rig) == (0, 0, 0)
        rig.engine.default = Behaviour()
        hold.set()
    assert (await asked).status == 200


async def test_what_the_engine_uses_beyond_the_books_is_negative_and_decides_nothing(rig) -> None:
    use = rig.engine.use
    rig.engine.use = lambda: [one.__class__(0, 0, 1500, 1500, one.prefilled) for one in use()]
    await rig.until(lambda: drift(rig) == {0: -1500})
    assert await told(rig) == (-1500, -1500, -1500)
    assert (await rig.chat(1000, max_tokens=500)).status == 200, "by the books there is room"


async def test_what_the_books_use_beyond_the_engine_is_positive(rig) -> None:
    """Prompts that share their beginning, or requests the engine has forgotten."""
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=9, hold=hold, hold_at=3)
    asked = asyncio.ensure_future(rig.post(CHAT, chat(100, max_tokens=9, stream=True)))
    await rig.engine.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 3)
    use = rig.engine.use
    rig.engine.use = lambda: [one.__class__(1, 0, 40, 40, one.prefilled) for one in use()]
    await rig.until(lambda: drift(rig) == {0: 104 + 3 - 40})
    hold.set()
    await asked


async def test_a_server_that_is_down_has_none(rig) -> None:
    await rig.until(lambda: drift(rig) == {0: 0})
    await rig.engine.die()
    await rig.until(lambda: not rig.app.fleet.any_ready, 5)
    assert await told(rig) == (None, None, None)
