"""Requests that failed on a server that lives: whose failures they are, and what follows.

Counted are a 5xx, a reset or a truncation after which the server turned out to be alive, and silence
beyond a limit. Not counted: what a 4xx says, back-pressure (429, 503), a death, a client that left. A
broken connection proves nothing before the watch has looked, so it waits for that: forgotten if the
server has died, counted if it lives. `core.blame` decides; here it is put in force and said.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.core.blame import Blame
from gateway.core.model import Code, Outcome, Refusal
from gateway.edge.replies import Fault
from gateway.gate import Shed
from gateway.upstream.errors import Failure

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from gateway.core.blame import Verdict
    from gateway.edge.backends import Backend
    from gateway.edge.flight import Flight
    from gateway.gate import Gate
    from gateway.upstream.errors import UpstreamError

NO_CONNECTION = frozenset({Failure.CONNECT, Failure.NO_WAY, Failure.TLS})
"""None to the server was to be had."""

BROKEN = NO_CONNECTION | {Failure.RESET, Failure.TRUNCATED}
"""Ends of a connection that a dead server explains. Silence is not one: a request that the engine
retracted is silent until it has been prefilled again."""

OK = 200

QUIET_S = 60.0
"""Between two lines that say one thing: each request that waits for room tries once a second."""


class Failures:
    """One memory for all servers of a fleet. Nothing here awaits."""

    def __init__(self, gate: Gate, log: FilteringBoundLogger) -> None:
        self._gate = gate
        self._log = log
        self._of: dict[str, Blame] = {}
        self._doubtful: dict[str, list[str]] = {}  # clients of broken connections, by server
        self._quiet_until = -math.inf

    def welcome(self, client: str, backends: list[Backend]) -> list[Backend]:
        """Those of `backends` where this client does not cool down. Raises Shed where it does on
        every one that is ready."""
        now = self._gate.now()
        left = {one.name: self._blame(one).cooling(client, now) for one in backends}
        free = [one for one in backends if not left[one.name][0]]
        cooling = [one.name for one in backends if one.ready and left[one.name][0]]
        if not cooling or any(one.ready for one in free):
            return free
        name = min(cooling, key=lambda one: left[one][0])
        wait_s, failures = left[name]
        raise Shed(
            Refusal(
                Code.COOLING_DOWN,
                f"the last {failures} requests of client {client!r} failed on {name}, which served "
                f"others; it takes none of this client's for {wait_s:.0f} s",
                retry_after_s=wait_s,
            ),
            None,
        )

    def answered(self, flight: Flight, *, failed: bool) -> None:
        """An answer has come to its end; `failed`: it was the server's failure."""
        if failed:
            self._failed(flight.backend, flight.record.client)
        elif flight.record.outcome is Outcome.COMPLETED and flight.record.upstream_status == OK:
            self._blame(flight.backend).served(flight.record.client, self._gate.now())

    def broke(self, flight: Flight, kind: Failure) -> None:
        """It has not, on a server that may be dead: to be told before that is looked into."""
        if flight.lease.void or kind in {Failure.TOO_LARGE, Failure.OURS}:
            return  # it died; or it is our own limit
        if kind in BROKEN:
            self._doubtful.setdefault(flight.backend.name, []).append(flight.record.client)
        else:
            self._failed(flight.backend, flight.record.client)

    def no_room_here(self, reason: str) -> None:
        """This machine has no room for one more connection: said once a minute."""
        now = self._gate.now()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_S
            self._log.error("no_room_for_connections", reason=reason)

    def acquitted(self, backend: Backend) -> None:
        """It lives: the connections that broke were no death."""
        for client in self._doubtful.pop(backend.name, ()):
            self._failed(backend, client)

    def died(self, backend: Backend) -> None:
        """It is dead, and that explains them all. The next start has failed nobody."""
        self._doubtful.pop(backend.name, None)
        self._of.pop(backend.name, None)

    def cooled(self, backend: Backend) -> dict[str, float]:
        """Clients that cool down there, and for how many seconds yet."""
        return self._blame(backend).cooled(self._gate.now())

    def cools(self, client: str) -> bool:
        """Whether this client cools down anywhere."""
        now = self._gate.now()
        return any(blame.cooling(client, now)[0] for blame in self._of.values())

    def _failed(self, backend: Backend, client: str) -> None:
        verdict = self._blame(backend).failed(client, self._gate.now())
        if verdict.client is not None:
            self._log.warning(
                "client_cools_down",
                backend=backend.name,
                client=client,
                failures=verdict.failures,
                pause_s=verdict.pause_s,
                reason="its requests failed in a row while others' were served",
            )
        elif verdict.server:
            self._probe(backend, verdict)

    def _probe(self, backend: Backend, verdict: Verdict) -> None:
        self._log.warning(
            "server_fails",
            backend=backend.name,
            failures=verdict.failures,
            pause_s=verdict.pause_s,
            reason="it lives and answers nobody well: it gets a few requests after the pause, "
            "and more once it generates",
        )
        if backend.on_probe is not None:
            backend.on_probe(verdict.pause_s)

    def _blame(self, backend: Backend) -> Blame:
        return self._of.setdefault(backend.name, Blame())


def fault(error: UpstreamError) -> Fault:
    """What a client is told of `error`, where it has had nothing of its answer."""
    silent = error.kind in {Failure.FIRST_BYTE_TIMEOUT, Failure.IDLE_TIMEOUT}
    status = 504 if silent else 502
    code = "upstream_timeout" if silent else "upstream_error"
    if error.kind in NO_CONNECTION | {Failure.OURS}:
        status, code = 503, "no_backend"
    return Fault(status, code, str(error))
