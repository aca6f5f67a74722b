"""A request's way, top to bottom.

route → who → body → what it asks → count → ticket → (wait) → lease → send → first event → relay →
end. Every exit passes through `_finish`, which tells the record once; every exit after the grant
passes through the lease, which releases once. What may go wrong before the first byte becomes a
complete answer with a status; after it, one in-band error and the end of the connection.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.core.model import Ask, Code, Outcome, Refusal, Ticket
from gateway.edge import body as bodies
from gateway.edge import replies, routes
from gateway.edge.dialects import Intent, Invalid
from gateway.edge.open_door import pass_on
from gateway.edge.reaper import Running
from gateway.edge.relay import BrokenAnswer, Relay, begin
from gateway.edge.trip import Trip, clean_id
from gateway.gate import Shed
from gateway.policy.clients import Unauthorized
from gateway.tokens import CountRefused
from gateway.upstream.errors import Failure, UpstreamError
from gateway.upstream.sse import Verdict

if TYPE_CHECKING:
    from gateway.core.model import ClientRule
    from gateway.edge.backends import Backend, Fleet
    from gateway.edge.dialects import Body, Dialect
    from gateway.edge.reaper import Reaper
    from gateway.edge.relay import Beginning
    from gateway.gate import Gate, Lease
    from gateway.observe.journal import Journal
    from gateway.policy.clients import Identify
    from gateway.policy.schema import Policy
    from gateway.tokens import Counted

PAUSE_S = 1.0
"""How long nothing new starts on a server that said it is full: a few of its decode rounds."""

GONE = 499
"""The status of an answer that nobody gets, as nginx calls it: the connection is closed already."""

CONNECTS = 3
"""Connections tried for one request before its server counts as gone for it. Nothing was sent."""

HEAVY_TOKENS = 2_048
"""Longest prompt for which log-probabilities over the prompt are allowed: the engine makes rows ×
vocabulary floats, 1.7-2.8 GiB for 2,048 rows, outside every pool (0.5.6 and 0.5.12 unchunked)."""


BROKEN = frozenset({Failure.RESET, Failure.TRUNCATED})
"""Ends of a connection that a dead server explains. Silence is not one: a request that the engine
retracted is silent until it has been prefilled again."""


@dataclass(frozen=True, slots=True)
class Work:
    """A request that was read and counted."""

    intent: Intent
    body: Body
    counted: Counted


class DataPlane:
    """The handler of the data plane's server."""

    def __init__(
        self,
        policy: Policy,
        *,
        gate: Gate,
        fleet: Fleet,
        reaper: Reaper,
        identify: Identify,
        rules: dict[str, ClientRule],
        journal: Journal,
    ) -> None:
        self._policy = policy
        self._gate = gate
        self._fleet = fleet
        self._reaper = reaper
        self._identify = identify
        self._rules = rules
        self._journal = journal

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. Raises nothing but cancellation."""
        route = routes.find(request.method, request.rel_url.raw_path)
        match route:
            case None:
                return _plain(request, replies.refused(Refusal(Code.NOT_FOUND, _no_route(request))))
            case routes.Quick.ALIVE:
                return web.Response(text="kvgate\n")
            case routes.Quick.MODELS:
                return await self._models(request)
            case _:
                return await self._generate(request, route)

    async def _generate(self, request: web.BaseRequest, dialect: Dialect) -> web.StreamResponse:
        trip = Trip(request, dialect, self._gate.now())
        try:
            return await self._admitted(trip, dialect)
        except Invalid as error:
            return trip.refuse(replies.invalid(str(error), error.param), Code.INVALID_REQUEST)
        except bodies.TooLarge as error:
            refusal = Refusal(
                Code.BODY_TOO_LARGE,
                f"the body has {error.size} bytes or more; the limit is {error.limit}",
                error.size,
                error.limit,
            )
            return trip.refused(refusal)
        except Shed as shed:
            return trip.refused(shed.refusal, shed.queued_s)
        except UpstreamError as error:
            return trip.failed(_fault(error))
        except asyncio.CancelledError:
            trip.left()
            raise
        except ConnectionError:
            trip.left()
            return web.Response(status=GONE)
        finally:
            self._journal.request(trip.done(self._gate.now()))

    async def _admitted(self, trip: Trip, dialect: Dialect) -> web.StreamResponse:
        rule = self._who(trip)
        data = await bodies.read(trip.request, self._policy.limits.body_bytes)
        if self._policy.admission == "off":
            trip.record.client = rule.name
            backend = self._fleet.least_busy()
            if backend is None:
                raise Shed(_nobody(list(self._fleet)), None)
            return await pass_on(trip, dialect, data, backend, self._policy.limits)
        body = bodies.parse(data)
        intent = self._intent(dialect, body)
        backends = self._fleet.for_model(intent.model)
        trip.asks(intent, rule.name, [backend.facts for backend in backends])
        if not any(backend.ready for backend in backends):
            raise Shed(_nobody(backends), None)

        counted = await self._count(backends, intent, body, len(data))
        trip.counted(counted)
        self._check(intent, counted)

        ticket = Ticket(
            id=trip.id,
            client=rule,
            ask=Ask(counted.prompts, intent.n, intent.cap, intent.usual),
            pools=tuple(pool for backend in backends for pool in backend.pools),
            body_bytes=len(data),
            streamed=intent.stream,
        )
        async with self._gate.admit(ticket, grace_s=self._policy.limits.release_grace_s) as lease:
            return await self._dispatched(trip, lease, dialect, Work(intent, body, counted))

    async def _dispatched(
        self, trip: Trip, lease: Lease, dialect: Dialect, work: Work
    ) -> web.StreamResponse:
        """Send until a server takes it, then relay its answer."""
        while True:
            backend = self._fleet.backends[lease.grant.pool.backend]
            rid = trip.granted(lease.grant, self._free(lease))
            data = dialect.write(work.body, work.intent, lease.grant, rid, backend.engine)
            running = Running(backend, rid)
            first = await self._sent(trip, lease, work, running, data)
            if first is None or running.reply is None:
                self._reaper.ended(trip.id)
                await lease.requeue(PAUSE_S)  # the same place in the queue again
                continue
            backend.alive()
            try:
                relay = Relay(trip, lease, backend, work.intent, work.counted)
                return await relay.run(running.reply, first)
            except BrokenAnswer as broken:
                if broken.kind in BROKEN:
                    backend.suspect(str(broken))
                return broken.response
            finally:
                if lease.ended:
                    self._reaper.ended(trip.id)

    async def _sent(
        self, trip: Trip, lease: Lease, work: Work, running: Running, data: bytes
    ) -> Beginning | None:
        """Hand a request to a server and wait for its answer to begin.

        None where the server did not take it: full, or nobody there. Raises UpstreamError where it
        may have, and Invalid for what cannot be written on the wire.
        """
        backend = running.backend
        lease.sent()
        self._reaper.began(trip.id, running, lease.grant.demand.slots)
        try:
            running.reply = await backend.client.send(
                "POST",
                trip.target,
                [*trip.forwarded_headers(), *backend.headers],
                data,
                first_byte_timeout_s=self._first_byte_s(work.intent),
                idle_timeout_s=self._policy.limits.idle_s,
            )
            first = await begin(running.reply, streamed=work.intent.stream)
        except ValueError as error:
            self._over(trip, lease)
            msg = f"the request cannot be passed on: {error}"
            raise Invalid(msg) from None
        except UpstreamError as error:
            if not error.sent or error.kind in BROKEN:
                backend.suspect(str(error))
            if error.sent:
                raise
            trip.refused_connections += 1
            if trip.refused_connections >= CONNECTS:
                self._over(trip, lease)
                raise
            return None
        return None if first.verdict is Verdict.BACKPRESSURE else first

    def _over(self, trip: Trip, lease: Lease) -> None:
        """Nothing was sent, and nothing will be."""
        lease.end(Outcome.FAILED)
        self._reaper.ended(trip.id)

    # ---- the steps before the gate ---------------------------------------------------------------

    def _who(self, trip: Trip) -> ClientRule:
        name = self._identify.resolve(trip.request.headers, trip.request.remote or "")
        if isinstance(name, Unauthorized):
            raise Shed(Refusal(Code.UNAUTHORIZED, name.message), None)
        return self._rules[name]

    def _intent(self, dialect: Dialect, body: Body) -> Intent:
        intent = dialect.read(body)
        if intent.n > self._policy.limits.max_n:
            msg = f"n is {intent.n}; the most this gate allows is {self._policy.limits.max_n}"
            raise Invalid(msg, "n")
        if intent.prompts > self._policy.limits.max_prompts:  # before each of them is counted
            msg = (
                f"{intent.prompts} prompts in one request; the most this gate allows is "
                f"{self._policy.limits.max_prompts}"
            )
            raise Invalid(msg)
        return intent

    async def _count(
        self, backends: list[Backend], intent: Intent, body: Body, size: int
    ) -> Counted:
        """The count of the first ready server's model; the largest where models differ."""
        counters = {id(b.counter): b.counter for b in backends if b.ready and b.counter is not None}
        best: Counted | None = None
        try:
            for counter in counters.values():
                counted = await counter.count(intent.kind, body, size)
                if best is None or counted.total > best.total:
                    best = counted
        except CountRefused as refused:
            raise Invalid(str(refused)) from None
        if best is None:
            raise Shed(_nobody(backends), None)
        return best

    def _check(self, intent: Intent, counted: Counted) -> None:
        if not counted.prompts:
            raise Invalid("there is no prompt")
        if intent.heavy is not None and counted.total > HEAVY_TOKENS:
            msg = (
                f"{intent.heavy} over a prompt of {counted.total} tokens takes memory outside the "
                f"KV pool; it is allowed up to {HEAVY_TOKENS} tokens"
            )
            raise Invalid(msg)

    def _free(self, lease: Lease) -> int:
        ledger = self._gate.core.books.pools[lease.grant.pool].ledger
        return ledger.free + lease.grant.demand.kv

    def _first_byte_s(self, intent: Intent) -> float:
        limits = self._policy.limits
        return limits.first_byte_s if intent.stream else limits.answer_s

    # ---- routes that generate nothing ------------------------------------------------------------

    async def _models(self, request: web.BaseRequest) -> web.StreamResponse:
        """The model list of every server that is ready, merged."""
        if isinstance(who := self._identify.resolve(request.headers, ""), Unauthorized):
            return _plain(request, replies.refused(Refusal(Code.UNAUTHORIZED, who.message)))
        ready = [backend for backend in self._fleet if backend.ready]
        if not ready:
            return _plain(request, replies.refused(_nobody(list(self._fleet))))
        return web.json_response(
            {
                "object": "list",
                "data": [
                    {
                        "id": model,
                        "object": "model",
                        "created": 0,
                        "owned_by": "sglang",
                        "root": model,
                        "parent": None,
                        "max_model_len": context,
                    }
                    for model, context in _served(ready).items()
                ],
            }
        )


def _served(ready: list[Backend]) -> dict[str, int]:
    """Each model with the largest context one of its servers takes."""
    models: dict[str, int] = {}
    for backend in ready:
        if backend.facts is not None:
            for model in backend.facts.models:
                models[model] = max(models.get(model, 0), backend.facts.context)
    return models


def _nobody(backends: list[Backend]) -> Refusal:
    words = []
    for backend in backends:
        view = backend.watch.snapshot() if backend.watch is not None else None
        state = "starting" if view is None else view.state.value
        words.append(f"{backend.name} is {state if state != 'ready' else 'getting ready'}")
    return Refusal(
        Code.NO_BACKEND, "no server is ready: " + ", ".join(words), retry_after_s=RESTART_S
    )


RESTART_S = 10.0
"""Told while no server is ready. A restart takes 15-60 s; SDKs retry twice, so not much less."""


def _fault(error: UpstreamError) -> replies.Fault:
    silent = error.kind in {Failure.FIRST_BYTE_TIMEOUT, Failure.IDLE_TIMEOUT}
    status = 504 if silent else 502
    code = "upstream_timeout" if silent else "upstream_error"
    if error.kind is Failure.CONNECT:
        status, code = 503, "no_backend"
    return replies.Fault(status, code, str(error))


def _no_route(request: web.BaseRequest) -> str:
    methods = routes.METHODS.get(request.rel_url.raw_path)
    if methods is not None:
        return f"this route takes {' and '.join(methods)}"
    return "there is no such route here"


def _plain(request: web.BaseRequest, answer: replies.Answer) -> web.Response:
    """The answer to a request that leaves no record."""
    ident = clean_id(request.headers) or secrets.token_hex(14)
    return web.Response(
        status=answer.status,
        body=answer.body,
        headers={"x-request-id": ident, **answer.headers},
        content_type=replies.JSON,
    )
