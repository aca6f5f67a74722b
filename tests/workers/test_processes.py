"""Two workers on one port, as processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.amount import NOTHING
from gateway.edge.ids import NAME
from tests.fakes.behaviour import Behaviour
from tests.lease.fleet import TTL_S, settle, table_of
from tests.lease.server import RedisServer, needs_server
from tests.workers.gate import LIMIT, POOL, TEXT, gate, is_there


async def test_two_workers_serve_one_port_share_one_pool_and_drain_together(tmp_path) -> None:
    """One start for all of it: that takes longer than the rest."""
    records = {"observe": {"records": "records.jsonl"}, "queue": {"max_requests": 6}}
    async with gate(tmp_path, control="127.1:0", **records) as running:
        (one,) = [line for line in running.log if line["event"] == "control_open"]
        assert one["control"] == running.control, "the supervisor's, and no worker's"
        assert (await running.get("/healthz"), (await running.get("/readyz"))[0]) == (
            (200, "ok\n"),
            200,
        )
        hold = asyncio.Event()
        running.engine.default = Behaviour(hold=hold, hold_at=1)
        await running.until(running.settled)
        asked = running.asks(30, 500, 400)  # ten of 901 tokens fit, six may wait

        assert running.folder.stat().st_mode & 0o777 == 0o700, "whoever enters may grant"

        async def full() -> bool:
            table = await running.table()
            assert table.shares.kv <= LIMIT, "the sum of shares is above the budget"
            assert len(table.entries) == 2
            ledger = (await running.status())["backends"][0]["ledgers"]["kv"]
            assert ledger["reserved"] <= LIMIT
            return bool(ledger["reserved"] > LIMIT - 901)

        await running.until(full)
        status = await running.status()
        parts = [one["status"] for one in status["workers"]]
        assert [one["worker"] for one in status["workers"]] == [0, 1]
        assert status["state"] == "ready"
        assert min(part["clients"][0]["inflight"] for part in parts) >= 1, "one of them got nothing"
        assert status["clients"][0]["inflight"] == len(running.engine.seen)
        await running.until(lambda: sum(one.done() for one in asked) >= 30 - 16)
        assert (await running.status())["queue"]["requests"] <= 6, "in all, not in each"
        assert status["totals"]["admitted"] == sum(part["totals"]["admitted"] for part in parts)
        assert [part["worker"] for part in parts] == [
            {"number": 0, "of": 2},
            {"number": 1, "of": 2},
        ]
        assert status["backends"][0]["lease"]["budget"]["kv"] == LIMIT
        await merged_metrics(running, len(running.engine.seen))
        for number in (0, 1):
            code, page = await running.get(f"/?worker={number}")
            assert (code, page[:15]) == (200, "<!doctype html>")
        async with running.http.get(running.control + "/nowhere", headers={NAME: "m"}) as answer:
            assert (answer.status, answer.headers[NAME]) == (404, "m")
        assert await running.get("/trend?worker=2") == (
            400,
            "worker is a number from 0 to 1: /trend?worker=0\n",
        )
        hold.set()
        answers = await asyncio.gather(*asked)
        assert {code for code, _ in answers} == {200, 429}
        assert running.engine.peak <= LIMIT

        hold = asyncio.Event()
        running.engine.default = Behaviour(tokens=9, hold=hold, hold_at=1)
        served = len(running.engine.seen)
        late = running.asks(4, 50, 9)
        await running.until(lambda: len(running.engine.seen) == served + 4)
        ending = asyncio.ensure_future(running.end())

        async def drains() -> bool:
            code, state = await running.get("/readyz")
            return (code, state) == (503, "draining\n")

        await running.until(drains)
        hold.set()
        for code, body in await asyncio.gather(*late):
            assert code == 200
            assert b"[DONE]" in body
        assert await ending == 0
    for event in ("drained", "request", "listening"):
        assert {line["worker"] for line in running.log if line["event"] == event} == {0, 1}
    written = [
        [json.loads(line)["id"] for line in path.read_text().splitlines()]
        for path in (tmp_path / "records.w0.jsonl", tmp_path / "records.w1.jsonl")
    ]
    assert min(map(len, written)) > 0
    assert len({one for ids in written for one in ids}) == sum(map(len, written)) == 34


async def merged_metrics(running, inflight: int) -> None:
    _, text = await running.get("/metrics")
    heads = [line.split()[:3] for line in text.splitlines() if line.startswith("#")]
    assert len(heads) == len({tuple(head) for head in heads}), "one HELP and TYPE for each family"
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert {s.labels["worker"] for one in families.values() for s in one.samples} == {"0", "1"}
    of_clients = families["kvgate_client_inflight_requests"].samples
    assert sum(sample.value for sample in of_clients) == inflight
    assert [s.value for s in families["kvgate_process_alive"].samples] == [1, 1]


async def test_before_a_busy_engine_they_do_not_promise_its_pool_twice(tmp_path) -> None:
    """Somebody else's request has half of it when they come, and gives it back."""
    hold, strangers = asyncio.Event(), []

    async def stranger(engine: Any, http: Any) -> None:
        engine.queue.append(Behaviour(tokens=4, hold=hold, hold_at=2))
        body = {"prompt": [1] * 5000, "max_tokens": 4, "rid": "a-stranger-s"}
        strangers.append(asyncio.ensure_future(http.post(engine.url + TEXT, json=body)))
        await engine.arrived()

    async with gate(tmp_path, before=stranger) as running:
        await running.until(running.settled)
        left = (await running.table()).unclaimed
        assert left is not None
        assert 5000 < left.kv <= 5004 + POOL // 8
        asked = running.asks(10, 800, 100)
        await running.until(lambda: len(running.engine.seen) >= 4)
        assert running.engine.peak <= LIMIT
        large = asyncio.ensure_future(running.ask(8000, 1000))
        hold.set()
        (await strangers[0]).close()
        assert {code for code, _ in await asyncio.gather(*asked, large)} == {200}
        assert (await running.table()).unclaimed == NOTHING
        assert running.engine.peak <= LIMIT


@pytest.mark.slow  # its lease must be over
async def test_a_killed_worker_is_started_anew_and_its_share_comes_back(tmp_path) -> None:
    async with gate(tmp_path) as running:
        running.engine.default = Behaviour(gap_s=0.01)
        warm = running.asks(20, 500, 400)
        await running.until(lambda: len(running.engine.seen) >= 6)
        before = await running.pids()
        os.kill(before[0], signal.SIGKILL)
        await asyncio.gather(*warm, return_exceptions=True)  # half of them are cut

        async def anew() -> bool:
            first, second = (await running.status())["workers"]
            assert second["pid"] == before[1]
            return bool(first["starts"] == 2 and first["state"] == "ready")

        # Whoever asks meanwhile meets the other one: the new one listens once it can serve.
        while not await anew():
            assert (await running.ask(100, 10))[0] == 200
        ended = next(line for line in running.log if line["event"] == "worker_ended")
        assert (ended["worker"], ended["code"]) == (0, -signal.SIGKILL)

        async def settled() -> bool:
            table = await running.table()
            assert table.shares.kv <= LIMIT
            return len(table.entries) == 2

        await running.until(settled, 30)
        # All of the pool is needed for this: the dead one's share is there again.
        assert (await running.ask(8000, 1800))[0] == 200
        assert running.engine.peak <= LIMIT


@pytest.mark.slow
async def test_workers_end_with_their_supervisor_and_the_port_is_free(tmp_path) -> None:
    async with gate(tmp_path) as running:
        hold = asyncio.Event()
        running.engine.default = Behaviour(tokens=9, hold=hold, hold_at=1)
        asked = running.asks(4, 50, 9)
        await running.engine.arrived(4)
        pids = await running.pids()
        await running.end(signal.SIGKILL)
        await running.until(lambda: not any(map(is_there, pids)))
        for code, body in await asyncio.gather(*asked):  # an error in the stream, not a reset
            assert code == 200
            assert b"error" in body
            assert b"[DONE]" not in body
        await running.until(lambda: running.engine.use()[0].running == 0)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            host, port = running.url.removeprefix("http://").split(":")
            probe.bind((host, int(port)))
        assert not running.folder.exists()


@pytest.mark.slow
async def test_a_policy_is_read_again_by_all_and_whoever_is_started_anew(tmp_path) -> None:
    async with gate(tmp_path) as running:
        path = tmp_path / "policy.yaml"
        policy = json.loads(path.read_text())
        path.write_text(json.dumps({**policy, "limits": {"max_n": 1}}))
        code, text = await running.get("/reload", "POST")
        told = json.loads(text)
        assert (code, told["reloaded"]) == (200, True)
        assert "listen" not in told["needs_restart"]
        assert [one["reloaded"] for one in told["workers"]] == [True, True]
        path.write_text("limits: {max_n: none}")
        code, text = await running.get("/reload", "POST")
        assert (code, json.loads(text)["reloaded"]) == (422, False)
        path.write_text(json.dumps({**policy, "limits": {"max_n": 1}, "drain_s": 20}))
        running.process.send_signal(signal.SIGHUP)

        def causes() -> set[object]:
            told = [line for line in running.log if line["event"] == "policy_reloaded"]
            return {line.get("worker") for line in told if line["cause"] == "SIGHUP"}

        await running.until(lambda: causes() == {None, 0, 1})
        path.write_text("limits: {max_n: none}")
        await running.get("/reload", "POST")
        # The file has a mistake; the policy in force has not.
        (first, _), starts = await running.pids(), "starts"
        os.kill(first, signal.SIGKILL)

        async def anew() -> bool:
            worker = (await running.status())["workers"][0]
            return bool(worker[starts] == 2 and worker["state"] == "ready")

        await running.until(anew, 30)
        body = {"prompt": "x", "n": 2, "max_tokens": 2}
        for _ in range(12):  # both
            async with running.http.post(running.url + "/v1/completions", json=body) as answer:
                assert answer.status == 400
        assert await running.end(signal.SIGINT) == 0


@pytest.mark.slow
async def test_who_interrupts_again_waits_for_no_worker(tmp_path) -> None:
    """Also where only the supervisor hears it: the first process of a container."""
    async with gate(tmp_path, drain_s=300) as running:
        running.engine.default = Behaviour(tokens=9, hold=asyncio.Event(), hold_at=2)
        asked = asyncio.ensure_future(running.ask(10, 9))
        await running.engine.arrived()
        running.process.send_signal(signal.SIGINT)

        async def draining() -> bool:
            return bool((await running.status())["state"] == "draining")

        await running.until(draining)
        assert not asked.done()
        assert await running.end(signal.SIGINT) == 1
        assert b"draining" in (await asked)[1], "its client is told"


@pytest.mark.slow
async def test_after_post_drain_nobody_is_started_anew(tmp_path) -> None:
    async with gate(tmp_path) as running:
        code, text = await running.get("/drain", "POST")
        assert (code, json.loads(text)["state"]) == (200, "draining")
        assert len(json.loads(text)["workers"]) == 2
        assert (await running.ask(10, 10))[0] == 503
        os.kill((await running.pids())[0], signal.SIGKILL)

        async def gone() -> bool:
            return bool((await running.status())["workers"][0]["state"] == "ended")

        await running.until(gone)
        assert (await running.status())["state"] == "draining"
        assert await running.end() == 1  # one of them did not end as it should


@pytest.mark.slow
async def test_the_share_of_a_killed_worker_comes_back_on_a_server_that_is_never_without_young_requests(
    tmp_path,
) -> None:
    """Its count never comes clear, as the youngest of the other worker's could be the dead one's."""
    async with gate(tmp_path, limits={"release_grace_s": 3}) as running:
        running.engine.default = Behaviour(gap_s=0.05, tokens=20)
        over = asyncio.Event()

        async def again() -> None:
            while not over.is_set():
                with suppress(aiohttp.ClientError):
                    await running.ask(50, 20)

        young = [asyncio.ensure_future(again()) for _ in range(8)]
        await running.until(lambda: len(running.engine.seen) > 8)
        os.kill((await running.pids())[0], signal.SIGKILL)

        async def forgotten() -> bool:
            return "w0.1" not in (await running.table()).entries

        began = asyncio.get_running_loop().time()
        await running.until(forgotten, 10)
        assert asyncio.get_running_loop().time() - began > 2
        over.set()
        await asyncio.gather(*young)


@needs_server
@pytest.mark.slow
async def test_with_a_store_for_several_gates_each_worker_is_one_of_them(tmp_path) -> None:
    with RedisServer(tmp_path) as server:
        await settle(server, "gpu0")
        async with gate(tmp_path, leases={"url": server.url, "ttl_s": TTL_S}) as running:
            asked = running.asks(12, 100, 100)
            assert {code for code, _ in await asyncio.gather(*asked)} == {200}
            assert len((await table_of(server, "gpu0")).entries) == 2
        assert (await table_of(server, "gpu0")).entries == {}
