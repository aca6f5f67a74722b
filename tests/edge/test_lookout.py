"""Looks at a live gate: what waits and for what, tokens counted once, and what /status and /history
say of it."""

from __future__ import annotations

import asyncio
import csv
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from gateway.core.model import Ask, RequestId, Ticket
from gateway.edge import lookout
from gateway.edge.lookout import local_server
from tests.edge.rig import TEXT
from tests.fakes.behaviour import Behaviour

if TYPE_CHECKING:
    from gateway.observe.looks import ServerLook


def look(rig) -> ServerLook:
    (server,) = rig.app.lookout.take((), None).servers
    return server


def ask(rig, tokens: int = 5, prompt: int = 20, **fields) -> asyncio.Future:
    body = {"prompt": [1] * prompt, "max_tokens": tokens, "stream": True, **fields}
    return asyncio.ensure_future(rig.post(TEXT, body))


async def test_at_rest(rig) -> None:
    await rig.until(lambda: rig.app.fleet.backends["gpu0"].said)
    found = look(rig)
    assert (found.server, found.state, found.deaths) == ("gpu0", "ready", 0)
    assert (found.kv_limit, found.engine_pool) == (2026, 2048)
    assert (found.running, found.reading, found.writing, found.engine_running) == (0, 0, 0, 0)
    assert (found.engine_retracted, found.stream_tok_s) == (0, None)
    assert found.engine_age_s is not None


@pytest.mark.parametrize(
    ("policy", "second", "lack"),
    [
        ({}, {"tokens": 1_000}, "kv"),
        ({"backend": {"slots": 1}}, {}, "slots"),
        ({"backend": {"prefill_tokens": 600}}, {"prompt": 700}, "prefill"),
        ({"clients": [{"name": "anyone", "max_inflight": 1}]}, {}, "client"),
    ],
)
async def test_what_a_waiting_request_lacks(start, policy, second, lack) -> None:
    async with start(policy) as rig:
        done = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=2, hold=done))
        first = ask(rig, 1_200)
        await rig.until(lambda: rig.app.reaper.flights(rig.app.fleet.backends["gpu0"]))
        waiting = ask(rig, **second)
        await rig.queued()
        found = look(rig)
        lacks = {
            name: getattr(found, f"waits_{name}")
            for name in ("kv", "prefill", "slots", "client", "turn")
        }
        assert lacks == {**dict.fromkeys(lacks, 0), lack: 1}
        assert (found.running, found.reading, found.writing) == (1, 1, 0)
        assert found.prefill_tokens == 20
        assert found.reading_oldest_s >= 0
        assert found.waiting_client == ("anyone" if lack == "client" else None)
        assert found.waits_prefill_tokens == (700 if lack == "prefill" else 0)
        done.set()
        assert [one.status for one in await asyncio.gather(first, waiting)] == [200, 200]


async def test_every_token_is_counted_once(rig) -> None:
    """Seen half-way, at the end, and after it: one stream of 9 tokens, one that is not streamed."""
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=9, hold=hold, hold_at=5))
    counted = [look(rig).generated_tokens]
    asked = ask(rig, 9)
    backend = rig.app.fleet.backends["gpu0"]
    await rig.until(lambda: any(f.lease.generated >= 4 for f in rig.app.reaper.flights(backend)))
    counted.append(look(rig).generated_tokens)
    counted.append(look(rig).generated_tokens)
    hold.set()
    assert (await asked).status == 200
    await rig.until(lambda: rig.records)
    counted.append(look(rig).generated_tokens)
    rig.engine.queue.append(Behaviour(tokens=7))
    assert (await ask(rig, 7, stream=False)).status == 200
    await rig.until(lambda: len(rig.records) == 2)
    counted += [look(rig).generated_tokens, look(rig).generated_tokens]
    assert counted[0] == counted[2] == counted[-1] == 0
    assert 4 <= counted[1] < 9
    assert sum(counted) == 16 == sum(record["output_tokens"] for record in rig.records)
    assert not rig.app.lookout._seen
    assert not rig.app.lookout._over


async def test_a_client_that_left_is_counted_once_too(rig) -> None:
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=9, hold=hold, hold_at=5))
    backend = rig.app.fleet.backends["gpu0"]
    asked = ask(rig, 9)
    await rig.until(lambda: any(f.lease.generated >= 4 for f in rig.app.reaper.flights(backend)))
    seen = look(rig).generated_tokens
    asked.cancel()
    await rig.until(lambda: rig.records)
    hold.set()
    await rig.at_rest()
    assert seen >= 4
    assert seen + look(rig).generated_tokens <= 9
    assert not rig.app.lookout._seen


async def test_the_speed_of_streams_that_wrote_all_the_time(rig) -> None:
    rig.engine.queue.append(Behaviour(tokens=400, gap_s=0.01))
    asked = ask(rig, 400)
    await rig.until(lambda: look(rig).stream_tok_s is not None)
    first = look(rig)
    assert first.writing == 1
    await rig.until(lambda: (look(rig).stream_tok_s or 0) > 0)
    asked.cancel()


async def test_in_the_shadow_nobody_waits_here(start) -> None:
    """What would wait does run: the engine's own numbers stand for it."""
    async with start({"admission": "shadow"}) as rig:
        done = asyncio.Event()
        rig.engine.queue += [Behaviour(tokens=2, hold=done), Behaviour(tokens=2, hold=done)]
        both = [ask(rig, 1_200), ask(rig, 1_200)]
        await rig.queued()
        await rig.until(lambda: rig.app.fleet.backends["gpu0"].loads.running == 2)
        found = look(rig)
        assert (found.running, found.engine_running, found.waits_kv) == (2, 2, 0)
        assert (found.kv_reserved, found.reading, found.writing) == (0, 0, 0)
        done.set()
        await asyncio.gather(*both)


async def test_a_dead_server_says_nothing(rig) -> None:
    await rig.engine.die()
    await rig.until(lambda: not rig.app.fleet.any_ready, 5)
    found = look(rig)
    assert found.state in {"down", "connecting"}
    assert (found.engine_running, found.engine_used) == (None, None)


@pytest.mark.parametrize(
    ("urls", "local"),
    [
        (["http://127.0.0.1:30000"], "0"),
        (["http://localhost:30000", "http://10.0.0.7:30000"], "0"),
        (["http://10.0.0.7:30000"], None),
        (["http://127.0.0.1:30000", "http://[::1]:30001"], None),
    ],
)
def test_cards_belong_to_the_only_server_of_this_machine(urls, local) -> None:
    fleet = [SimpleNamespace(name=str(index), url=url) for index, url in enumerate(urls)]
    assert local_server(fleet) == local


async def test_status_and_history(start, tmp_path) -> None:
    async with start({"observe": {"collect": str(tmp_path / "evidence")}}) as rig:
        for _ in range(5):
            rig.app.collector.look()
        verdict = (await rig.status())["verdict"]
        assert (verdict["class"], verdict["server"]) == ("calm", "gpu0")
        assert verdict["sentence"].keys() == verdict["change"].keys() == {"en", "zh"}
        got = await rig.control("/history")
        assert got.headers["content-type"].startswith("application/json")
        document = got.json()
        assert document["interval_s"] == 5.0
        last = document["minutes"][-1]
        assert last["servers"][0]["name"] == "gpu0"
        assert last["servers"][0]["kv"] == {"reserved": 0, "used": 0, "limit": 2026}
        assert (await rig.control("/history?minutes=0")).json()["minutes"] == []
        many = (await rig.control("/history?minutes=99999999999")).json()["minutes"]
        assert len(many) == len(document["minutes"])
        for nonsense in ("-1", "+1", "1.5", "ten", "", "%D9%A3", "1e3", "9" * 400):
            got = await rig.control(f"/history?minutes={nonsense}")
            assert (got.status, b"a whole number" in got.body) == (400, True), nonsense
    with (tmp_path / "evidence" / "servers.csv").open(newline="") as file:
        assert {row["server"] for row in csv.DictReader(file)} == {"gpu0"}
    assert json.loads((tmp_path / "evidence" / "latest.json").read_text())["gate"]["cards"] is None


async def test_a_verdict_waits_until_enough_was_seen(rig) -> None:
    assert (await rig.status())["verdict"] is None


async def test_one_that_waits_for_word_of_a_server_lacks_nothing_on_any(rig, monkeypatch) -> None:
    """Nor is it taken for one more of those before it whose lack was looked at."""
    monkeypatch.setattr(lookout, "ASKED", 1)
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
    full = {"prompt": [1] * 20, "max_tokens": 5000, "stream": True}
    asked = [asyncio.ensure_future(rig.post(TEXT, full)) for _ in range(2)]
    await rig.queued(1)
    rule = next(iter(rig.app.gate.core.books.flows.values())).rule
    ticket = Ticket(RequestId("aside"), rule, Ask(()), ())
    rig.app.gate.attend(ticket)
    monkeypatch.setattr(lookout, "_lacks", lambda *_: {"gpu0": "prefill"})
    assert rig.app.lookout._waits(rig.app.gate.now())["gpu0"].prefill == 1
    rig.app.gate.leave(ticket.id)
    hold.set()
    await asyncio.gather(*asked)
