"""Who may change something on the control plane: not the page of another site in an operator's browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

OWN_SITE = frozenset({"same-origin", "none"})
"""`sec-fetch-site` of this page and of an address typed in; scripts like curl send none at all."""


@web.middleware
async def own_site_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what changes something where another site's page sent it (Fetch Metadata)."""
    asked_by = request.headers.get("sec-fetch-site", "none")
    if request.method not in {"GET", "HEAD"} and asked_by not in OWN_SITE:
        raise web.HTTPForbidden(text="another site's page may not do this\n")
    return await handler(request)
