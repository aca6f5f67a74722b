"""A request's way, top to bottom.

route → who → body → what it asks → count → ticket → (wait) → lease → send → first event → relay →
end. Every exit tells the record once (`_generate`), and every exit after the grant passes through
the lease, which releases once. What goes wrong before the first byte becomes a complete answer with
a status, or, where the server pushed back or died, another try from the same place in the queue;
after the first byte it becomes one in-band error and the end of the connection.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.core.model import Code, Refusal
from gateway.edge import allowed, catalogue, counting, models, overflow, replies, routes, tickets
from gateway.edge import body as bodies
from gateway.edge.cors import Cors
from gateway.edge.dialects import Intent, Invalid, Known
from gateway.edge.failures import BROKEN, fault
from gateway.edge.flight import Flight
from gateway.edge.heartbeat import Places
from gateway.edge.lobby import Lobby
from gateway.edge.models import nobody
from gateway.edge.open_door import Unbooked, pass_on
from gateway.edge.relay import BrokenAnswer, Relay, begin
from gateway.edge.retries import Retries
from gateway.edge.shadow import Shadow
from gateway.edge.trip import Trip
from gateway.edge.underway import UnderWay
from gateway.edge.work import Work, at_rest
from gateway.gate import Shed
from gateway.policy.checks import all_keyed
from gateway.tokens import Kind
from gateway.upstream.errors import Failure, UpstreamError
from gateway.upstream.first_event import Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.core.model import ClientRule, Ticket
    from gateway.edge.backend import Backend
    from gateway.edge.backends import Fleet
    from gateway.edge.booked import Booked
    from gateway.edge.callers import Callers
    from gateway.edge.deaths import Deaths
    from gateway.edge.dialects import Body, Dialect
    from gateway.edge.reaper import Reaper
    from gateway.edge.relay import Beginning
    from gateway.gate import Gate, Lease
    from gateway.observe.journal import Journal
    from gateway.policy.schema import Policy

PAUSE_S = 1.0
"""How long nothing new starts on a server that said it is full: a few of its decode rounds."""

CONNECTS = 3
"""Connections tried for one request before its server counts as gone for it. Nothing was sent. Where no
way to it is found, it waits on instead, and so many times the server is doubted for it."""


class _Unreserved(Exception):
    """The server died between the grant and the write: nothing was sent, nothing is held."""


class DataPlane:
    """The handler of the data plane's server."""

    def __init__(
        self,
        policy: Policy,
        *,
        gate: Gate,
        fleet: Fleet,
        reaper: Reaper,
        callers: Callers,
        deaths: Deaths,
        journal: Journal,
    ) -> None:
        self._policy = policy
        self._gate = gate
        self._places = Places(gate)
        self._fleet = fleet
        self._lobby = Lobby(gate, fleet)
        self._reaper = reaper
        self._callers = callers
        self._deaths = deaths
        self._journal = journal
        self._cors = Cors(policy.cors, keyed=all_keyed(policy.clients))
        self._retries = Retries(policy, gate, deaths.failures)
        self.under_way = UnderWay()

    def adopt(self, policy: Policy, callers: Callers) -> None:
        """Another policy, from the next request on; see `reload`."""
        self._policy, self._callers = policy, callers
        self._cors = Cors(policy.cors, keyed=all_keyed(policy.clients))
        self._retries.adopt(policy)

    def handle(self, request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        """Answer one request. Raises nothing but cancellation. A coroutine less for those that wait."""
        self._cors.meet(request)
        if (why := self._cors.rebound(request)) is not None:
            return self._stranger(request, why)
        route = routes.find(request.method, request.rel_url.raw_path)
        if route is None or isinstance(route, routes.Quick):
            return self._quick(request, route)
        return self._generate(request, route)

    async def _stranger(self, request: web.BaseRequest, why: str) -> web.Response:
        return models.plain(Refusal(Code.FORBIDDEN, why), routes.voice(request.rel_url.raw_path))

    async def _quick(
        self, request: web.BaseRequest, route: routes.Quick | None
    ) -> web.StreamResponse:
        match route:
            case None:
                if (allowed := self._cors.preflight(request)) is not None:
                    return allowed
                no = Refusal(Code.NOT_FOUND, self._cors.why_not(request))
                told = replies.no_websocket(no) if routes.by_websocket(request) else no
                return models.plain(told, routes.voice(request.rel_url.raw_path))
            case routes.Quick.ALIVE:
                return models.alive(request)
            case routes.Quick.MODELS:
                return await models.answer(request, self._callers, self._fleet, self._lobby.names)
            case routes.Quick.COUNT:
                return await counting.answer(request, self._callers, self._policy, self._lobby)
            case routes.Quick():
                return await catalogue.answer(route, request, self._callers, self._fleet)

    async def _generate(self, request: web.BaseRequest, dialect: Dialect) -> web.StreamResponse:
        trip = Trip(request, dialect, self._gate.now())
        self.under_way.began(trip)
        answer: web.StreamResponse
        try:
            try:
                answer = await self._admitted(trip, dialect)
            except (Known, Invalid, bodies.Unread, Shed, UpstreamError) as why:
                answer = self._instead(trip, why)
            return await trip.heart.deliver(answer)
        except asyncio.CancelledError:
            if trip.cut and not trip.gone:  # draining is over, and the client is still there
                return await trip.cut_short()
            trip.left()
            raise
        except ConnectionError:
            trip.left()
            return web.Response(status=models.GONE)
        finally:
            trip.heart.rest()
            # Told of in the next turn: an answer in one piece is written between this and that.
            record = trip.done(self._gate.now())
            asyncio.get_running_loop().call_soon(self._journal.request, record)
            self.under_way.over(trip)

    def _instead(
        self, trip: Trip, why: Known | Invalid | bodies.Unread | Shed | UpstreamError
    ) -> web.Response:
        """What is answered where there is no server's answer."""
        match why:
            case Known():
                return trip.known(why.body)
            case Invalid():
                return trip.refuse(replies.invalid(str(why), why.param), Code.INVALID_REQUEST)
            case bodies.Unread():
                return trip.unread(why)
            case Shed():
                return trip.refused(self._retries.refused(trip, why.refusal), why.queued_s)
            case UpstreamError():
                return trip.failed(fault(why))

    async def _admitted(self, trip: Trip, dialect: Dialect) -> web.StreamResponse:
        trip.record.client = name = self._callers.known(trip.request)
        rule = self._callers.rule(name, trip.request.rel_url.raw_path)
        limits = self._policy.limits
        data = await self._lobby.turnstile.read(trip.request, name, limits)
        trip.read = True
        if self._policy.admission != "on":
            return await self._let_through(trip, dialect, data, rule)
        self._retries.met(trip, name, data)
        ticket, work = await self._asked(trip, dialect, data, rule)
        trip.record.tools_left_out = work.intent.tools_left_out
        self._retries.counted(trip, ticket)
        del data  # what waits is kept once, as it was read
        trip.record.door_ms = (self._gate.now() - trip.began) * 1000
        every_s = self._policy.queue.heartbeat_s
        if every_s is not None and work.intent.stream and work.intent.kind is not Kind.GENERATE:
            trip.heart.set(every_s, trip.headers(), self._places, work.intent.model)
        trip.heart.beat()
        await self._lobby.still_there(ticket)
        lease = self._gate.admit(ticket, grace_s=limits.release_grace_s)
        lease.rest = partial(at_rest, trip, work, self._retries)
        async with lease:
            self._retries.admitted(trip)
            return await self._dispatched(trip, lease, dialect, work)

    async def _let_through(
        self, trip: Trip, dialect: Dialect, data: bytes, rule: ClientRule
    ) -> web.StreamResponse:
        """Admission is off, or decides in the shadow only."""
        anybody = replace(rule, max_waiting=None)  # the bounds of clients are not kept
        all_ = await self._lobby.found(partial(list, self._fleet), trip.id, anybody, len(data))
        if (backend := self._fleet.least_busy()) is None:
            raise Shed(nobody(all_), None)
        booked: Booked = Unbooked()
        if self._policy.admission == "shadow":
            ask = partial(self._asked, trip, dialect, data, rule)
            failed = partial(self._journal.metrics.own_error, "shadow")
            booked = Shadow(self._gate, trip.record, ask, failed)
        limits = self._policy.limits
        return await pass_on(trip, dialect, data, backend, limits=limits, booked=booked)

    async def _asked(
        self, trip: Trip, dialect: Dialect, data: bytes, rule: ClientRule
    ) -> tuple[Ticket, Work]:
        """Read and count a request, and see where it fits. Raises as `_sized` does."""
        ask = partial(self._sized, trip, dialect, len(data), rule)
        told = self._policy.admission == "on"
        sent = bodies.parse(data)
        return await overflow.settled(
            rule.name, sent, ask, trip=trip, callers=self._callers, gate=self._gate, told=told
        )

    async def _sized(
        self, trip: Trip, dialect: Dialect, size: int, rule: ClientRule, body: Body
    ) -> tuple[Ticket, Work]:
        """Read and count a body. Raises Invalid, Known, and Shed: refused before the gate."""
        intent = allowed.intent(dialect, body, self._policy.limits)
        body = intent.put(body)
        await self._lobby.names.for_model(self._fleet, intent.model)

        def which() -> list[Backend]:
            found = models.serving(self._fleet, intent.model)
            found = models.able(dialect, found, trip.request.path)
            trip.asks(intent, rule.name, [backend.facts for backend in found])
            return self._deaths.failures.welcome(rule.name, found)

        backends = await self._lobby.found(which, trip.id, rule, size)
        self._not_quarantined(partial(self._deaths.marks.of, trip.record.dialect, body))
        if not any(backend.ready for backend in backends):
            raise Shed(nobody(backends), None)
        if intent.known is not None:
            raise Known(intent.known)
        turn = self._lobby.turnstile.turns
        counted = await counting.count(backends, intent.kind, body, size, rule.name)
        await self._lobby.turnstile.again(turn, rule.name, 0)
        trip.counted(counted)
        allowed.check(intent, counted, self._policy.limits)
        headers = trip.request.headers
        backends = self._callers.routed(rule.name, intent, counted, headers, backends)

        for backend in backends:
            backend.say_when_heard(self._gate.core.books)
        ticket = tickets.ticket(
            trip.id,
            rule,
            intent,
            counted,
            body=body,
            size=size,
            pools=(pool for backend in backends for pool in backend.pools),
            headers=headers,
            session=trip.record.session,
            arrived=trip.began,
            first_token_s=self._policy.queue.first_token_s,
            stretch=trip.stretch,
        )
        return ticket, Work(intent, body, counted)

    async def _dispatched(
        self, trip: Trip, lease: Lease, dialect: Dialect, work: Work
    ) -> web.StreamResponse:
        """Send until a server takes it and lives, then relay its answer.

        What has not reached the client in any byte goes back to its place in the queue when the
        server pushes it back or dies; the rest ends once, with what became of it.
        """
        while True:
            backend = self._fleet.backends[lease.grant.pool.backend]
            rid = trip.granted(lease.grant, self._free(lease))
            trip.heart.granted(trip.headers)
            data = dialect.write(work.body, work.intent, lease.grant, rid, backend.engine)
            flight = Flight(backend, rid, lease, trip.record, work.body, dialect.named)
            pause_s = 0.0
            try:
                first = await self._sent(trip, work.intent, flight, data)
                if first.verdict is not Verdict.BACKPRESSURE:
                    backend.alive()
                    relay = Relay(trip, lease, backend, work.intent, work.counted)
                    answer = await relay.run(flight.answer, first)
                    self._deaths.served(flight, failed=relay.failed, cut=relay.cut)
                    return answer
                pause_s = max(PAUSE_S, first.pause_s)
            except BrokenAnswer as broken:  # the client has had a part of it, and was told in-band
                self._deaths.failures.broke(flight, broken.kind)
                if broken.kind in BROKEN:
                    backend.suspect(str(broken))
                return broken.response
            except _Unreserved:
                pass
            except UpstreamError as error:  # the client has had nothing
                if not await self._may_go_again(trip, flight, error):
                    raise
                pause_s = 0.0 if error.sent else PAUSE_S
            finally:
                if lease.ended:
                    self._reaper.ended(trip.id)
            self._reaper.ended(trip.id)
            self._not_quarantined(partial(self._deaths.marks.of_flight, flight))
            trip.heart.beat()
            await lease.requeue(pause_s)  # the same place in the queue again

    async def _sent(self, trip: Trip, intent: Intent, flight: Flight, data: bytes) -> Beginning:
        """Hand a request to a server and wait for its answer to begin.

        Raises UpstreamError, _Unreserved, and Invalid for what cannot be written on the wire.
        """
        lease, limits = flight.lease, self._policy.limits

        def on_write() -> None:
            if lease.void:
                raise _Unreserved
            lease.sent()
            self._reaper.began(trip.id, flight)

        def anew() -> bytes:
            """The first try may have reached the engine: the second one has an id of its own."""
            first, flight.rid = flight.rid, trip.next_rid()
            return data.replace(first.encode(), flight.rid.encode())

        try:
            flight.reply = await flight.backend.client.send(
                "POST",
                trip.target,
                [*trip.forwarded_headers(), *flight.backend.headers_to(lease.grant.pool.rank)],
                data,
                first_byte_timeout_s=self._first_byte_s(intent),
                idle_timeout_s=limits.idle_s,
                on_write=on_write,
                anew=anew,
                at_work=partial(flight.backend.at_work, limits.answer_s - limits.idle_s),
            )
        except ValueError as error:
            msg = f"the request cannot be passed on: {error}"
            raise Invalid(msg) from None
        return await begin(flight.reply, streamed=intent.stream)

    async def _may_go_again(self, trip: Trip, flight: Flight, error: UpstreamError) -> bool:
        """Whether what failed before its client had anything gets another try. Nothing is raised here:
        an error that passes a frame which was given it is a cycle."""
        if error.sent:
            self._deaths.failures.broke(flight, error.kind)
            if error.kind not in BROKEN:
                return False
        if error.kind is Failure.OURS:  # what ends makes room, and time in the queue is limited
            self._deaths.failures.no_room_here(str(error))
            return True
        trip.refused_connections += not error.sent
        few = trip.refused_connections < CONNECTS
        if error.kind is Failure.NO_WAY and not error.sent and not few:
            return True  # its watch has a way to it, and a name may be found again
        flight.backend.suspect(str(error))
        return await self._died_with_its_server(trip, flight) if error.sent else few

    async def _died_with_its_server(self, trip: Trip, flight: Flight) -> bool:
        """Whether the server died and took the request with it; False if it lives.

        The engine may have been at work on it, and only a dead one is certain to have stopped. The
        reservation stays until the watch knows, for as long as the request may wait at all.
        """
        backend, lease = flight.backend, flight.lease
        until = trip.began + self._policy.queue.max_wait_s
        try:
            async with asyncio.timeout_at(until):
                while backend.doubted and not lease.void:
                    await backend.turned()
        except TimeoutError:
            pass
        return lease.void and self._gate.now() < until

    # ---- the steps before the gate ---------------------------------------------------------------

    def _not_quarantined(self, mark: Callable[[], bytes]) -> None:
        if (refusal := self._deaths.refusal(mark)) is not None:
            raise Shed(refusal, None)

    def _free(self, lease: Lease) -> int:
        ledger = self._gate.core.books.pools[lease.grant.pool].ledger
        return max(0, ledger.free + lease.grant.demand.kv)

    def _first_byte_s(self, intent: Intent) -> float:
        limits = self._policy.limits
        return limits.first_byte_s if intent.stream else limits.answer_s
