"""A page that made its own name mean 127.0.0.1 reads neither the control plane nor a gate without keys."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from gateway.edge.cors import Cors
from gateway.page.guard import own_names_only
from gateway.policy.hosts import on_loopback
from tests.edge.rig import API_CHAT, CHAT, chat, written
from tests.edge.test_callers import key, keyed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

EVIL = "evil.example"
OURS = (
    "127.0.0.1",
    "127.0.0.1:8081",
    "localhost",
    "LocalHost:9",
    "kv.localhost:8081",
    "[::1]:8081",
    socket.gethostname(),
)
THEIRS = (
    EVIL,
    f"{EVIL}:8081",
    "localhost.evil.example",
    "127.0.0.1.nip.io:8081",
    f"x.{socket.gethostname()}",
    "u@localhost",
    "",
)


async def asked(rig: Any, path: str, host: str, method: str = "GET") -> tuple[int, str]:
    async with rig.http.request(
        method, rig.app.control_url + path, headers={"host": host}
    ) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    "path", ["/status", "/", "/metrics", "/events", "/history", "/healthz", "/page/page.js"]
)
async def test_the_control_plane_is_not_read_by_a_name_of_a_strangers(rig, path: str) -> None:
    for host in THEIRS:
        status, text = await asked(rig, path, host)
        assert (status, "control_hosts" in text) == (403, True), host
        assert EVIL not in text


async def test_nor_drained_by_one(rig) -> None:
    assert (await asked(rig, "/drain", EVIL, "POST"))[0] == 403
    assert (await rig.status())["state"] == "ready"


async def test_every_name_of_this_machine_and_no_name_is_answered(rig) -> None:
    for host in OURS:
        assert (await asked(rig, "/status", host))[0] == 200, host
    port = int(rig.app.control_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.0 200")
    writer.close()


async def test_names_that_the_policy_lists_are_answered_and_no_others(start) -> None:
    async with start({"control_hosts": ["gpu.example", "*.ops.example"]}) as rig:
        for host in ("gpu.example", "GPU.example:8081", "gpu.example.", "a.ops.example:1"):
            assert (await asked(rig, "/status", host))[0] == 200, host
        for host in (EVIL, "x.gpu.example", "ops.example"):
            assert (await asked(rig, "/status", host))[0] == 403, host


async def test_who_lists_a_name_need_not_start_anew(rig, tmp_path: Path) -> None:
    assert (await asked(rig, "/status", "gpu.example"))[0] == 403
    written(tmp_path, rig.engine.url, {"control_hosts": "gpu.example", "limits": {"media": "data"}})
    answer = (await rig.control("/reload", "POST")).json()
    assert (answer["changed"], answer["needs_restart"]) == (["limits.media", "control_hosts"], [])
    assert (await asked(rig, "/status", "gpu.example"))[0] == 200


@asynccontextmanager
async def guarded(site: Any) -> AsyncIterator[None]:
    app = web.Application(middlewares=[own_names_only(tuple)])

    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app.router.add_get("/", ok)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await site(runner).start()
        yield
    finally:
        await runner.cleanup()


async def test_a_unix_socket_has_no_names(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    async with (
        guarded(lambda runner: web.UnixSite(runner, path)),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as http,
        http.get("http://worker/") as answer,
    ):
        assert answer.status == 200


class Came:
    """A connection that came to an address."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def get_extra_info(self, _: str) -> Any:
        return self.name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        (("127.0.0.1", 1), True),
        (("127.5.0.1", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        (("10.1.2.3", 1), False),
        (("::ffff:10.1.2.3", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), False),
        ("/run/socket", False),
        ("", False),
        (None, False),
    ],
)
def test_only_what_comes_to_loopback_is_looked_at(name: Any, near: bool) -> None:
    assert on_loopback(Came(name)) is near  # type: ignore[arg-type]
    assert on_loopback(None) is False


# ---- the data plane ----------------------------------------------------------------------------


def of(host: str, origin: str | None = None) -> dict[str, str]:
    return {"host": host, "origin": f"http://{host}" if origin is None else origin}


@pytest.mark.parametrize("path", [CHAT, API_CHAT, "/v1/messages", "/v1/models", "/nothing"])
async def test_a_rebound_page_is_refused_in_words(rig, path: str) -> None:
    got = await rig.post(path, chat(max_tokens=5), headers=of(f"{EVIL}:8080"))
    assert (got.status, got.code if path != "/v1/messages" else "forbidden") == (403, "forbidden")
    assert b"`cors`" in got.body
    assert EVIL.encode() not in got.body
    assert rig.engine.seen == []
    assert rig.records == []


@pytest.mark.parametrize(
    "headers",
    [
        {"host": EVIL},  # a proxy that keeps the name, and every SDK
        of("localhost:8080"),
        of("127.0.0.1:8080"),
        of("[::1]:8080"),
        of("app.localhost:8080"),
        of(socket.gethostname().lower()),
        of("localhost:8080", "https://other.example"),  # a page of elsewhere: it is shown nothing
        of(EVIL, "null"),
        of(EVIL, f"http://{EVIL}:81"),
    ],
)
async def test_what_is_no_rebound_page_is_served(rig, headers: dict[str, str]) -> None:
    assert (await rig.post(CHAT, chat(max_tokens=5), headers=headers)).status == 200


@pytest.mark.parametrize(
    ("came", "refused"), [("127.0.0.1", True), ("::1", True), ("10.1.2.3", False)]
)
def test_names_of_a_gate_that_a_network_reaches_are_the_networks(came: str, refused: bool) -> None:
    asked = SimpleNamespace(headers=of(EVIL), transport=Came((came, 8080)))
    assert (Cors((), keyed=False).rebound(asked) is not None) is refused  # type: ignore[arg-type]


async def test_a_page_that_the_policy_lists_is_served(start) -> None:
    for allowed in (f"http://{EVIL}", "*"):
        async with start({"cors": allowed}) as rig:
            assert (await rig.post(CHAT, chat(max_tokens=5), headers=of(EVIL))).status == 200


async def test_where_all_have_keys_a_page_is_met_by_these(start) -> None:
    async with start({"clients": [keyed("a")]}) as rig:
        assert (await rig.post(CHAT, chat(max_tokens=5), headers=of(EVIL))).status == 401
        assert (
            await rig.post(CHAT, chat(max_tokens=5), headers={**of(EVIL), **key("a")})
        ).status == 200


@pytest.mark.parametrize(
    "other",
    [
        {"name": "anyone"},
        {"name": "b", "address": "127.0.0.1"},
        {"name": "b", "header": {"name": "x-team", "value": "b"}},
    ],
)
async def test_who_needs_no_key_is_guarded_though_others_have_some(
    start, other: dict[str, Any]
) -> None:
    """A page sends any header to the origin that it is of, and comes from this machine's address."""
    async with start({"clients": [keyed("a"), other]}) as rig:
        headers = {**of(EVIL), "x-team": "b"}
        assert (await rig.post(CHAT, chat(max_tokens=5), headers=headers)).status == 403
