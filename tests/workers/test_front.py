"""The control plane for all, before workers that say what a test writes down."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import structlog
from aiohttp import web

from gateway.edge import ids
from gateway.policy.load import load_policy
from gateway.reload import Reload
from gateway.workers.asking import Asking
from gateway.workers.crew import Crew, Hand
from gateway.workers.front import Front
from gateway.workers.order import control_socket
from gateway.workers.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

READY = "/readyz"


class Process:
    """What the crew knows of one."""

    pid = 4711
    returncode: int | None = None

    def kill(self) -> None:
        self.returncode = -signal.SIGKILL


class Worker:
    """One control plane; answers are by path, no answer is a 404."""

    def __init__(self, folder: Path, number: int) -> None:
        self.answers: dict[str, tuple[int, Any]] = {READY: (200, {}), "/healthz": (200, {})}
        self.asked: list[str] = []
        self.silent = False
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        self.path = control_socket(folder, number)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path_qs}")
        if self.silent:
            await asyncio.Event().wait()
        status, body = self.answers.get(request.path, (404, {}))
        headers = {"x-from": self.path.name, ids.NAME: "the-worker-s"}
        return web.json_response(body, status=status, headers=headers)


class Front2:
    """Two of them, and what stands before them."""

    def __init__(
        self, crew: Crew, workers: list[Worker], url: str, asking: Asking, reload: Reload
    ) -> None:
        self.crew, self.workers, self.url = crew, workers, url
        self.asking, self.reload = asking, reload

    async def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as http,
            http.request(method, self.url + path, headers=headers) as answer,
        ):
            return answer.status, await answer.text()


@asynccontextmanager
async def front(folder: Path) -> AsyncIterator[Front2]:
    log = structlog.get_logger()
    crew = Crew(2, cast("Any", None), log, heard=lambda: None, lost=lambda _: None)
    crew.hands = [Hand(n, cast("Any", Process()), 1, up=True, ready=True) for n in (0, 1)]
    workers = [Worker(folder, number) for number in (0, 1)]
    for worker in workers:
        await worker.runner.setup()
        await web.UnixSite(worker.runner, str(worker.path)).start()
    asking = Asking(folder, 2)
    reload = Reload(None, load_policy(backends=("http://b:1",), env={}), cast("Any", None), log)

    async def good(_: str) -> tuple[bool, dict[str, Any]]:
        return True, {"reloaded": True, "changed": ["limits.max_n"]}

    reload.now = good  # type: ignore[method-assign]
    app = Front(crew, asking, reload).app()
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    ids.on_all_of(runner)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        yield Front2(crew, workers, f"http://127.0.0.1:{port}", asking, reload)
    finally:
        await asking.close()
        for one in (runner, *(worker.runner for worker in workers)):
            await one.cleanup()


async def test_one_ready_worker_is_enough_but_not_before_all_that_listen_were_ready(
    tmp_path,
) -> None:
    async with front(tmp_path) as two:
        assert await two.ask(READY) == (200, "ready\n")
        two.workers[0].answers[READY] = (503, {})
        assert (await two.ask(READY))[0] == 200
        two.workers[1].answers[READY] = (503, {})
        assert await two.ask(READY) == (503, "waiting for a server\n")
        two.workers[1].answers[READY] = (200, {})
        # At its first start it takes connections and has met no server: they would be refused.
        two.crew.hands[0].ready = False
        assert (await two.ask(READY))[0] == 503
        # Started anew it takes none before it can serve them.
        two.crew.hands[0].starts = 2
        assert (await two.ask(READY))[0] == 200
        two.crew.drain()
        assert await two.ask(READY) == (503, "draining\n")
        assert await two.ask("/healthz") == (200, "ok\n")


async def test_a_reload_that_one_worker_refuses_is_told(tmp_path) -> None:
    async with front(tmp_path) as two:
        for worker in two.workers:
            worker.answers["/reload"] = (200, {"reloaded": True})
        status, text = await two.ask("/reload", "POST")
        assert (status, json.loads(text)["reloaded"]) == (200, True)
        two.workers[1].answers["/reload"] = (422, {"reloaded": False, "message": "too early"})
        status, text = await two.ask("/reload", "POST")
        told = json.loads(text)
        assert (status, told["reloaded"]) == (422, False)
        assert told["changed"] == ["limits.max_n"]
        assert told["workers"] == [
            {"worker": 0, "reloaded": True},
            {"worker": 1, "reloaded": False, "message": "too early"},
        ]


async def test_a_reload_goes_on_where_whoever_asked_for_it_hangs_up(tmp_path) -> None:
    async with front(tmp_path) as two:
        for worker in two.workers:
            worker.answers["/reload"] = (200, {"reloaded": True})
        begun, go = asyncio.Event(), asyncio.Event()

        async def slow(_: str) -> tuple[bool, dict[str, Any]]:
            begun.set()
            await go.wait()
            return True, {}

        two.reload.now = slow  # type: ignore[method-assign]
        asked = asyncio.ensure_future(two.ask("/reload", "POST"))
        await begun.wait()
        asked.cancel()
        await asyncio.wait([asked])
        await two.ask("/healthz")  # by now the server has seen that the other has left
        go.set()
        async with asyncio.timeout(5):
            while any("POST /reload" not in worker.asked for worker in two.workers):
                await asyncio.sleep(0.01)


async def test_another_sites_page_may_change_nothing(tmp_path) -> None:
    async with front(tmp_path) as two:
        for path in ("/drain", "/reload"):
            status, _ = await two.ask(path, "POST", **{"sec-fetch-site": "cross-site"})
            assert status == 403
            assert (await two.ask(path))[0] == 405
        assert not two.crew.draining
        assert [ask for worker in two.workers for ask in worker.asked] == []


async def test_a_page_that_made_its_name_mean_this_machine_reads_nothing(tmp_path) -> None:
    async with front(tmp_path) as two:
        for path in ("/status", "/", "/metrics", "/healthz"):
            assert (await two.ask(path, host="evil.example"))[0] == 403
        assert [ask for worker in two.workers for ask in worker.asked] == []
        assert (await two.ask("/healthz", host="localhost"))[0] == 200


async def test_what_is_one_workers_is_asked_of_the_one_that_was_chosen(tmp_path) -> None:
    async with front(tmp_path) as two:
        two.workers[1].answers["/history"] = (200, {"minutes": 3})
        assert await two.ask("/history?worker=1&minutes=3") == (200, '{"minutes": 3}')
        assert two.workers[1].asked == ["GET /history?worker=1&minutes=3"]
        assert await two.ask("/history?worker=1", "HEAD") == (200, "")
        assert (await two.ask("/history"))[0] == 404  # as worker 0 says
        for wrong in ("2", "-1", "x", "", "%C2%B2", "9" * 30):
            status, text = await two.ask(f"/trend?worker={wrong}")
            assert (status, text) == (400, "worker is a number from 0 to 1: /trend?worker=0\n")
        await two.workers[0].runner.cleanup()
        status, text = await two.ask("/")
        assert (status, text) == (503, "worker 0 does not answer; /status tells about all\n")


async def test_a_worker_that_is_not_there_is_told_and_costs_the_others_nothing(tmp_path) -> None:
    async with front(tmp_path) as two:
        for worker in two.workers:
            worker.answers["/drain"] = (200, {"state": "draining", "running": 3})
        two.workers[1].path.unlink()
        two.crew.hands[0].starts = 4
        _, text = await two.ask("/status")
        told = json.loads(text)["workers"]
        assert [(one["worker"], one["state"]) for one in told] == [
            (0, "does not answer"),  # it says nothing of its status
            (1, "does not answer"),
        ]
        _, metrics = await two.ask("/metrics")
        assert 'kvgate_process_starts_total{worker="0"} 4' in metrics
        _, text = await two.ask("/drain", "POST")
        assert json.loads(text) == {
            "state": "draining",
            "running": 3,
            "workers": [
                {"worker": 0, "state": "draining", "running": 3},
                {"worker": 1, "error": "does not answer"},
            ],
        }
        assert two.crew.draining


async def test_a_worker_that_hangs_is_ended_and_one_that_answers_is_not(
    tmp_path, monkeypatch
) -> None:
    async with front(tmp_path) as two:
        first, second = (cast("Process", hand.process) for hand in two.crew.hands)
        two.workers[1].silent = True
        log = structlog.get_logger()
        dog = Watchdog(two.crew, two.asking, log, every_s=0.05, silent_s=0.2)
        running = asyncio.ensure_future(dog.run())
        async with asyncio.timeout(15):
            while second.returncode is None:
                await asyncio.sleep(0.01)
        running.cancel()
        assert first.returncode is None
        assert len(two.workers[0].asked) >= 2


async def test_each_answer_has_one_id_and_that_is_not_the_worker_s(tmp_path) -> None:
    async with front(tmp_path) as two, aiohttp.ClientSession() as http:
        two.workers[0].answers["/trend"] = (200, {})
        for path in ("/healthz", "/trend", "/nowhere", "/trend?worker=9"):
            async with http.get(two.url + path, headers={ids.NAME: "mine"}) as answer:
                assert answer.headers.getall(ids.NAME) == ["mine"], path
            async with http.get(two.url + path) as answer:
                (drawn,) = answer.headers.getall(ids.NAME)
                assert len(drawn) == 28, path
