"""The control plane: state for people and machines, on a listener of its own.

It never waits behind the queue: every answer is made from memory, in one step. What changes
something is refused to pages of other sites that an operator's browser has open.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from gateway.observe.minutes import DAY
from gateway.page.events import Events
from gateway.page.files import Files
from gateway.page.guard import own_names_only, own_site_only
from gateway.page.now import now
from gateway.page.trend import Trend
from gateway.tasks import spawn
from gateway.version import VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.core.model import PoolView, QuotaView, View
    from gateway.drain import Drain
    from gateway.edge.backends import Backend, Fleet
    from gateway.edge.common import Common
    from gateway.edge.leases import Leases
    from gateway.edge.reaper import Reaper
    from gateway.gate import Gate
    from gateway.observe.collector import Collector
    from gateway.observe.journal import Journal
    from gateway.reload import Reload
    from gateway.seat import Seat

SERVICE_UNAVAILABLE = 503
UNPROCESSABLE = 422

_NUMBER = re.compile(r"[0-9]{1,18}")
"""What a script may come to by a sum: larger than all minutes there are is well meant, too."""


class ControlPlane:
    """Routes: the page at /, what lies beside it at /page/, /events and /trend for it; /status,
    /history, /metrics, /healthz, /readyz, POST /drain, POST /reload."""

    def __init__(
        self,
        *,
        gate: Gate,
        fleet: Fleet,
        reaper: Reaper,
        journal: Journal,
        draining: Drain,
        collector: Collector,
        reload: Reload,
        quotas: Callable[[], list[QuotaView]],
        shadow: bool,
        leases: Leases | None = None,
        common: Common | None = None,
        seat: Seat | None = None,
    ) -> None:
        """`shadow`: whether the policy says `admission: shadow`."""
        self._gate = gate
        self._fleet = fleet
        self._reaper = reaper
        self._journal = journal
        self._draining = draining
        self._collector = collector
        self._reload = reload
        self._quotas = quotas
        self._shadow = shadow
        self._leases = leases
        self._common = common
        self._seat = seat
        self._trend = Trend(gate, journal.recent)
        self._files = Files()
        self._events = Events(self._event)

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[own_names_only(self._reload.hosts), own_site_only])
        app.router.add_get("/", self._files.index)
        app.router.add_get("/page/{name}", self._files.beside)
        app.router.add_get("/events", self._events.handle)
        app.router.add_get("/trend", self._trend_rows)
        app.router.add_get("/status", self._status)
        app.router.add_get("/history", self._history)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_post("/drain", self._drain)
        app.router.add_post("/reload", self._read_again)
        app.cleanup_ctx.append(self._life)
        app.on_shutdown.append(self._end_pages)
        return app

    @property
    def ready(self) -> bool:
        """Whether a request sent now could be admitted."""
        return self._fleet.any_ready and not self._draining.begun

    def status(self) -> dict[str, Any]:
        """The document of /status."""
        view = self._gate.view()
        recently = self._journal.recent.minute()
        return {
            "version": VERSION,
            "state": self.state,
            "now": now(
                self._gate,
                view,
                refused=recently["refused_for_load"],
                ready=self._fleet.any_ready,
                draining=self._draining.begun,
            ),
            "recently": {**recently, **self._trend.speed(), "usual": self._trend.usual()},
            "backends": [self._backend(backend, view) for backend in self._fleet],
            "queue": {
                "requests": view.queue.requests,
                "tokens": view.queue.tokens,
                "bytes": view.queue.bytes,
                "aside": view.queue.aside,
                "oldest_s": round(view.queue.oldest_s, 3),
            },
            "clients": [
                {
                    "name": client.name,
                    "held_tokens": client.held_tokens,
                    "inflight": client.inflight,
                    "waiting": client.waiting,
                }
                for client in view.clients
            ],
            "quotas": [_quota(one) for one in self._quotas()],
            "totals": self._journal.totals.to_dict(),
            "refusals": self._journal.recent.refusals(),
            "abandoned": self._reaper.dying,
            "verdict": self._collector.verdict(),
            "policy": self._reload.status(),
            **({"shadow": self._journal.shadow.to_dict()} if self._shadow else {}),
            **({} if self._common is None else {"common": self._common.status()}),
            **({} if self._seat is None else {"worker": self._seat.to_dict()}),
        }

    @property
    def state(self) -> str:
        """Of the gate as a whole, in words."""
        if self._draining.begun:
            return "draining"
        return "ready" if self._fleet.any_ready else "waiting for a server"

    def _backend(self, backend: Backend, view: View) -> dict[str, Any]:
        pools = [pool for pool in view.pools if pool.pool in backend.pools]
        watch = backend.watch.snapshot() if backend.watch is not None else None
        facts, ledgers = backend.facts, self._gate.core.books.pools
        return {
            "name": backend.name,
            "url": backend.url,
            "state": "starting" if watch is None else watch.state.value,
            "ready": backend.ready,
            "leaving": backend.leaving,
            "error": None if watch is None else watch.error,
            "on_trial": backend.on_trial,
            "cooling": self._fleet.cooling(backend),
            "deaths": backend.deaths,
            "held": backend.held,
            "engine_version": None if facts is None else facts.version_text,
            "models": [] if facts is None else list(facts.models),
            "context_tokens": None if facts is None else facts.context,
            "pool_tokens": None if facts is None else facts.pool_tokens,
            "starts": 0 if watch is None else watch.starts,
            "ledgers": _ledgers(pools),
            "free_tokens": sum(pool.kv.limit - pool.kv.reserved for pool in pools),
            "forecast_tokens": _forecast(pools),
            "worst_tokens": sum(ledgers[pool.pool].ledger.worst for pool in pools),
            "lingering_tokens": sum(pool.lingering for pool in pools),
            "compiling": sum(pool.compiling for pool in pools),
            "drift_tokens": sum(backend.drift.values()) if backend.drift else None,
            "ranks": [
                {
                    "rank": pool.pool.rank,
                    **_ledgers([pool]),
                    "drift_tokens": backend.drift.get(pool.pool.rank),
                }
                for pool in pools
            ],
            "engine": _engine(backend),
            "elsewhere": self._elsewhere(backend),
            **({"lease": self._leases.status(backend)} if self._leases is not None else {}),
            "loads_stale": False if watch is None else watch.metrics_stale,
            "counting": _counting(backend),
            "notes": list(self._fleet.notes.get(backend.name, ())),
        }

    def _elsewhere(self, backend: Backend) -> dict[str, int]:
        """What runs there that was not asked for here; it is part of what the ledgers reserve."""
        charges = [self._gate.occupied(pool) for pool in backend.pools]
        return {"requests": sum(c[1] for c in charges), "tokens": sum(c[0] for c in charges)}

    async def _life(self, _: web.Application) -> AsyncIterator[None]:
        looking = spawn(self._trend.run(), "trend")
        yield
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking

    async def _end_pages(self, _: web.Application) -> None:
        await self._events.close()

    def _event(self) -> bytes:
        """What an open page is given: /status, and the newest row of /trend."""
        document = {"status": self.status(), "row": self._trend.last()}
        return b"data: " + orjson.dumps(document) + b"\n\n"

    async def _trend_rows(self, _: web.Request) -> web.Response:
        return web.json_response(self._trend.to_dict())

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self.status())

    async def _history(self, request: web.Request) -> web.Response:
        asked = request.query.get("minutes")
        if asked is not None and not _NUMBER.fullmatch(asked):
            words = f"minutes is a whole number from 0 on, at most {DAY} are kept: /history?minutes=60\n"
            raise web.HTTPBadRequest(text=words)
        most = DAY if asked is None else min(int(asked), DAY)
        body = self._collector.minutes.history(most)
        return web.Response(body=body, content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        body, content_type = self._journal.metrics.render()
        return web.Response(body=body, headers={"content-type": content_type})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.ready:
            return web.Response(text="ready\n")
        return web.Response(status=SERVICE_UNAVAILABLE, text=f"{self.state}\n")

    async def _drain(self, _request: web.Request) -> web.Response:
        _ = self._draining.begin()
        return web.json_response({"state": "draining", "running": self._gate.holding})

    async def _read_again(self, _: web.Request) -> web.Response:
        good, answer = await self._reload.now("POST /reload")
        return web.json_response(answer, status=200 if good else UNPROCESSABLE)


def _quota(one: QuotaView) -> dict[str, Any]:
    """How one client stands with its tokens."""
    left_s = None if one.left_s is None else round(one.left_s, 1)
    return {
        "client": one.client,
        "used_tokens": one.used,
        "under_way_tokens": one.under_way,
        "elsewhere_tokens": one.elsewhere,
        "quota_tokens": one.tokens,
        "window_s": one.window_s,
        "window_left_s": left_s,
    }


def _forecast(pools: list[PoolView]) -> int | None:
    """KV tokens the server is forecast to come to; None where nothing is forecast."""
    forecast = [pool.peak for pool in pools if pool.limits.forecast]
    return sum(forecast) if forecast else None


def _ledgers(pools: list[PoolView]) -> dict[str, Any]:
    """The ledgers of one server, its ranks added up."""
    return {
        name: {
            "limit": sum(getattr(pool, name).limit for pool in pools),
            "reserved": sum(getattr(pool, name).reserved for pool in pools),
            "used": sum(getattr(pool, name).used for pool in pools),
        }
        for name in ("kv", "prefill", "slots")
    }


def _engine(backend: Backend) -> dict[str, Any] | None:
    """What the engine itself said last."""
    loads = backend.loads
    if loads is None:
        return None
    return {"running": loads.running, "waiting": loads.waiting, "used_tokens": loads.used}


def _counting(backend: Backend) -> dict[str, Any] | None:
    """How prompts are counted for it, and how well that went."""
    counter = backend.counter
    if counter is None:
        return None
    accuracy = counter.accuracy
    return {
        "under_way": counter.under_way,
        "requests": accuracy.requests,
        "exact": accuracy.exact,
        "mean_error": round(accuracy.mean_error, 3),
        "worst_under": accuracy.worst_under,
        "worst_over": accuracy.worst_over,
        "correction": round(accuracy.correction, 4),
        "fallbacks": dict(counter.fallbacks),
    }
