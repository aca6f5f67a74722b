"""Which pages in an operator's browser may do what on the control plane, which has no keys.

What changes something is refused to pages of other sites. And a page that made its own name mean 127.0.0.1
(DNS rebinding) is of the same site to the browser, which then lets it read everything: it is told by the name
that its requests are for. On loopback that is an address, localhost, what this machine is called or what the
policy lists (`control_hosts`); a name that is none of these is somebody else's. Where the listener is reached
on another address names are not looked at: a network that may ask has names of its own. Nor on a
Unix socket, which no browser opens, nor where no name is said, as every browser says one.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.policy import hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aiohttp.typedefs import Handler, Middleware

OWN_SITE = frozenset({"same-origin", "none"})
"""`sec-fetch-site` of this page and of an address typed in; scripts like curl send none at all."""


@web.middleware
async def own_site_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what changes something where another site's page sent it."""
    if request.method not in {"GET", "HEAD"} and not _by_own_page(request):
        raise web.HTTPForbidden(text="another site's page may not do this\n")
    return await handler(request)


def _by_own_page(request: web.Request) -> bool:
    """Told by Fetch Metadata; browsers send none to a plain http address beyond this machine, or are too old.
    Then by `Origin`, which they add to whatever changes something. Both together where the first is there
    would refuse the own page behind a proxy that asks by another name."""
    asked_by = request.headers.get("sec-fetch-site")
    if asked_by is not None:
        return asked_by in OWN_SITE
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def own_names_only(listed: Callable[[], Collection[str]]) -> Middleware:
    """Refuse what is asked by a name that is not ours, where that is loopback."""
    own = socket.gethostname()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        for host in request.headers.getall("host", ()):
            if not hosts.on_loopback(request.transport) or _is_ours(host, own, listed()):
                continue
            words = (
                "this control plane is on loopback and was asked by a name that is not its own, as a page does that "
                "made its name mean 127.0.0.1; ask by 127.0.0.1 or localhost, or list the name in the policy's "
                "control_hosts\n"
            )
            raise web.HTTPForbidden(text=words)
        return await handler(request)

    return guard


def _is_ours(authority: str, own: str, listed: Collection[str]) -> bool:
    try:
        host, port = hosts.split(authority)
    except hosts.NoHost:
        return False
    return hosts.is_here(host, own) or hosts.listed_in(host, port, listed)
