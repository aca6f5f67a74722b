"""Case E15: a server whose answers take a second or two is slow, not away."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.watch import Life, Watch
from tests.upstream.scripted import ScriptedClient

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("latency_s", [0.5, 1.5, 2.9])
async def test_e15_slow_answers_are_a_ready_server(latency_s: float) -> None:
    client = ScriptedClient()
    client.latency_s = latency_s
    watch = Watch(
        client,
        name="slow",
        api_key=None,
        on_up=lambda _facts: None,
        on_down=pytest.fail,
        on_loads=lambda _loads: None,
    )
    watch.start()
    for seconds in (15, 300):
        await asyncio.sleep(seconds)
        assert watch.snapshot().state is Life.READY
    await watch.stop()
