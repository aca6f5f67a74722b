"""The plainest pass-through this stack can write: the floor of what it costs without a gate.

`python -m tests.bench.plain PORT UPSTREAM_URL`.
"""

from __future__ import annotations

import sys

import aiohttp
import uvloop
from aiohttp import web

HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"}
HOP |= {"content-length"}
SESSION = web.AppKey("session", aiohttp.ClientSession)


async def handle(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
    url = sys.argv[2] + request.path_qs
    async with request.app[SESSION].request(
        request.method, url, data=body, headers=headers
    ) as reply:
        out = web.StreamResponse(
            status=reply.status,
            headers={k: v for k, v in reply.headers.items() if k.lower() not in HOP},
        )
        await out.prepare(request)
        async for chunk in reply.content.iter_any():
            await out.write(chunk)
        await out.write_eof()
        return out


async def alive(_: web.Request) -> web.Response:
    return web.Response(text="alive")


async def session(app: web.Application):
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False
    ) as made:
        app[SESSION] = made
        yield


if __name__ == "__main__":
    application = web.Application(client_max_size=2**26)
    application.router.add_get("/alive", alive)
    application.router.add_route("*", "/{path:.*}", handle)
    application.cleanup_ctx.append(session)
    uvloop.install()
    web.run_app(
        application,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        access_log=None,
        print=None,
        loop=uvloop.new_event_loop(),
    )
