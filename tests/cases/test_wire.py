"""What comes in: ids of clients, framings, and bodies at their limits."""

from __future__ import annotations

import asyncio
import base64

import pytest

from tests.cases.world import ids, together
from tests.edge.rig import CHAT, GENERATE, TEXT, chat, request
from tests.fakes.behaviour import Behaviour


def text(prompt: int, cap: int, **fields: object) -> dict[str, object]:
    return ids(prompt, cap, stream=False, **fields)


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        (CHAT, [chat(3, rid="x", max_tokens=2)] * 2),
        (GENERATE, [{"text": "a", "rid": "x"}] * 2),
        (GENERATE, [{"text": ["a", "b"], "rid": ["x", "x"]}] * 2),
    ],
)
async def test_p01_ids_of_clients_never_meet_at_the_server(world, path: str, bodies) -> None:
    async with world() as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=1, hold=leave)
        asked = together(rig, path, bodies, headers={"x-override-rid": "x", "x-request-id": "x"})
        await rig.engine.arrived(2)
        leave.set()
        assert {got.status for got in await asyncio.gather(*asked)} == {200}
        assert len({str(seen.body["rid"]) for seen in rig.engine.seen}) == 2
        for seen in rig.engine.seen:
            assert not {"x-override-rid", "x-request-id"} & set(seen.headers)
            assert '"x"' not in str(seen.body["rid"])


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [("a-clean.id:7", True), ("x" * 10_000, False), ("with space", False), ('"}{', False)],
)
async def test_p03_an_id_is_echoed_only_if_it_can_do_no_harm(world, sent: str, echoed) -> None:
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=1)
        got = await rig.post(TEXT, text(3, 1, request_id=sent), headers={"x-request-id": sent})
        assert (got.headers["x-request-id"] == sent) == echoed
        assert rig.records[0]["client_request_id"] == (sent if echoed else None)
        assert len(rig.records[0]["id"]) == 28


async def test_j07_two_framings_are_refused_and_the_connection_ends(world) -> None:
    async with world() as rig:
        for fields in (
            ["transfer-encoding: invalid!!"],
            ["transfer-encoding: chunked"],
            ["content-length: 6"],
            ["transfer-encoding: gzip, chunked"],
        ):
            told = await rig.raw(request(TEXT, b"12345", *fields))
            assert told.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
        assert rig.engine.seen == []


async def test_j01_long_conversations_pass_and_over_the_limit_is_a_413(world) -> None:
    async with world(pool=3_000_000, context=2_900_000) as rig:
        rig.engine.default = Behaviour(tokens=1)
        body = {"messages": [{"role": "user", "content": "w" * 1_309_000}], "max_tokens": 5}
        assert (await rig.post(CHAT, body)).status == 200
        async with rig.socket() as peer:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\ncontent-length: {65 << 20}\r\n\r\n"
            await peer.send(head.encode())
            status, _ = await peer.head()  # before any of the body was sent
        assert status == 413
        assert rig.records[0]["code"] == "body_too_large"


async def test_j03_a_large_image_is_charged_as_an_image(world) -> None:
    """8 MB of base64 are neither text nor too large: the charge is the ceiling of one image."""
    url = (
        "data:image/png;base64,"
        + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 6_000_000).decode()
    )
    content = [{"type": "text", "text": "w"}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 5}
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=1)
        got = await rig.post(CHAT, body)
        assert got.status == 200
        assert int(got.headers["x-kvgate-prompt-tokens"]) < 32_000
