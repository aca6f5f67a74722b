"""What /status says of now, the last minute and the last quarter of an hour."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import pytest

from gateway.core.model import Code, Outcome, View
from gateway.observe import recent
from gateway.observe.recent import MOST, REFUSALS, Recent
from gateway.page.trend import COLUMNS, KEPT, Trend
from tests.edge.rig import CHAT, TEXT
from tests.fakes.behaviour import Behaviour, refuse
from tests.observe.made_up import finished, refused

PATIENCE_S = 15.0
"""For what takes milliseconds on a machine that has something else to do."""


async def test_where_requests_are(start) -> None:
    """One writes, one reads, two wait for memory, one for a slot."""
    async with start({"backend": {"slots": 2}, "queue": {"max_requests": 3}}) as rig:
        await _places(rig)


async def _places(rig) -> None:
    status = await rig.status()
    assert status["now"] == {
        "level": "calm",
        "working": 0,
        "waiting_to_start": 0,
        "waiting_for_memory": 0,
        "reading": 0,
        "writing": 0,
        "leaving": 0,
        "pressure": {"kv": 0.0, "slots": 0.0},
    }
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=9, hold=hold, hold_at=3))
    writing = asyncio.ensure_future(rig.chat(max_tokens=9, stream=True))
    await rig.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 3, PATIENCE_S)
    rig.engine.queue.append(Behaviour(tokens=2, hold=hold, hold_at=0))
    reading = asyncio.ensure_future(rig.chat(words=1500, max_tokens=9, stream=True))
    await rig.until(lambda: len(rig.engine.seen) == 2, PATIENCE_S)
    now = (await rig.status())["now"]
    assert now["level"] == "busy", "both slots are taken"
    full = {"prompt": [1] * 20, "max_tokens": 5000}
    large = [asyncio.ensure_future(rig.post(TEXT, full)) for _ in range(2)]
    await rig.until(lambda: rig.app.gate.view().queue.requests == 2, PATIENCE_S)
    waiting = asyncio.ensure_future(rig.chat(words=9, max_tokens=1, stream=True))
    await rig.until(lambda: rig.app.gate.view().queue.requests == 3, PATIENCE_S)
    now = (await rig.status())["now"]
    assert {key: now[key] for key in ("working", "reading", "writing", "leaving")} == {
        "working": 2,
        "reading": 1,
        "writing": 1,
        "leaving": 0,
    }
    assert (now["waiting_for_memory"], now["waiting_to_start"]) == (2, 1)
    assert now["level"] == "queueing"
    ledgers = (await rig.status())["backends"][0]["ledgers"]
    kv = ledgers["kv"]
    assert now["pressure"]["kv"] == pytest.approx(kv["reserved"] / kv["limit"], abs=1e-4)
    assert (await rig.chat(words=9000)).status == 400
    status = await rig.status()
    assert (status["now"]["level"], status["recently"]["refused"]) == ("queueing", 1), "an error"
    assert (await rig.chat(words=9, max_tokens=1)).status == 429
    status = await rig.status()
    assert (status["now"]["level"], status["recently"]["refused"]) == ("refusing", 2)
    assert status["recently"]["refused_for_load"] == 1
    hold.set()
    await asyncio.gather(writing, reading, waiting, *large)


async def test_a_long_prompt_alone_is_no_pressure(start) -> None:
    async with start(pool=8192) as rig:
        hold = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=2, hold=hold, hold_at=0))
        asked = asyncio.ensure_future(rig.chat(words=1900, max_tokens=9, stream=True))
        await rig.until(lambda: len(rig.engine.seen) == 1, PATIENCE_S)
        status = await rig.status()
        assert status["backends"][0]["ledgers"]["prefill"]["reserved"] > 1900
        now = status["now"]
        assert (now["reading"], now["level"]) == (1, "calm")
        hold.set()
        await asked


async def test_a_full_pool_is_busy_and_a_client_that_left_is_leaving(rig) -> None:
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=9, hold=hold, hold_at=3))
    asked = asyncio.ensure_future(rig.chat(words=1000, max_tokens=900, stream=True))
    await rig.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 3, PATIENCE_S)
    now = (await rig.status())["now"]
    assert (now["level"], now["writing"]) == ("busy", 1)
    await rig.engine.die()
    await rig.until(lambda: not rig.app.fleet.any_ready, PATIENCE_S)
    assert (await rig.status())["now"]["level"] == "no_server"
    await rig.engine.revive()
    await rig.until(lambda: rig.app.fleet.any_ready, PATIENCE_S)
    hold.set()
    await asyncio.gather(asked, return_exceptions=True)
    await rig.control("/drain", "POST")
    assert (await rig.status())["now"]["level"] == "draining"


async def test_the_last_refusals_say_why_and_nothing_the_client_said(rig) -> None:
    await rig.post(CHAT, b"{PLANTED")
    await rig.chat(words=9000, user="PLANTED")
    rig.engine.queue.append(refuse(400, "PLANTED is not good"))
    await rig.chat()
    await rig.chat()
    newest, long, broken = (await rig.status())["refusals"]
    assert (newest["upstream_status"], newest["code"]) == (400, None)
    assert long["code"] == "context_length_exceeded"
    assert long["needed"] > long["available"] > 0
    assert (broken["code"], broken["reason"]) == ("invalid_request", None)
    assert {one["client"] for one in (newest, long)} == {"anyone"}
    assert "PLANTED" not in (await rig.control("/status")).body.decode()


async def test_a_row_of_the_trend_is_what_status_says(rig) -> None:
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=9, hold=hold, hold_at=3))
    asked = asyncio.ensure_future(rig.chat(max_tokens=9, stream=True))
    await rig.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 3, PATIENCE_S)
    trend = rig.app.control._trend
    trend.look()
    status = rig.app.control.status()  # of the same instant
    document = (await rig.control("/trend")).json()
    assert document["columns"] == list(COLUMNS)
    row = dict(zip(document["columns"], document["rows"][-1], strict=True))
    kv = status["backends"][0]["ledgers"]["kv"]
    assert (row["kv_used"], row["kv_reserved"], row["kv_limit"]) == (
        kv["used"],
        kv["reserved"],
        kv["limit"],
    )
    assert (row["working"], row["waiting"]) == (1, 0)
    assert status["recently"]["written_per_s"] == row["written_per_s"]
    hold.set()
    await asked
    await rig.until(lambda: len(rig.records) == 1, PATIENCE_S)
    for _ in range(KEPT + 5):
        trend.look()
    rows = (await rig.control("/trend")).json()["rows"]
    assert len(rows) == KEPT


def test_speeds_are_of_what_runs_and_of_what_has_ended() -> None:
    """A death takes tokens away that nobody will tell of: the others' speed is seen all the same."""
    clock, recent = [0.0], Recent()
    holds: dict[str, SimpleNamespace] = {}
    pools = {"gpu0": SimpleNamespace(ledger=SimpleNamespace(holds=holds))}
    books = SimpleNamespace(pools=pools)
    gate = SimpleNamespace(core=SimpleNamespace(books=books), view=View, now=lambda: clock[0])
    trend = Trend(gate, recent)

    def speeds() -> tuple[float | None, float | None]:
        clock[0] += 5
        trend.look()
        return tuple(trend.speed().values())

    def hold(tokens: int, *, prefilling: bool = False) -> SimpleNamespace:
        return SimpleNamespace(prefilling=prefilling, prompt=1000, seen=tokens, generated=0)

    holds["a"] = hold(0, prefilling=True)
    assert speeds() == (None, None)
    holds["a"] = hold(100)
    holds["b"] = hold(1000)
    assert speeds() == (400.0, 220.0)
    del holds["b"]  # its server died; its client will be served by another, from the beginning
    holds["a"] = hold(150)
    assert speeds() == (0.0, 10.0)
    holds["b"] = hold(0, prefilling=True)
    assert speeds() == (0.0, 0.0)
    del holds["a"]
    recent.count(finished(prompt_tokens=1000, output_tokens=200))
    recent.count(finished(prompt_tokens=500, output_tokens=25))  # came and went in between
    assert speeds() == (100.0, 15.0)


def test_the_last_minute_and_no_more() -> None:
    clock = [100.0]
    told = Recent(lambda: clock[0])
    nothing = {"p50": None, "p95": None, "samples": 0}
    assert told.minute() == {
        "seconds": 60.0,
        "ended": 0,
        "refused": 0,
        "refused_for_load": 0,
        "ttft_ms": nothing,
        "tpot_ms": nothing,
    }
    for ms in range(1, 101):
        told.count(finished(ttft_ms=float(ms), tpot_ms=2.0 * ms))
    told.count(finished(ttft_ms=9e9, streamed=False, tpot_ms=None))
    told.count(refused(Code.QUEUE_FULL))
    minute = told.minute()
    assert minute["ttft_ms"] == {"p50": 50.0, "p95": 95.0, "samples": 100}
    assert minute["tpot_ms"] == {"p50": 100.0, "p95": 190.0, "samples": 100}
    assert (minute["ended"], minute["refused"], minute["refused_for_load"]) == (102, 1, 1)
    clock[0] += 60.5
    told.count(finished(ttft_ms=7.0))
    assert told.minute()["ttft_ms"] == {"p50": 7.0, "p95": 7.0, "samples": 1}


@pytest.mark.parametrize("code", list(Code))
def test_refused_for_load_are_those_an_idle_gate_would_have_taken(code: Code) -> None:
    told = Recent()
    told.count(refused(code))
    minute = told.minute()
    assert minute["refused"] == 1
    assert minute["refused_for_load"] == (
        code.value
        in {
            "queue_full",
            "deadline_unreachable",
            "queue_timeout",
            "no_backend",
        }
    )


def test_where_too_many_end_the_window_says_how_short_it_is() -> None:
    clock = [0.0]
    told = Recent(lambda: clock[0])
    for _ in range(MOST + 10):
        clock[0] += 0.001
        told.count(finished())
    minute = told.minute()
    assert minute["ended"] == MOST
    assert minute["seconds"] == pytest.approx(MOST * 0.001, abs=0.1)


def test_a_screenful_of_refusals_newest_first() -> None:
    told = Recent()
    for number in range(REFUSALS + 5):
        told.count(refused(Code.QUEUE_FULL, id=f"r{number}"))
        told.count(finished(outcome=Outcome.COMPLETED))
    ids = [one["id"] for one in told.refusals()]
    assert ids == [f"r{number}" for number in range(REFUSALS + 4, 4, -1)]
    late = finished(outcome=Outcome.FAILED, reason="The server died.", e2e_ms=90_000.0)
    told.count(late)
    newest = told.refusals()[0]
    assert newest["reason"] == "The server died."
    assert newest["at"] == (late.at + timedelta(seconds=90)).isoformat(timespec="milliseconds")
    assert recent.WINDOW_S == 60
