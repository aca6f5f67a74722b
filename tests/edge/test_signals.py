"""What /metrics of a server tell: retractions make the plan smaller, its ratio is the mirror's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from gateway.core.envelope import RETRACTED
from gateway.core.model import PoolId
from gateway.edge import backends, signals
from gateway.upstream.life import Pace
from tests.edge.rig import TEXT
from tests.fakes.behaviour import Behaviour


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(signals, "METRICS_S", 0.0)
    pace = partial(Pace, backoff_s=(0.02, 0.1), loads_s=0.02, retry_s=0.02)
    monkeypatch.setattr(backends, "Pace", pace)


def share(rig, rank: int = 0) -> float:
    return rig.app.gate.share(PoolId("gpu0", rank))


def said(rig) -> float | None:
    return rig.app.gate.core.books.pools[PoolId("gpu0")].ledger.mirror.said


async def looks(rig, number: int = 2) -> None:
    """Return once so many more looks have begun: all before the last of them are taken."""
    asked = rig.engine.calls["/metrics"]
    await rig.until(lambda: rig.engine.calls["/metrics"] >= asked + number)


async def begins_with(rig, retracted: int, monkeypatch) -> None:
    """The gate has never looked, and the count stands there already."""
    mine = rig.app.fleet._signals
    monkeypatch.setattr(signals, "METRICS_S", 1e9)
    await rig.until(lambda: "gpu0" in mine._of and mine._of["gpu0"].look.done())
    rig.engine.retracted = [retracted]
    mine._of.clear()
    monkeypatch.setattr(signals, "METRICS_S", 0.0)


async def test_each_growth_of_the_count_is_told_once(rig) -> None:
    await looks(rig)
    assert share(rig) == 1.0
    rig.engine.retracted = [3]
    await looks(rig, 4)
    assert share(rig) == pytest.approx(RETRACTED), "one batch, however many requests"
    rig.engine.retracted = [4]
    await looks(rig, 4)
    assert share(rig) == pytest.approx(RETRACTED**2)


async def test_what_had_happened_before_the_first_look_is_nobody_s_news(start, monkeypatch) -> None:
    async with start(version="0.5.23") as rig:
        await begins_with(rig, 50, monkeypatch)
        await looks(rig, 4)
        assert share(rig) == 1.0


async def test_a_restart_begins_anew(rig, monkeypatch) -> None:
    await begins_with(rig, 5, monkeypatch)
    await looks(rig, 3)
    before = share(rig)
    await rig.engine.die()
    await rig.until(lambda: not rig.app.fleet.any_ready, 5)
    await rig.engine.revive()
    rig.engine.retracted = [9]  # of another process: no growth of the 5
    await rig.ready()
    await looks(rig, 4)
    assert share(rig) == before
    rig.engine.retracted = [10]
    await looks(rig, 4)
    assert share(rig) == pytest.approx(before * RETRACTED)


async def test_a_look_that_was_under_way_at_a_restart_is_dropped(rig, monkeypatch) -> None:
    await looks(rig)
    held, going = asyncio.Event(), asyncio.Event()
    real = signals.metrics

    async def slow(*args, **kwargs):
        found = await real(*args, **kwargs)
        going.set()
        await held.wait()
        return found

    rig.engine.retracted = [7]
    monkeypatch.setattr(signals, "metrics", slow)
    await going.wait()
    monkeypatch.setattr(signals, "metrics", real)
    await rig.engine.die()
    await rig.until(lambda: not rig.app.fleet.any_ready, 5)
    await rig.engine.revive()
    await rig.ready()
    held.set()
    await looks(rig, 3)
    assert share(rig) == 1.0


async def test_ranks_are_told_apart(start) -> None:
    async with start(dp=2) as rig:
        await looks(rig)
        rig.engine.retracted = [0, 2]
        await looks(rig, 4)
        assert (share(rig, 0), share(rig, 1)) == (1.0, pytest.approx(RETRACTED))


async def test_the_engine_s_ratio_counts_while_something_runs(rig) -> None:
    rig.engine.ratio = 0.31
    await looks(rig, 3)
    assert said(rig) is None, "an idle engine's last word is not its next ratio"
    done = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=2, hold=done))
    asked = asyncio.ensure_future(rig.post(TEXT, {"prompt": [1] * 20, "max_tokens": 5}))
    await rig.until(lambda: said(rig) == 0.31)
    rig.engine.ratio = None
    await rig.until(lambda: said(rig) is None)
    done.set()
    assert (await asked).status == 200


async def test_metrics_that_fail_are_no_news(rig, monkeypatch) -> None:
    await looks(rig)
    rig.engine.profile = replace(rig.engine.profile, enable_metrics=False)  # 404 from now on
    asked = rig.engine.calls["/metrics"]
    await rig.until(lambda: rig.engine.calls["/metrics"] >= asked + 3)
    assert rig.app.fleet.any_ready
    assert share(rig) == 1.0


async def test_without_metrics_nothing_is_asked_and_the_status_says_so(start) -> None:
    async with start(enable_metrics=False) as rig:
        loads = rig.engine.calls["/v1/loads"]
        await rig.until(lambda: rig.engine.calls["/v1/loads"] >= loads + 3)
        assert rig.engine.calls["/metrics"] == 0
        (backend,) = (await rig.status())["backends"]
        assert any("--enable-metrics" in note for note in backend["notes"])


async def test_with_metrics_there_is_no_such_note(rig) -> None:
    (backend,) = (await rig.status())["backends"]
    assert not any("--enable-metrics" in note for note in backend["notes"])
