"""Fuzz from the client's side: bodies, header fields, raw bytes on the data port."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.edge.dialects import guard
from tests.edge.rig import API_CHAT, API_GENERATE, CHAT, GENERATE, TEXT, request
from tests.fakes.typed import MESSAGES, RERANK, RESPONSES, SCORE
from tests.fuzz import shapes
from tests.fuzz.host import EXAMPLES, Host, fuzz, hosted

CAPS = {
    CHAT: ("max_tokens", "max_completion_tokens"),
    TEXT: ("max_tokens",),  # the engine knows no other here (0.5.6-0.5.23)
    MESSAGES: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
    API_CHAT: ("max_tokens", "max_completion_tokens"),
    API_GENERATE: ("max_tokens",),
}

UNNAMED = frozenset({MESSAGES, SCORE, RERANK})


def caps_of(path: str, body: dict[str, Any]) -> list[Any]:
    """Every output cap in a body that went to the server."""
    if path == GENERATE:
        params = body["sampling_params"]
        many = params if isinstance(params, list) else [params]
        return [one["max_new_tokens"] for one in many]
    return [body[name] for name in CAPS.get(path, ()) if name in body]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_no_body_is_a_5xx_and_what_goes_on_is_what_was_decided(
    tmp_path, monkeypatch, examples: int
) -> None:
    async def ask(host: Host, path: str, data: bytes) -> None:
        got = await host.rig.post(path, data)
        assert got.status in (200, 400, 413), (got.status, got.body)
        assert got.status == 200 or got.code
        for body in host.engine.bodies:
            caps = caps_of(path, body)
            assert len(caps) == 1 or path == GENERATE or path not in CAPS
            assert all(type(cap) is int and 0 <= cap <= host.last.cap_forwarded for cap in caps)
            rid = body.get("request_id" if path == RESPONSES else "rid")
            rids = rid if isinstance(rid, list) else [rid]
            assert path in UNNAMED or all(one.startswith(host.last.id) for one in rids)
            assert path not in UNNAMED or rid is None
            assert not set(body) & (set(guard.STRIPPED) - {"rid"})
            assert not any(body.get(name) is not None for name in guard.REFUSED)

    with hosted(tmp_path, monkeypatch) as host:
        fuzz(shapes.raw_bodies(), examples, lambda example: host.check(ask(host, *example)))
        assert host.rig.app.journal.totals.to_dict()["completed"] > 0, "some of them get through"


@pytest.mark.parametrize("examples", EXAMPLES)
def test_no_header_is_a_5xx(tmp_path, monkeypatch, examples: int) -> None:
    async def ask(host: Host, fields: list[tuple[str, str]]) -> None:
        lines = [f"{name}: {value}" for name, value in fields]
        async with host.rig.socket() as peer:
            await peer.send(request(TEXT, {"prompt": [1, 2], "max_tokens": 1}, *lines))
            status, _ = await peer.head()
            if status == 100:
                status, _ = await peer.head()
            assert status in (200, 400, 413, 415, 417, 431), status

    with hosted(tmp_path, monkeypatch) as host:
        fuzz(shapes.FIELDS, examples, lambda fields: host.check(ask(host, fields)))
        assert host.rig.app.journal.totals.to_dict()["completed"] > 0


@pytest.mark.parametrize("examples", EXAMPLES)
def test_no_bytes_on_the_data_port_are_a_5xx(tmp_path, monkeypatch, examples: int) -> None:
    async def send(host: Host, data: bytes) -> None:
        async with host.rig.socket() as peer:
            await peer.send(data)
            peer.writer.write_eof()
            async with asyncio.timeout(8):
                told = await peer.rest()
        for line in told.split(b"\r\n"):
            assert not line.startswith((b"HTTP/1.1 5", b"HTTP/1.0 5")), told

    with hosted(tmp_path, monkeypatch) as host:
        fuzz(shapes.raw_requests(), examples, lambda data: host.check(send(host, data)))
