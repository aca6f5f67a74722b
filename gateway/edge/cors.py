"""Web pages that call from a browser: what the policy's `cors` allows is told here, on every answer.

A browser asks first (a preflight, without a key), and shows a page only answers that name its origin. How
an answer came about does not matter, so the headers are put on where all of them pass: when its head
is written. The engine's own are never passed on (see `relay`): SGLang allows every page. Who is one
connection too many, or sends a head that cannot be read, is answered without them: from which page that
came is not known, and what a browser asks first would be refused with it.

A page whose own name was made to mean this machine (DNS rebinding) is of the gate's own origin to the browser,
which then shows it everything. Where one may call without a key and the gate is reached on loopback, such a page is
refused: the origin it comes from is the very host that it asks, and that host is no name of this machine. Only a
browser says an origin; what says none is not looked at.

Allowed is never to send credentials of the browser's: the gate knows no cookies, and a key that a page
sends it has got from whoever reads it.
"""

from __future__ import annotations

import asyncio
import re
import socket
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from gateway.edge import ids, routes
from gateway.policy import hosts
from gateway.policy.origins import EVERY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PREFIX: Final = "access-control-"
"""Begins the names of all these headers."""

_ALLOWED: Final = f"{PREFIX}allow-origin"

EXPOSED: Final = (
    *(ids.NAME, "retry-after", "x-should-retry"),
    *(
        "x-kvgate-prompt-tokens",
        "x-kvgate-max-tokens",
        "x-kvgate-clamped-from",
        "x-kvgate-queue-ms",
    ),
    *("x-kvgate-backend", "x-kvgate-trimmed", "x-kvgate-tools-left-out", "x-kvgate-count-method"),
    "x-kvgate-error-source",
)
"""Headers that a page may read: what README tells clients of, and what their SDKs look at. By name: "*"
is not understood by every browser."""

KEPT_S: Final = 7200
"""How long a browser may go on without asking again; Chrome keeps it for no longer. What is taken out of
the policy holds at once all the same: the answers themselves do not name that origin any more."""

_NAMES: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?: ?, ?[!#$%&'*+\-.^_`|~0-9A-Za-z]+)*")
"""Names of headers, as browsers list them."""

_TOLD: Final = web.RequestKey("told", dict[str, str])


class Asked(web.BaseRequest):
    """A request whose answer, whoever makes it, has its id, and carries what a page is told."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        ids.put_on(self, response)
        for name, value in self.get(_TOLD, _NOTHING).items():
            if name == "vary":
                response.headers.add(name, value)  # the server may have its own
            else:
                response.headers[name] = value


_NOTHING: Final[Mapping[str, str]] = {}


def asked(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Asked:  # noqa: ANN401
    """How the server makes its requests; aiohttp's own types."""
    return Asked(message, payload, protocol, writer, task, asyncio.get_running_loop())


class Cors:
    """The pages that a policy allows."""

    def __init__(self, origins: Collection[str], *, keyed: bool = True) -> None:
        """`keyed`: whether all clients have keys, which no page of a stranger knows."""
        self._origins = frozenset(origins)
        self._keyed = keyed
        self._told: Mapping[str, str] = {f"{PREFIX}expose-headers": ", ".join(EXPOSED)}

    def meet(self, request: web.BaseRequest) -> None:
        """See where a request comes from, so that its answer is told rightly."""
        origin = request.headers.get("origin")
        told: dict[str, str] = {}
        if origin is not None and (allowed := self._allowed(origin)) is not None:
            told = {_ALLOWED: allowed, **self._told}
        if self._origins and EVERY not in self._origins:
            # Whoever keeps answers would else give one to another page: this one, or one without these
            # headers that nobody or a stranger asked for.
            told["vary"] = "origin"
        if told:
            request[_TOLD] = told

    def preflight(self, request: web.BaseRequest) -> web.Response | None:
        """The whole answer where a browser only asks whether an allowed page may send a request."""
        methods = routes.methods(request.rel_url.raw_path)
        if not methods or _ALLOWED not in request.get(_TOLD, ()) or not _is_preflight(request):
            return None
        headers = {
            f"{PREFIX}allow-methods": ", ".join(methods),
            f"{PREFIX}max-age": str(KEPT_S),
        }
        wanted = request.headers.get(f"{PREFIX}request-headers", "")
        if _NAMES.fullmatch(wanted):
            headers[f"{PREFIX}allow-headers"] = wanted
        return web.Response(status=204, headers=headers)

    def why_not(self, request: web.BaseRequest) -> str:
        """What is said where there is no route: to a page, that the policy could allow it."""
        path = request.rel_url.raw_path
        why = routes.why_not(path)
        if not routes.methods(path) or not _is_preflight(request):
            return why
        now = "lists others" if self._origins else "is empty"
        return (
            f"{why}; to let this web page call, list its origin in the policy's `cors`, which {now}"
        )

    def rebound(self, request: web.BaseRequest) -> str | None:
        """Why a page may not ask, where it is one whose name was made to mean this machine; else None."""
        origin = request.headers.get("origin")
        if origin is None or self._keyed or self._allowed(origin) is not None:
            return None
        asked = request.headers.get("host", "").lower()
        if origin.lower().partition("://")[2] != asked or not hosts.on_loopback(request.transport):
            return None
        try:
            ours = hosts.is_here(hosts.split(asked)[0], socket.gethostname())
        except hosts.NoHost:
            ours = False
        return None if ours else _REBOUND

    def _allowed(self, origin: str) -> str | None:
        if EVERY in self._origins:
            return EVERY
        return origin if origin in self._origins else None


_REBOUND: Final = (
    "this web page asks the gate by the page's own name, which is not one of this machine, and one may call here "
    "without a key: so does a stranger's page that made its name mean 127.0.0.1. To let it call, list its origin in the policy's "
    "`cors`, or give clients keys"
)


def _is_preflight(request: web.BaseRequest) -> bool:
    """Whether a browser asks on behalf of a page."""
    headers = request.headers
    return (
        request.method == "OPTIONS" and "origin" in headers and f"{PREFIX}request-method" in headers
    )
