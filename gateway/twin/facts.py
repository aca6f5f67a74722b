"""What SGLang says about itself: models, arguments, load, metrics, health.

Which of them need the scheduler differs by version, and it matters: those hang when the scheduler
is frozen, the others go on saying 200 with old numbers. From 0.5.17 on the load comes from a
snapshot that the scheduler publishes at each prefill, every 15 decode steps and when idle; the
gauges of /metrics move at each prefill and every 40 decode steps.
"""

from __future__ import annotations

import datetime as dt
import secrets
import time
from typing import TYPE_CHECKING, Any

from gateway.twin.jobs import Job
from gateway.twin.wire import empty, json_answer, text

if TYPE_CHECKING:
    from aiohttp import web

    from gateway.twin.server import TwinServer
    from gateway.twin.snapshots import Snapshot

HEALTH_STEP_S = 1.0  # SGLang sleeps a second before it looks for any output
HEALTH_LIMIT_S = 20.0  # SGLANG_HEALTH_CHECK_TIMEOUT
_FROZEN_POLL_S = 0.05
WARM_UP = 2  # prompt tokens a server sends itself before it says it is ready


def add_routes(app: web.Application, server: TwinServer) -> None:
    """Add the introspection routes that the server's version has."""
    facts = Facts(server)
    get, post = app.router.add_get, app.router.add_post
    get("/", facts.root)
    get("/v1/models", facts.models, allow_head=False)
    get("/v1/models/{name}", facts.model)
    get("/model_info", facts.model_info)
    get("/get_model_info", facts.model_info)
    get("/server_info", facts.server_info)
    get("/get_server_info", facts.server_info)
    get("/metrics", facts.metrics)
    get("/health", facts.health)
    get("/health_generate", facts.health)
    get("/ping", facts.ping)
    get("/flush_cache", facts.flush_cache)
    post("/flush_cache", facts.flush_cache)
    if server.traits.has_loads:
        get("/v1/loads", facts.loads)
    if server.traits.has_get_load:
        get("/get_load", facts.get_load)


class Facts:
    """The handlers. Each says whether it takes a trip through the scheduler."""

    def __init__(self, server: TwinServer) -> None:
        self.server = server
        self.traits = server.traits
        self._probes = 0
        self._drawn = secrets.randbelow(1 << 29)

    async def models(self, _request: web.Request) -> web.Response:
        """GET /v1/models. No scheduler trip."""
        return json_answer({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{name}."""
        name = request.match_info["name"]
        if name == self.server.profile.model:
            return json_answer(self._card())
        error = {
            "message": f"The model {name!r} does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return json_answer({"error": error}, 404)

    async def root(self, _request: web.Request) -> web.Response:
        """GET or HEAD /."""
        return json_answer("SGLang is running")

    def _card(self) -> dict[str, Any]:
        profile = self.server.profile
        return {
            "id": profile.model,
            "object": "model",
            "created": int(_wall()),
            "owned_by": "sglang",
            "root": profile.model,
            "parent": None,
            "max_model_len": profile.context,
        }

    async def model_info(self, _request: web.Request) -> web.Response:
        """GET /model_info. No scheduler trip."""
        path = f"/models/{self.server.profile.model}"
        return json_answer(
            {
                "model_path": path,
                "tokenizer_path": path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
            }
        )

    async def server_info(self, _request: web.Request) -> web.Response:
        """GET /server_info: the launch arguments and the pool. A scheduler trip."""
        await self._scheduler_trip()
        profile, engine = self.server.profile, self.server.engine
        path = f"/models/{profile.model}"
        state: dict[str, Any] = {
            "last_gen_throughput": engine.gauges.throughput,
            "memory_usage": {
                "weight": round(profile.speed.weights / 2**30, 2),
                "kvcache": round(engine.pool.capacity * profile.speed.cell / 2**30, 2),
                "token_capacity": engine.pool.capacity,
                "graph": 0,
            },
        }
        if self.traits.has_loads:
            state["effective_max_running_requests_per_dp"] = profile.max_running
        start = (
            self._drawn + self.server.process.starts
        )  # each has a seed of its own, and takes its own time
        took = {"load_weight": start * 1e-9, "scheduler_e2e": 3.0 + start * 1e-9}
        return json_answer(
            {
                "model_path": path,
                "tokenizer_path": path,
                "served_model_name": profile.model,
                "context_length": None,
                "page_size": profile.page,
                "chunked_prefill_size": profile.chunk or -1,
                "max_prefill_tokens": profile.max_prefill,
                "max_running_requests": None,
                "max_queued_requests": profile.max_queued,
                "schedule_policy": profile.policy,
                "schedule_conservativeness": profile.conservativeness,
                "enable_mixed_chunk": profile.mixed_chunk,
                "disable_radix_cache": not profile.radix,
                "stream_interval": 1,
                "dp_size": 1,
                "tp_size": 1,
                "enable_metrics": True,
                "random_seed": start,
                **({"startup_time": took} if self.traits.snapshot_loads else {}),
                "api_key": None,
                "status": "ready",
                "max_total_num_tokens": engine.pool.capacity,
                "max_req_input_len": engine.limits.longest_prompt,
                "internal_states": [state],
                "version": self.traits.version,
            }
        )

    async def loads(self, _request: web.Request) -> web.Response:
        """GET /v1/loads. Until 0.5.12 a scheduler trip, later a snapshot of some age."""
        shot = await self._shot()
        body: dict[str, Any] = {
            "timestamp": dt.datetime.now(dt.UTC).isoformat(),
            "version": self.traits.version,
        }
        if self.traits.snapshot_loads:
            body |= {"accelerator": None, "num_accelerators": 1, "loads": [self._load(shot)]}
            return json_answer(body)
        body |= {
            "dp_rank_count": 1,
            "loads": [self._load(shot)],
            "aggregate": {
                "total_running_reqs": shot.running,
                "total_waiting_reqs": shot.waiting,
                "total_reqs": shot.running + shot.waiting,
                "total_used_tokens": shot.used,
                "total_tokens": shot.total,
                "avg_token_usage": round(shot.used / shot.capacity, 4),
                "avg_throughput": shot.throughput,
                "avg_utilization": 0.0,
            },
        }
        return json_answer(body)

    def _load(self, shot: Snapshot) -> dict[str, Any]:
        profile = self.server.profile
        body: dict[str, Any] = {
            "num_running_reqs": shot.running,
            "num_waiting_reqs": shot.waiting,
            "num_used_tokens": shot.used,
            "num_total_tokens": shot.total,
            "max_total_num_tokens": shot.capacity,
            "token_usage": round(shot.used / shot.capacity, 4),
            "gen_throughput": round(shot.throughput, 2),
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "max_running_requests": profile.max_running,
            "memory": {
                "weight_gb": round(profile.speed.weights / 2**30, 3),
                "kv_cache_gb": round(shot.capacity * profile.speed.cell / 2**30, 3),
                "graph_gb": 0.0,
                "token_capacity": shot.capacity,
            },
            "queues": {"waiting": shot.waiting, "grammar": 0, "paused": 0, "retracted": 0},
        }
        if self.traits.snapshot_loads:
            age = (self.server.now() - shot.at) / self.server.speed
            body |= {
                "timestamp": _wall() - age,
                "dp_rank": 0,
                "num_waiting_uncached_tokens": shot.unread,
                "num_active_tokens": shot.total,
                "total_prefill_uncached_tokens": WARM_UP + shot.read,
                "total_prefill_busy_us": int(shot.read_s / self.server.speed * 1e6),
            }
        else:
            body["num_total_reqs"] = shot.running + shot.waiting
        return body

    async def get_load(self, _request: web.Request) -> web.Response:
        """GET /get_load, gone in 0.5.23."""
        shot = await self._shot()
        body: dict[str, Any] = {
            "dp_rank": 0,
            "num_reqs": shot.running + shot.waiting,
            "num_waiting_reqs": shot.waiting,
            "num_tokens": shot.total,
        }
        if self.traits.has_loads:
            body |= {"num_pending_tokens": shot.unread, "ts_tic": self.server.now()}
        return json_answer([body])

    async def metrics(self, _request: web.Request) -> web.Response:
        """GET /metrics: the main gauges and counters. No scheduler trip."""
        engine, shot = self.server.engine, self.server.engine.gauges
        counters = engine.counters
        labels = f'engine_type="unified",model_name="{self.server.profile.model}",pp_rank="0",tp_rank="0"'
        rows: list[tuple[str, str, float]] = [
            ("max_total_num_tokens", "gauge", shot.capacity),
            ("num_running_reqs", "gauge", shot.running),
            ("num_queue_reqs", "gauge", shot.waiting),
            ("num_used_tokens", "gauge", shot.used),
            ("token_usage", "gauge", round(shot.used / shot.capacity, 2)),
            ("gen_throughput", "gauge", shot.throughput),
            ("cache_hit_rate", "gauge", shot.hit_rate),
            ("new_token_ratio", "gauge", shot.ratio),
            ("num_retracted_reqs", "gauge", shot.retracted),
            ("context_len", "gauge", self.server.profile.context),
            ("kv_evictable_tokens", "gauge", shot.evictable),
            ("kv_available_tokens", "gauge", shot.capacity - shot.used - shot.evictable),
            ("num_retracted_requests_total", "counter", counters.retractions),
            ("prompt_tokens_total", "counter", counters.prompt_tokens),
            ("generation_tokens_total", "counter", counters.generated_tokens),
            ("num_requests_total", "counter", counters.finished),
            ("num_aborted_requests_total", "counter", counters.aborted),
        ]
        lines: list[str] = []
        for name, kind, value in rows:
            lines.append(f"# TYPE sglang:{name} {kind}")
            lines.append(f"sglang:{name}{{{labels}}} {float(value)}")
        return text("\n".join(lines) + "\n")

    async def health(self, _request: web.Request) -> web.Response:
        """GET /health: any output of the scheduler after a one-token probe, within 20 s."""
        server = self.server
        if server.process.terminating:
            return empty(503)
        started = server.now()
        if server.engine.idle:
            self._probes += 1
            probe = Job(rid=f"HEALTH_CHECK_{self._probes}", prompt=1, want=1, cap=1)
            server.process.submit(probe, started)
            server.pump()
        while server.now() - started < HEALTH_LIMIT_S:
            await server.sleep(HEALTH_STEP_S)
            if server.last_output >= started:
                return empty()
        return empty(503)

    async def ping(self, _request: web.Request) -> web.Response:
        """GET /ping."""
        return empty()

    async def flush_cache(self, _request: web.Request) -> web.Response:
        """GET or POST /flush_cache: only when nothing is in flight."""
        if not self.server.engine.idle:
            return text("Flush cache failed.\n", 400)
        self.server.engine.memory.cache.flush()
        return text("Cache flushed.\n")

    async def _shot(self) -> Snapshot:
        """The load that is told: from 0.5.17 on what the scheduler published last, which it does at
        every turn of its loop while it is idle."""
        engine = self.server.engine
        if not self.traits.snapshot_loads:
            await self._scheduler_trip()
            return engine.publish(self.server.now())
        if engine.idle and not self.server.process.frozen:
            return engine.publish(self.server.now())
        return engine.snapshot

    async def _scheduler_trip(self) -> None:
        """Answered between two steps: waits for the one in progress, for ever while frozen."""
        while self.server.process.frozen:
            await self.server.sleep(_FROZEN_POLL_S * self.server.speed)
        wake = self.server.engine.next_wakeup()
        if wake is not None:
            await self.server.sleep(max(0.0, wake - self.server.now()))


def _wall() -> float:
    return time.time()  # noqa: TID251 - the bodies' own fields are wall time
