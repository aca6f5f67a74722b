"""The control plane: state for people and machines, on a listener of its own.

It never waits behind the queue: every answer is made from memory, in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway.version import VERSION

if TYPE_CHECKING:
    from gateway.core.model import PoolView, View
    from gateway.drain import Drain
    from gateway.edge.backends import Backend, Fleet
    from gateway.edge.reaper import Reaper
    from gateway.gate import Gate
    from gateway.observe.journal import Journal

SERVICE_UNAVAILABLE = 503


class ControlPlane:
    """Routes: /status, /metrics, /healthz, /readyz, POST /drain."""

    def __init__(
        self, *, gate: Gate, fleet: Fleet, reaper: Reaper, journal: Journal, draining: Drain
    ) -> None:
        self._gate = gate
        self._fleet = fleet
        self._reaper = reaper
        self._journal = journal
        self._draining = draining

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application()
        app.router.add_get("/status", self._status)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_post("/drain", self._drain)
        return app

    @property
    def ready(self) -> bool:
        """Whether a request sent now could be admitted."""
        return self._fleet.any_ready and not self._draining.begun

    def status(self) -> dict[str, Any]:
        """The document of /status."""
        view = self._gate.view()
        return {
            "version": VERSION,
            "state": self._state(),
            "backends": [self._backend(backend, view) for backend in self._fleet],
            "queue": {
                "requests": view.queue.requests,
                "tokens": view.queue.tokens,
                "bytes": view.queue.bytes,
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
            "totals": self._journal.totals.to_dict(),
            "abandoned": self._reaper.dying,
        }

    def _state(self) -> str:
        if self._draining.begun:
            return "draining"
        return "ready" if self._fleet.any_ready else "waiting for a server"

    def _backend(self, backend: Backend, view: View) -> dict[str, Any]:
        pools = [pool for pool in view.pools if pool.pool in backend.pools]
        watch = backend.watch.snapshot() if backend.watch is not None else None
        facts = backend.facts
        return {
            "name": backend.name,
            "url": backend.url,
            "state": "starting" if watch is None else watch.state.value,
            "ready": backend.ready,
            "error": None if watch is None else watch.error,
            "engine_version": None if facts is None else facts.version_text,
            "models": [] if facts is None else list(facts.models),
            "context_tokens": None if facts is None else facts.context,
            "pool_tokens": None if facts is None else facts.pool_tokens,
            "starts": 0 if watch is None else watch.starts,
            "ledgers": _ledgers(pools),
            "lingering_tokens": sum(pool.lingering for pool in pools),
            "ranks": [{"rank": pool.pool.rank, **_ledgers([pool])} for pool in pools],
            "engine": _engine(backend),
            "loads_stale": False if watch is None else watch.metrics_stale,
            "counting": _counting(backend),
            "notes": list(self._fleet.notes.get(backend.name, ())),
        }

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self.status())

    async def _metrics(self, _: web.Request) -> web.Response:
        body, content_type = self._journal.metrics.render()
        return web.Response(body=body, headers={"content-type": content_type})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.ready:
            return web.Response(text="ready\n")
        return web.Response(status=SERVICE_UNAVAILABLE, text=f"{self._state()}\n")

    async def _drain(self, _: web.Request) -> web.Response:
        self._draining.begin()
        return web.json_response({"state": "draining", "running": self._gate.holding})


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
        "requests": accuracy.requests,
        "exact": accuracy.exact,
        "mean_error": round(accuracy.mean_error, 3),
        "worst_under": accuracy.worst_under,
        "worst_over": accuracy.worst_over,
        "correction": round(accuracy.correction, 4),
        "fallbacks": dict(counter.fallbacks),
    }
