"""A server on which the cap does not bind says so by its first long answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.edge.overruns import SLACK
from tests.edge.rig import CHAT, chat
from tests.fakes.behaviour import Behaviour

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def answer(tokens: int, *, usage: bool) -> bytes:
    """A stream of so many tokens, whatever was asked for."""
    piece = {"index": 0, "delta": {"content": "w"}, "finish_reason": None}
    events: list[Any] = [{"choices": [piece]}] * (1 if usage else tokens)
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    if usage:
        counted = {"prompt_tokens": 9, "completion_tokens": tokens}
        events.append({"choices": [], "usage": counted})
    lines = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return SSE + lines + b"data: [DONE]\n\n"


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize(("over", "told"), [(SLACK, 0), (SLACK + 1, 1)])
async def test_more_than_the_cap_is_told_once_a_minute(
    start, usage: bool, over: int, told: int
) -> None:
    with capture_logs() as logs:
        async with start() as rig:
            rig.engine.default = Behaviour(raw=answer(5 + over, usage=usage))
            for _ in range(3):
                got = await rig.post(CHAT, chat(5, stream=True, max_tokens=5))
                assert b"[DONE]" in got.body, "the answer itself passes as it is"
    found = [one for one in logs if one["event"] == "cap_not_kept"]
    assert len(found) == told
    for one in found:
        assert (one["backend"], one["cap"], one["output_tokens"]) == ("gpu0", 5, 5 + over)


async def test_several_sequences_have_the_cap_each(start) -> None:
    with capture_logs() as logs:
        async with start() as rig:
            body = {"prompt": ["a", "b"], "n": 2, "max_tokens": SLACK + 9}
            assert (await rig.post("/v1/completions", body)).status == 200
            rig.engine.default = Behaviour(tokens=1 << 20)
            assert (await rig.post("/v1/completions", body)).status == 200
            assert rig.records[0]["output_tokens"] == 4 * (SLACK + 9)
    assert [one for one in logs if one["event"] == "cap_not_kept"] == []
