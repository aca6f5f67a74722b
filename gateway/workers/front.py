"""The control plane of all workers together, on the address the policy names.

What adds up is added up; what is asked of all goes to all; the rest (the page, its events, /history) is
one worker's, chosen by `?worker=`, 0 by default. Like that of one gate it never waits behind the queue,
and what changes something is refused to pages of other sites.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiohttp import web

from gateway.edge import ids
from gateway.observe.metrics import CONTENT_TYPE
from gateway.page.guard import own_names_only, own_site_only
from gateway.tasks import spawn
from gateway.version import VERSION
from gateway.workers import exposition, sums
from gateway.workers.asking import NO_ANSWER, RELOAD_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.reload import Reload
    from gateway.workers.asking import Asking, Said
    from gateway.workers.crew import Crew, Hand

OK, SERVICE_UNAVAILABLE, UNPROCESSABLE = 200, 503, 422

PASSED_ON = ("accept", "accept-language", "if-none-match")
"""Headers of a question that a worker's page looks at."""

NOT_PASSED_BACK = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "date", "server", ids.NAME}
)
"""Headers that are those of one connection, or that this server writes itself."""


class Front:
    """See the module."""

    def __init__(self, crew: Crew, asking: Asking, reload: Reload) -> None:
        self._crew = crew
        self._asking = asking
        self._reload = reload

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[own_names_only(self._reload.hosts), own_site_only])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/status", self._status)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/drain", self._drain)
        app.router.add_post("/reload", self._read_again)
        for path in ("/", "/page/{name}", "/events", "/trend", "/history"):
            app.router.add_get(path, self._of_one)
        return app

    async def ready(self) -> bool:
        """Whether a request sent now could be admitted, whichever worker its connection meets.

        One ready worker is enough: who is being started anew takes no connection yet, and one that
        has lost its servers says so itself, in a refusal that is worth another try. Only at the first
        start those that listen and have met no server yet must be waited for.
        """
        if self._crew.draining or any(hand.turns_away for hand in self._crew.hands):
            return False
        return any(said.status == OK for said in await self._all("/readyz"))

    async def status(self) -> dict[str, Any]:
        """The document of /status."""
        ready, said = await asyncio.gather(self.ready(), self._all("/status"))
        documents = {one.number: orjson.loads(one.body) for one in said if one.status == OK}
        together = sums.together(list(documents.values()))
        state = "draining" if self._crew.draining else "ready" if ready else "waiting for a server"
        return {
            "version": VERSION,
            "state": state,
            **together,
            "policy": self._reload.status(),
            "workers": [_worker(hand, documents.get(hand.number)) for hand in self._crew.hands],
        }

    # ---- routes ----------------------------------------------------------------------------------

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if await self.ready():
            return web.Response(text="ready\n")
        state = "draining" if self._crew.draining else "waiting for a server"
        return web.Response(status=SERVICE_UNAVAILABLE, text=f"{state}\n")

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(await self.status())

    async def _metrics(self, _: web.Request) -> web.Response:
        said = await self._all("/metrics")
        texts = ((one.number, one.body.decode()) for one in said if one.status == OK)
        own = own_metrics(self._crew.hands)
        body = exposition.merged(texts) + own
        return web.Response(body=body.encode(), headers={"content-type": CONTENT_TYPE})

    # What was begun is brought to its end, also where whoever asked for it has hung up.

    async def _drain(self, _: web.Request) -> web.Response:
        return await asyncio.shield(spawn(self._drain_all(), "drain all"))

    async def _read_again(self, _: web.Request) -> web.Response:
        return await asyncio.shield(spawn(self._reload_all(), "reload all"))

    async def _drain_all(self) -> web.Response:
        self._crew.drain()  # whoever is started from here on would take work
        said = await self._all("/drain", post=True)
        answers = [_answer(one) for one in said]
        running = sum(int(one.get("running", 0)) for one in answers)
        return web.json_response({"state": "draining", "running": running, "workers": answers})

    async def _reload_all(self) -> web.Response:
        good, answer = await self._reload.now("POST /reload")
        said = await self._all("/reload", post=True, within_s=RELOAD_S)
        good = good and all(one.status == OK for one in said)
        told = {**answer, "reloaded": good, "workers": [_answer(one) for one in said]}
        return web.json_response(told, status=OK if good else UNPROCESSABLE)

    async def _of_one(self, request: web.Request) -> web.StreamResponse:
        number = self._chosen(request)
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        try:
            asked = request.method, request.path_qs, headers
            async with self._asking.stream(number, *asked) as answer:
                response = web.StreamResponse(status=answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in NOT_PASSED_BACK:
                        response.headers.add(name, value)
                await response.prepare(request)
                if request.method != "HEAD":
                    async for piece in answer.content.iter_any():
                        await response.write(piece)
                await response.write_eof()
                return response
        except (aiohttp.ClientConnectorError, FileNotFoundError):
            return web.Response(
                status=SERVICE_UNAVAILABLE,
                text=f"worker {number} {NO_ANSWER}; /status tells about all\n",
            )
        except (aiohttp.ClientError, ConnectionError):  # one of the two ends is gone
            if request.transport is not None:
                request.transport.abort()
            raise

    # ---- inside ----------------------------------------------------------------------------------

    def _chosen(self, request: web.Request) -> int:
        asked, size = request.query.get("worker", "0"), len(self._crew.hands)
        if not asked.isascii() or not asked.isdigit() or int(asked[:9]) >= size:
            text = f"worker is a number from 0 to {size - 1}: {request.path}?worker=0\n"
            raise web.HTTPBadRequest(text=text)
        return int(asked[:9])

    async def _all(self, path: str, *, post: bool = False, within_s: float = 2.0) -> list[Said]:
        """Of those whose control plane is there."""
        numbers: Sequence[int] = [
            hand.number for hand in self._crew.hands if hand.alive and hand.up
        ]
        return await self._asking.all(numbers, path, post=post, within_s=within_s)


def _worker(hand: Hand, status: dict[str, Any] | None) -> dict[str, Any]:
    process = hand.process
    if status is not None:
        state = status["state"]
    elif hand.alive:
        state = NO_ANSWER if hand.up else "starting"
    else:
        state = "ended"
    return {
        "worker": hand.number,
        "pid": process.pid if process is not None and hand.alive else None,
        "starts": hand.starts,
        "state": state,
        "status": status,
    }


def _answer(said: Said) -> dict[str, Any]:
    if said.status == 0:
        return {"worker": said.number, "error": said.body.decode()}
    return {"worker": said.number, **orjson.loads(said.body)}


def own_metrics(hands: Sequence[Hand]) -> str:
    """What only the supervisor knows of its workers."""
    return exposition.gauge(
        "kvgate_process_alive",
        "Whether this worker's process is there and listens.",
        ((hand.number, float(hand.alive and hand.up)) for hand in hands),
    ) + exposition.gauge(
        "kvgate_process_starts_total",
        "Starts of this worker, the first one included.",
        ((hand.number, float(hand.starts)) for hand in hands),
        kind="counter",
    )
