"""What stands between the gate and the engine may say when to come back, or send elsewhere."""

from __future__ import annotations

import pytest

from tests.edge.rig import CHAT, GENERATE, chat
from tests.fakes.behaviour import Behaviour


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
