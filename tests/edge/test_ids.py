"""Every answer has its id, whoever makes it: the client's own where that is clean, else one of ours. None has versions."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from gateway.edge import face, routes
from gateway.edge.ids import NAME
from tests.edge.rig import CHAT, TEXT, chat, request
from tests.edge.test_callers import key, keyed
from tests.edge.test_refusals import FULL
from tests.fakes.behaviour import Behaviour, refuse

if TYPE_CHECKING:
    from tests.edge.rig import Rig

OURS = re.compile(r"[0-9a-f]{28}")
MINE = "abc-1.2_3:4"

SENT = [(MINE, MINE), ("not clean", None), (None, None)]
"""What a client sends, and what it gets back; None: one of ours."""

QUICK_BODIES: dict[str, Any] = {"/api/show": {"model": "tiny"}}
PAGE = ("origin: https://chat.example", "access-control-request-method: POST")


def fits(found: str | None, echoed: str | None) -> bool:
    return found is not None and (found == echoed if echoed else bool(OURS.fullmatch(found)))


async def every(
    url: str, rig: Rig, method: str, path: str, status: int, body: bytes | None = None, **more: str
) -> None:
    """The answer is of that status, and has its id whatever the client sends."""
    for sent, echoed in SENT:
        headers = {**more, **({} if sent is None else {NAME: sent})}
        async with rig.http.request(method, url + path, data=body, headers=headers) as answer:
            assert answer.status == status, (method, path)
            ids = answer.headers.getall(NAME)
            assert len(ids) == 1
            assert answer.headers.getall("server") == ["kvgate"]
            assert fits(ids[0], echoed), (method, path, sent, ids)


@pytest.mark.parametrize(("method", "path"), [*routes.ROUTES, ("GET", "/v1/models/tiny")])
async def test_of_each_route(rig, method: str, path: str) -> None:
    """One answer of the kind that it has, and one to a body that is none."""
    rig.engine.default = Behaviour(tokens=1)
    url = rig.app.listen_url
    for sent, echoed in SENT:
        raw = await rig.raw(
            request(
                path,
                b"" if method != "POST" else QUICK_BODIES.get(path, chat()),
                "connection: close",
                *([] if sent is None else [f"{NAME}: {sent}"]),
                method=method,
            ),
            5.0,
        )
        found = re.findall(rb"(?im)^x-request-id: (.*?)\r?$", raw.partition(b"\r\n\r\n")[0])
        assert len(found) == 1
        assert fits(found[0].decode(), echoed)
        assert b"aiohttp" not in raw
    if method == "POST":
        await every(url, rig, method, path, 400, b"{")
    rig.handled = len(rig.records)


@pytest.mark.parametrize("path", ["/nowhere", "/flush_cache", CHAT, "/v1/messages", "/api/chat"])
async def test_of_what_is_no_route(rig, path: str) -> None:
    await every(rig.app.listen_url, rig, "DELETE", path, 404)


async def test_of_models_that_are_not_there(rig) -> None:
    await every(rig.app.listen_url, rig, "GET", "/v1/models/nobody-s", 404)
    await every(rig.app.listen_url, rig, "POST", "/api/show", 404, b'{"model": "nobody-s"}')


@pytest.mark.parametrize("origins", [[], ["https://chat.example"], ["*"]])
async def test_of_what_a_browser_asks_first(start, origins: list[str]) -> None:
    async with start({"cors": origins}) as rig:
        for sent, echoed in SENT:
            extra = [] if sent is None else [f"{NAME}: {sent}"]
            raw = request(CHAT, b"", *PAGE, "connection: close", *extra, method="OPTIONS")
            answer = (await rig.raw(raw)).decode()
            assert answer.startswith(f"HTTP/1.1 {204 if origins else 404}")
            (found,) = re.findall(r"(?im)^x-request-id: (.*?)\r?$", answer)
            assert fits(found, echoed)


POLICY = {
    "limits": {"body_bytes": 1000, "body_s": 0.2, "max_n": 2},
    "clients": [keyed("a"), {**keyed("b"), "routes": [TEXT], "models": ["other"]}],
}


async def test_of_refusals_before_the_gate(start) -> None:
    async with start(POLICY) as rig:
        url, a, b = rig.app.listen_url, key("a"), key("b")
        long = chat(2000)
        for path in (CHAT, "/v1/messages/count_tokens", "/v1/messages", "/api/chat", "/api/show"):
            await every(url, rig, "POST", path, 401, b"{}")
            body = str(long).encode() * (30 if path == "/api/show" else 1)
            await every(url, rig, "POST", path, 413, body, **a)
            await every(url, rig, "POST", path, 415, b"{}", **a, **{"content-encoding": "x"})
        for path in ("/v1/models", "/v1/models/tiny", "/api/tags", "/api/ps"):
            await every(url, rig, "GET", path, 401)
        await every(url, rig, "POST", CHAT, 403, b"{}", **b)
        await every(url, rig, "POST", TEXT, 403, b'{"model": "tiny", "prompt": "a"}', **b)
        slow = request(CHAT, b"", "connection: close", *(f"{n}: {v}" for n, v in a.items()))
        async with rig.socket() as peer:
            await peer.send(slow.replace(b"content-length: 0", b"content-length: 9"))
            status, fields = await peer.head()
            assert status == 408
            assert fits(fields[NAME], None)
        rig.handled = len(rig.records)


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (400, b"\x16\x03\x01\x00\xa5\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nno colon\r\n\r\n"),
        (414, b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n"),
        (431, b"GET / HTTP/1.1\r\nx: " + b"a" * 17_000 + b"\r\n\r\n"),
        (431, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n"),
    ],
)
@pytest.mark.parametrize("plane", ["listen_url", "control_url"])
async def test_of_a_head_that_cannot_be_read(rig, plane: str, status: int, data: bytes) -> None:
    """Its own id cannot be read either."""
    port = int(getattr(rig.app, plane).rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    assert int(head.split()[1]) == (status if plane == "listen_url" else 400)
    (found,) = re.findall(r"(?im)^x-request-id: (.*?)\r?$", head)
    assert fits(found, None)
    assert re.findall(r"(?im)^server: (.*?)\r?$", head) == ["kvgate"]


def test_of_one_connection_too_many() -> None:
    head = face._too_many().partition(b"\r\n\r\n")[0].decode()
    (found,) = re.findall(r"(?m)^x-request-id: (.*?)\r?$", head)
    assert fits(found, None)


async def test_of_what_a_server_refused_or_broke(rig) -> None:
    url = rig.app.listen_url
    body = b'{"prompt": [1, 2], "max_tokens": 1}'
    rig.engine.queue += [refuse(400, "no")] * 3
    await every(url, rig, "POST", TEXT, 400, body)
    rig.engine.queue += [Behaviour(tokens=3, reset_at=0)] * 9
    async with rig.http.post(url + TEXT, data=body, headers={NAME: MINE}) as answer:
        assert answer.status >= 500
        assert answer.headers[NAME] == MINE
    rig.engine.queue.clear()
    await rig.ready()
    rig.handled = 4


async def test_of_refusals_by_the_gate(start) -> None:
    async with start({"queue": {"max_requests": 1}}) as rig:
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
        running = [asyncio.ensure_future(rig.post(TEXT, FULL)) for _ in range(2)]
        await rig.queued()
        url, body = rig.app.listen_url, b'{"prompt": [1], "max_tokens": 5000}'
        await every(url, rig, "POST", TEXT, 429, body)
        await every(url, rig, "POST", TEXT, 400, b'{"prompt": [1], "max_tokens": 5, "n": 99999}')
        hold.set()
        await asyncio.gather(*running)
        await rig.control("/drain", "POST")
        await every(url, rig, "POST", TEXT, 503, body)
        rig.handled = len(rig.records)


async def test_of_a_gate_without_a_server(start) -> None:
    async with start(quiet=False) as rig:
        await rig.engine.die()
        await rig.until(lambda: not rig.app.fleet.any_ready, 15)
        url = rig.app.listen_url
        await every(url, rig, "POST", CHAT, 503, json.dumps(chat()).encode())
        for path in ("/v1/models", "/api/tags"):
            await every(url, rig, "GET", path, 503)
        await every(rig.app.control_url, rig, "GET", "/readyz", 503)


async def test_of_the_control_plane(rig) -> None:
    url = rig.app.control_url
    app = next(one.app for one in rig.app.listeners.runners if hasattr(one, "app"))
    walked = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.method != "HEAD"
    }
    assert len(walked) >= 11
    for method, path in sorted(walked):
        if path not in {"/drain", "/page/{name}"}:
            await every(url, rig, method, path, 200)
            await every(url, rig, "PUT", path, 405)
    await every(url, rig, "GET", "/page/app.js", 200)
    await every(url, rig, "GET", "/page/nothing", 404)
    await every(url, rig, "GET", "/nowhere", 404)
    await every(url, rig, "GET", "/history?minutes=x", 400)
    await every(url, rig, "POST", "/reload", 403, **{"sec-fetch-site": "cross-site"})
    (rig.app.reload.file or "").write_text("{")  # type: ignore[union-attr]
    await every(url, rig, "POST", "/reload", 422)
    await every(url, rig, "POST", "/drain", 200)
