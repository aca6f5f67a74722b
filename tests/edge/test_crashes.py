"""What is remembered of a death: the report, the quarantine, the slow start, the crash loop."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.core import quarantine
from gateway.edge import backends, crashes, handler
from gateway.upstream import reply
from gateway.upstream.life import Pace
from tests.edge.rig import CHAT, TEXT, chat
from tests.fakes.behaviour import Behaviour

SECRET = {"messages": [{"role": "user", "content": "PLANTED prompt"}], "user": "PLANTED"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(handler, "PAUSE_S", 0.02)
    pace = partial(Pace, backoff_s=(0.02, 0.1), loads_s=0.1)
    monkeypatch.setattr(backends, "Pace", pace)
    monkeypatch.setattr(reply, "_RACE_S", -1.0)


def ask(rig, body: Any, path: str = TEXT) -> asyncio.Future[Any]:
    return asyncio.ensure_future(rig.post(path, body))


async def die(rig, **changes: Any) -> None:
    """The engine dies and is back; the gate has seen both."""
    life = rig.app.fleet.backends["gpu0"].life
    await rig.engine.die()
    await rig.until(lambda: rig.app.fleet.backends["gpu0"].life == life + 1, 5)
    rig.engine.default = Behaviour(tokens=2)
    await rig.engine.revive(**changes)


# ---- the report --------------------------------------------------------------------------------


async def test_a_folder_that_is_none_is_told_at_the_start(start, tmp_path) -> None:
    """And not at the first death, when the report would have been wanted."""
    taken = tmp_path / "file"
    taken.write_text("mine")
    for path in (taken, taken / "below"):
        with capture_logs() as logs:
            async with start({"observe": {"crash_reports": str(path)}}) as rig:
                assert (await rig.chat(max_tokens=2)).status == 200
        (told,) = [line for line in logs if line["log_level"] == "warning"]
        assert (told["event"], told["path"]) == ("crash_reports_not_possible", str(path))
        assert told["reason"] == f"{taken} is a file, and must be a folder"
    assert taken.read_text() == "mine"


async def test_a_folder_that_may_not_be_written_is_told_as_well(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(crashes.os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(PermissionError, match="may not be written to"):
        crashes.check(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []


async def test_a_death_under_load_leaves_a_report_of_numbers(start, tmp_path) -> None:
    folder = tmp_path / "crashes"
    async with start({"observe": {"crash_reports": str(folder)}}) as rig:
        rig.engine.queue.append(Behaviour(tokens=9, hold=asyncio.Event(), hold_at=3))
        rig.engine.queue.append(Behaviour(never=True))
        stream = ask(rig, SECRET | {"stream": True, "max_tokens": 9}, CHAT)
        await rig.engine.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 3)
        unsent = ask(rig, {"prompt": [7] * 300, "max_tokens": 40})
        await rig.engine.arrived(2)
        await rig.until(lambda: rig.app.fleet.backends["gpu0"].loads is not None)
        await die(rig)
        assert (await unsent).status == 200
        await stream
        await rig.until(lambda: bool(list(folder.glob("*.json"))))
        (path,) = folder.glob("*")
        assert path.stat().st_mode & 0o777 & ~0o600 == 0, "it is for the operator alone"
        assert folder.stat().st_mode & 0o777 & ~0o700 == 0
        report = json.loads(path.read_text())
        assert report["backend"] == "gpu0"
        assert report["engine"]["pool_tokens"] == rig.largest_pool
        assert report["earlier_deaths_s_ago"] == []
        (pool,) = report["pools"]
        assert pool["kv"]["reserved"] == sum(one["kv_reserved"] for one in report["in_flight"])
        assert pool["prefill"]["reserved"] == 300
        assert report["loads"]["ranks"][0]["rank"] == 0
        begun, waiting = report["in_flight"]
        assert (begun["streamed"], begun["generated"], begun["max_tokens"]) == (True, 3, 9)
        assert (waiting["prompt_tokens"], waiting["generated"], waiting["attempt"]) == (300, 0, 1)
        assert begun["id"] in {record["id"] for record in rig.records}
        assert begun["mark"] != waiting["mark"]
        assert "PLANTED" not in path.read_text()


async def test_a_restart_with_nothing_in_flight_is_no_crash(start, tmp_path) -> None:
    async with start({"observe": {"crash_reports": str(tmp_path / "crashes")}}) as rig:
        for _ in range(4):
            await rig.engine.die()
            rig.app.fleet.backends["gpu0"].suspect("a reset on a kept connection")
            await rig.until(lambda: not rig.app.fleet.any_ready, 5)
            await rig.engine.revive()
            await rig.until(lambda: rig.app.fleet.any_ready, 5)
        assert not (tmp_path / "crashes").exists()
        (backend,) = (await rig.status())["backends"]
        assert backend["held"] is None


async def test_a_suspicion_that_was_nothing_leaves_nothing(start, tmp_path) -> None:
    async with start({"observe": {"crash_reports": str(tmp_path / "crashes")}}) as rig:
        rig.engine.default = Behaviour(reset_at=0)
        for _ in range(5):
            await rig.until(lambda: rig.app.fleet.any_ready)
            assert (await rig.post(TEXT, {"prompt": [1] * 20})).status == 502
        rig.engine.default = Behaviour(tokens=2)
        await rig.until(lambda: rig.app.fleet.any_ready)
        assert (await rig.post(TEXT, {"prompt": [1] * 20})).status == 200
        assert len(rig.app.deaths.quarantine) == 0
        assert not (tmp_path / "crashes").exists()


async def test_a_report_that_cannot_be_written_costs_a_warning(start, tmp_path) -> None:
    (tmp_path / "crashes").write_text("a file where the folder should be")
    async with start({"observe": {"crash_reports": str(tmp_path / "crashes")}}) as rig:
        rig.engine.queue.append(Behaviour(never=True))
        asked = ask(rig, {"prompt": [1] * 20, "max_tokens": 5})
        await rig.engine.arrived()
        await die(rig)
        assert (await asked).status == 200


def test_a_report_is_whole_or_absent_and_the_oldest_go(tmp_path, monkeypatch) -> None:
    scenes = [{"at": f"2026-11-29T20:00:{n:02d}.000+00:00", "backend": "a/b"} for n in range(40)]
    for scene in scenes:
        crashes.write(tmp_path, scene)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == crashes.KEEP
    assert kept[-1] == "crash-20261129T200039000-a_b.json"
    monkeypatch.setattr(crashes.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        crashes.write(tmp_path, scenes[0] | {"at": "2027-01-01T00:00:00.000+00:00"})
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


# ---- quarantine --------------------------------------------------------------------------------


async def test_a_request_in_flight_at_two_deaths_is_refused_and_others_are_not(rig) -> None:
    """Class D: it is put back once, and not a second time; whoever repeats it gets the same."""
    deadly = chat(30, max_tokens=5)

    def behave(seen) -> Behaviour:
        return Behaviour(never=True) if sum(seen.job.prompts) == 34 else Behaviour(tokens=2)

    rig.engine.script = behave
    asked = ask(rig, deadly, CHAT)
    await rig.engine.arrived()
    await die(rig)
    await rig.engine.arrived(2)
    assert (await rig.chat(16, max_tokens=2)).status == 200
    await die(rig)
    got = await asked
    assert (got.status, got.code) == (400, "quarantined")
    assert "2 times" in got.error["message"]
    assert got.headers["x-should-retry"] == "false"
    await rig.until(lambda: rig.app.fleet.any_ready, 5)
    rig.engine.script = lambda _: Behaviour(tokens=2)
    again = await rig.post(CHAT, deadly)
    assert (again.status, again.code) == (400, "quarantined")
    assert (await rig.post(CHAT, deadly | {"temperature": 0.5})).status == 200
    assert (await rig.chat(16, max_tokens=2)).status == 200
    assert len(rig.engine.seen) == 5
    assert [record["code"] for record in rig.records].count("quarantined") == 2


async def test_a_request_that_is_served_in_between_is_none_of_it(rig) -> None:
    body = {"prompt": [1] * 20, "max_tokens": 5}
    for _ in range(2):  # a bystander of two deaths
        rig.engine.queue.append(Behaviour(never=True))
        asked = ask(rig, body)
        await rig.engine.arrived(len(rig.engine.seen) + 1)
        await die(rig)
        assert (await asked).status == 200
    assert len(rig.app.deaths.quarantine) == 0
    assert (await rig.post(TEXT, body)).status == 200


# ---- slow start --------------------------------------------------------------------------------


async def test_a_new_start_takes_one_prompt_at_a_time_and_then_more(rig) -> None:
    limit = rig.app.gate.view().pools[0].limits.prefill_tokens
    rig.engine.default = Behaviour(never=True)
    asked = [ask(rig, {"prompt": [1] * 400, "max_tokens": 5, "user": str(n)}) for n in range(3)]
    await rig.engine.arrived(3)
    hold = asyncio.Event()
    await rig.engine.die()
    await rig.queued(3)
    rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=0)
    await rig.engine.revive()
    await rig.engine.arrived(4)
    view = rig.app.gate.view()
    assert (view.queue.requests, view.pools[0].limits.prefill_tokens) == (2, 1)
    hold.set()
    assert {got.status for got in await asyncio.gather(*asked)} == {200}
    assert rig.app.gate.view().pools[0].limits.prefill_tokens == limit


# ---- crash loops -------------------------------------------------------------------------------


async def test_a_server_that_dies_again_and_again_is_left_alone_and_it_is_said(
    start, monkeypatch
) -> None:
    monkeypatch.setattr(quarantine, "HOLD_S", 0.6)
    said: list[tuple[str, str]] = []
    async with start() as rig:

        def tell(event: str, **facts: object) -> None:
            said.append((event, str(facts.get("reason"))))

        rig.app.deaths._log = SimpleNamespace(warning=tell, error=tell, info=tell)
        for death in range(3):
            await rig.until(lambda: rig.app.fleet.any_ready, 5)
            rig.engine.queue.append(Behaviour(tokens=9, hold=asyncio.Event(), hold_at=1))
            asked = ask(rig, chat(20 + death, max_tokens=9, stream=True), CHAT)
            number = len(rig.engine.seen) + 1
            seen = await rig.engine.arrived(number)
            await rig.engine.until(lambda seen=seen: seen.events == 1)
            await die(rig)
            assert (await asked).status == 200
        await rig.until(lambda: rig.app.fleet.backends["gpu0"].held is not None)
        (backend,) = (await rig.status())["backends"]
        assert (backend["state"], backend["deaths"]) == ("ready", 3)
        assert not backend["ready"]
        assert "died 3 times within 10 minutes" in backend["held"]
        assert "its own log" in backend["held"]
        held = backend["held"]
        got = await rig.chat(max_tokens=2)
        assert (got.status, got.code) == (503, "no_backend")
        assert "held back after several deaths" in got.error["message"]
        assert rig.app.gate.view().pools[0].open is False
        await rig.until(lambda: rig.app.fleet.any_ready)
        assert (await rig.chat(max_tokens=2)).status == 200
        (backend,) = (await rig.status())["backends"]
        assert backend["held"] is None
    assert [event for event, _ in said].count("server_died") == 3
    assert [reason for event, reason in said if event == "crash_loop"] == [held]


# ---- servers that do not move --------------------------------------------------------------------


async def test_nothing_new_goes_to_a_server_that_does_not_move(start) -> None:
    """Class E: /v1/models and the loads say 200 all the while. What runs is not cut."""
    async with start({"limits": {"stall_s": 0.6}}) as rig:
        rig.engine.default = Behaviour(
            tokens=9, gap_s=0.01, hold=(hold := asyncio.Event()), hold_at=3
        )
        stream = ask(rig, chat(max_tokens=9, stream=True), CHAT)
        await rig.engine.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 3)
        rig.engine.freeze()
        await rig.until(lambda: not rig.app.fleet.any_ready, 6)
        (backend,) = (await rig.status())["backends"]
        assert backend["state"] == "stalled"
        assert "nothing has moved" in backend["error"]
        got = await rig.chat(max_tokens=2)
        assert (got.status, got.code) == (503, "no_backend")
        assert "gpu0 is stalled" in got.error["message"]
        assert rig.reserved > 0, "nothing is written off"
        rig.engine.thaw()
        hold.set()
        got = await stream
        assert got.body.endswith(b"data: [DONE]\n\n")
        await rig.until(lambda: rig.app.fleet.any_ready)
        assert (await rig.chat(max_tokens=2)).status == 200
        (backend,) = (await rig.status())["backends"]
        assert (backend["starts"], len(rig.app.deaths.quarantine)) == (1, 0)


async def test_a_request_that_the_engine_lost_is_given_up(rig, monkeypatch) -> None:
    """Class E: no reply ever comes, the server is idle and healthy, the socket is open for ever."""
    monkeypatch.setattr(backends, "LOST_S", 0.3)
    rig.engine.queue.append(Behaviour(never=True))
    asked = ask(rig, {"prompt": [1] * 20, "max_tokens": 5})
    seen = await rig.engine.arrived()
    held = rig.engine._held
    rig.engine._held = [one for one in held if one is not seen]
    got = await asked
    assert (got.status, got.code) == (504, "upstream_timeout")
    assert "has lost the request" in got.error["message"]
    rig.engine._held.append(seen)
    rig.engine._held[-1].abort.set()
    await rig.until(lambda: rig.reserved == 0, 5)
    assert rig.app.fleet.any_ready
    assert len(rig.app.deaths.quarantine) == 0


def test_the_folder_of_reports_is_a_path_in_the_policy() -> None:
    from gateway.policy.schema import Observe

    assert Observe(crash_reports=Path("/tmp/x")).crash_reports == Path("/tmp/x")
    assert Observe().crash_reports is None
