"""One request again and again, cut at a cap of ours: the operator is told. The report is A12."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.edge import truncations
from tests.edge.rig import API_CHAT, CHAT, GENERATE, TEXT, chat
from tests.fakes.behaviour import Behaviour

LOW = {"backend": {"max_output_tokens": 4, "default_output_tokens": 3}}
SENT: dict[str, Any] = {
    CHAT: chat(5, max_tokens=64_000),
    TEXT: {"prompt": "a b", "max_tokens": 64_000},
    GENERATE: {"text": "a b", "sampling_params": {"max_new_tokens": 64_000}},
    "/v1/messages": chat(5, max_tokens=64_000),
    API_CHAT: chat(5),
}


def told(logs: Any) -> list[tuple[str, int]]:
    """Client and count of each warning."""
    return [(one["client"], one["count"]) for one in logs if one["event"] == "repeated_truncation"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", SENT)
async def test_the_third_time_is_told_once(start, path: str, stream: bool) -> None:
    with capture_logs() as logs:
        async with start(LOW) as rig:
            for _ in range(5):
                got = await rig.post(path, SENT[path] | {"stream": stream})
                assert got.status == 200
                assert "x-kvgate-clamped-from" in got.headers
    assert told(logs) == [("anyone", 3)]


@pytest.mark.parametrize(
    ("bodies", "made"),
    [
        ([chat(5, max_tokens=4)] * 5, 9),  # the client's own cap
        ([chat(words, max_tokens=64_000) for words in range(1, 6)], 9),  # others each time
        ([chat(5, max_tokens=64_000)] * 5, 2),  # it ends by itself
        ([chat(5, max_tokens=64_000)] * 2, 9),
    ],
)
async def test_what_is_no_repetition_of_ours_is_not_told(start, bodies: Any, made: int) -> None:
    with capture_logs() as logs:
        async with start(LOW) as rig:
            rig.engine.default = Behaviour(tokens=made)
            for body in bodies:
                assert (await rig.post(CHAT, body)).status == 200
    assert told(logs) == []


async def test_it_is_forgotten_after_its_time_and_kept_for_so_many(start, monkeypatch) -> None:
    with capture_logs() as logs:
        async with start(LOW) as rig:
            memory = rig.app.deaths._truncations._seen
            monkeypatch.setattr(truncations, "MOST", 2)
            for words in range(1, 5):
                await rig.post(CHAT, chat(words, max_tokens=64_000))
            assert len(memory) == 2
            monkeypatch.setattr(truncations, "WITHIN_S", -1.0)
            for _ in range(4):
                await rig.post(CHAT, chat(4, max_tokens=64_000))
            assert [seen.times for seen in memory.values()] == [1, 1]
    assert told(logs) == []
