"""One worker's gate by itself: when it takes connections."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest

from gateway.app import App
from gateway.seat import Seat
from tests.edge.rig import READY_S, written
from tests.fakes.sglang import FakeSGLang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def patient(folder: Path, engine: FakeSGLang, patience_s: float) -> AsyncIterator[App]:
    """It has the port of a socket that is bound beside it, as the supervisor's is."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        source = written(folder, engine.url, {})
        seat = Seat(0, 2, held.getsockname(), folder / "control", patience_s=patience_s)
        app = App(source.load(), source, seat)
        try:
            await app.start()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*seat.listen)
            yield app
        finally:
            if not app.draining.begun:
                await app.stop()


async def status(app: App) -> int:
    """Of an answer, once there is one."""
    async with asyncio.timeout(READY_S), aiohttp.ClientSession() as http:
        while not app.listen_url:
            await asyncio.sleep(0.01)
        body = {"prompt": "x", "max_tokens": 1}
        async with http.post(app.listen_url + "/v1/completions", json=body) as answer:
            return answer.status


async def test_one_that_is_started_anew_takes_connections_once_it_can_serve_them(tmp_path) -> None:
    async with FakeSGLang() as engine:
        await engine.die()
        async with patient(tmp_path, engine, 60.0) as app:
            assert not app.listen_url
            await engine.revive()
            assert await status(app) == 200


async def test_where_no_server_is_there_it_takes_them_after_a_while_to_say_so(tmp_path) -> None:
    async with FakeSGLang() as engine:
        await engine.die()
        async with patient(tmp_path, engine, 0.2) as app:
            assert await status(app) == 503


async def test_one_that_still_waits_can_be_stopped(tmp_path) -> None:
    async with FakeSGLang() as engine:
        await engine.die()
        async with patient(tmp_path, engine, 60.0) as app:
            async with asyncio.timeout(5):
                await app.stop()
            assert not app.listen_url
