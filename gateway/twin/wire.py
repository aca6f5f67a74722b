"""Responses with the headers SGLang's server sends."""

from __future__ import annotations

from aiohttp import web

from gateway.twin import bodies

HEADERS = {"server": "uvicorn", "vary": "Origin"}


def json_answer(value: object, status: int = 200) -> web.Response:
    """A JSON body."""
    return web.Response(
        body=bodies.dumps(value), status=status, content_type="application/json", headers=HEADERS
    )


def empty(status: int = 200) -> web.Response:
    """No body."""
    return web.Response(status=status, headers=HEADERS)


def text(value: str, status: int = 200) -> web.Response:
    """A plain text body."""
    return web.Response(text=value, status=status, headers=HEADERS)


def event_stream() -> web.StreamResponse:
    """The head of a stream of server-sent events."""
    return web.StreamResponse(
        headers={**HEADERS, "content-type": "text/event-stream; charset=utf-8"}
    )
