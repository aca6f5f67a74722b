"""What stands between the gate and the engine may say when to come back, or send elsewhere."""

from __future__ import annotations

import pytest

from tests.edge.rig import CHAT, GENERATE, chat
from tests.fakes.behaviour import Behaviour
from tests.fakes.profile import RankUse, Start


def busy(*headers: str, status: str = "429 Too Many Requests") -> Behaviour:
    lines = [f"HTTP/1.1 {status}", "content-length: 0", *headers]
    return Behaviour(raw="\r\n".join(lines).encode() + b"\r\n\r\n", close_connection=True)


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [("retry-after: 2", 1.95, 2.9), ("retry-after: soon", 0.95, 1.9), ("x-a: b", 0.95, 1.9)],
)
async def test_a_server_that_says_when_is_asked_again_then(
    rig, said: str, least: float, most: float
) -> None:
    rig.engine.queue.append(busy(said))
    assert (await rig.chat(max_tokens=2)).status == 200
    first, second = rig.engine.seen
    assert least <= second.arrived - first.arrived <= most


async def test_no_server_stops_everybody_for_an_hour(rig, monkeypatch) -> None:
    monkeypatch.setattr("gateway.upstream.answer.LONGEST_PAUSE_S", 1.5)
    rig.engine.queue.append(busy("retry-after: 3600", status="503 Service Unavailable"))
    assert (await rig.chat(max_tokens=2)).status == 200
    first, second = rig.engine.seen
    assert 1.45 <= second.arrived - first.arrived <= 2.5


@pytest.mark.parametrize("path", [CHAT, GENERATE])
@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_is_sent_to_a_server_past_the_gate(rig, path: str, stream: bool) -> None:
    """Clients follow: their next request would be at the GPU, and in no ledger."""
    rig.engine.default = busy("location: http://10.0.0.1/v1", status="307 Temporary Redirect")
    body = chat(stream=stream) if path == CHAT else {"text": "a", "stream": stream}
    got = await rig.post(path, body, allow_redirects=False)
    assert (got.status, got.code) == (502, "upstream_error")
    assert "location" not in got.headers
    assert "307" in got.error["message"]
    assert "10.0.0.1" not in got.error["message"]


def proxied(status: str, kind: str = "text/html") -> Behaviour:
    """What nginx says for an engine that it gets nothing from."""
    page = b"<html><h1>Bad Gateway</h1></html>"
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(page)}\r\n\r\n"
    return Behaviour(raw=head.encode() + page, close_connection=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_proxy_says_for_a_dead_engine_is_no_answer(rig, stream: bool) -> None:
    """The engine died and took the request with it, which goes to its next start; without a proxy it
    would as well."""
    rig.engine.queue.append(proxied("502 Bad Gateway"))
    rig.engine.start = Start.of(rig.engine.profile)
    got = await rig.chat(max_tokens=2, stream=stream)
    assert got.status == 200
    assert len(rig.engine.seen) == 2


@pytest.mark.parametrize(
    ("status", "code"), [("502 Bad Gateway", 502), ("504 Gateway Time-out", 504)]
)
async def test_where_the_engine_lives_a_client_is_told_in_its_own_words(rig, status, code) -> None:
    rig.engine.default = proxied(status)
    got = await rig.chat(max_tokens=2)
    assert got.status == code
    assert got.code == ("upstream_timeout" if code == 504 else "upstream_error")
    assert "proxy before the engine" in got.error["message"]
    assert b"<html>" not in got.body
    await rig.engine.until(lambda: len(rig.engine.aborts) == 1)  # it may be at work on it yet


async def test_what_a_proxy_gave_up_counts_until_the_engine_shows_it_gone(rig, monkeypatch) -> None:
    """The end of the proxy's page is not the end of the request."""
    at_work = [RankUse(running=1, used=40, total=40)]
    looks: list[int] = []
    monkeypatch.setattr(rig.engine, "use", lambda: looks.append(1) or at_work)
    rig.engine.queue.append(proxied("504 Gateway Time-out"))
    assert (await rig.chat(max_tokens=20)).status == 504
    await rig.engine.until(lambda: len(rig.engine.aborts) == 1)
    looks.clear()
    await rig.until(lambda: len(looks) > 3, 5)
    assert rig.reserved > 0
    at_work[:] = [RankUse()]
    await rig.until(lambda: rig.reserved == 0, 5)


async def test_what_the_engine_says_itself_passes(rig) -> None:
    rig.engine.default = proxied("502 Bad Gateway", "application/json; charset=utf-8")
    assert (await rig.chat(max_tokens=2)).body == b"<html><h1>Bad Gateway</h1></html>"
