"""The data plane over TLS: what it shows, what it takes, and how the certificate changes.

The two self-signed certificates beside this file are for 127.0.0.1, last a hundred years, and
protect nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from gateway.policy.certificate import problems
from gateway.policy.schema import Tls
from tests.edge.rig import CHAT, chat, written
from tests.fakes.behaviour import Behaviour

if TYPE_CHECKING:
    from tests.edge.rig import Rig

SHIPPED = Path(__file__).parent / "certificates"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """A policy's `tls`, with files that a test may replace."""
    for name in ("first.pem", "first.key"):
        shutil.copy(SHIPPED / name, tmp_path)
    return {"cert": str(tmp_path / "first.pem"), "key": str(tmp_path / "first.key")}


def trusting(name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=SHIPPED / f"{name}.pem")


async def shown(rig: Rig, name: str | None = "localhost") -> str:
    """The name on the certificate; `name` is what the client asks for (None: nothing)."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # uvloop and asyncio send no name for an empty one.
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", rig.port, ssl=context, server_hostname=name or ""
    )
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    del reader
    return next(one for one in ("first", "second") if f"{one}.invalid".encode() in found)


async def test_requests_pass_and_plain_http_does_not(start, files) -> None:
    async with start({"tls": files}) as rig:
        assert rig.app.listen_url.startswith("https://127.0.0.1:")
        assert rig.app.control_url.startswith("http://")
        url = rig.app.listen_url + CHAT
        async with rig.http.post(url, json=chat(stream=True), ssl=trusting("first")) as answer:
            assert answer.status == 200
            assert b"[DONE]" in await answer.read()
        with pytest.raises(aiohttp.ClientError):
            await rig.http.get(f"http://127.0.0.1:{rig.port}/")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await rig.http.get(rig.app.listen_url, ssl=trusting("second"))
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        async with rig.http.get(rig.app.listen_url, ssl=old) as answer:
            assert answer.status == 200


async def test_a_new_certificate_holds_for_new_connections(start, files, tmp_path: Path) -> None:
    async with start({"tls": files}) as rig:
        hold = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=3, hold=hold, hold_at=1))
        url = rig.app.listen_url + CHAT
        running = asyncio.ensure_future(
            rig.http.post(url, json=chat(stream=True), ssl=trusting("first"))
        )
        await rig.engine.arrived()
        assert [await shown(rig, name) for name in ("localhost", None)] == ["first", "first"]

        shutil.copy(SHIPPED / "second.pem", files["cert"])  # and not its key, yet
        got = await rig.control("/reload", "POST")
        (problem,) = got.json()["problems"]
        assert (problem["path"], problem["wrong"]) == ("tls.cert", "does not belong to the key")
        assert await shown(rig) == "first"

        shutil.copy(SHIPPED / "second.key", files["key"])
        assert (await rig.control("/reload", "POST")).status == 200
        assert [await shown(rig, name) for name in ("localhost", None)] == ["second", "second"]
        hold.set()
        async with await running as answer:
            assert b"[DONE]" in await answer.read()

        written(tmp_path, rig.engine.url, {})
        got = await rig.control("/reload", "POST")
        assert got.json()["needs_restart"] == ["tls"]
        assert await shown(rig) == "second", "a socket that speaks TLS goes on doing so"


async def test_a_renewed_certificate_is_among_the_files_that_are_watched(start, files) -> None:
    async with start({"tls": files}) as rig:
        source = rig.app.reload._source
        before = source.stamps(rig.app.policy)
        shutil.copy(SHIPPED / "second.pem", files["cert"])
        after = source.stamps(rig.app.policy)
        assert [str(path) for path in before if before[path] != after[path]] == [files["cert"]]


def test_a_key_with_a_password_is_told_and_asks_nobody_at_the_terminal() -> None:
    (found,) = problems(Tls(cert=SHIPPED / "first.pem", key=SHIPPED / "locked.key"))
    assert found.wrong == "cannot be used: the key is locked with a password"
