"""An error in a stream is an event of its own, also where the last one broke off in the middle."""

from __future__ import annotations

import pytest

from tests.edge.rig import API_CHAT, CHAT, TEXT, chat, lines
from tests.fakes.behaviour import Behaviour

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
CHOICE = b'{"index":0,"delta":{"content":"a"},"text":"a","finish_reason":null}'
WHOLE = b'data: {"choices":[%b]}\n\n' % CHOICE
BODIES = {
    CHAT: chat(stream=True),
    TEXT: {"prompt": "a", "stream": True},
    MESSAGES: chat(stream=True, max_tokens=5),
    RESPONSES: {"input": "a", "stream": True},
}
PARTS = {
    "in its key": b'data: {"cho',
    "in its text": b'data: {"choices":[{"index":0,"delta":{"content":"hal',
    "before its blank line": b'data: {"choices":[%b]}\n' % CHOICE,
    "long": b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 100_000,
}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("path", BODIES)
async def test_the_error_is_not_glued_to_half_an_event(
    rig, path: str, part: bytes, orderly: bool
) -> None:
    """Clients that skip what they cannot parse would else skip the error with it."""
    framing = b"transfer-encoding: chunked\r\n\r\n"
    body = chunk(WHOLE) + chunk(part) + (b"0\r\n\r\n" if orderly else b"")
    rig.engine.queue.append(Behaviour(raw=HEAD + framing + body))
    got = await rig.post(path, BODIES[path])
    assert got.body.startswith(WHOLE)
    last = got.body.rstrip(b"\n").rpartition(b"\n\n")[2]
    assert last.startswith((b'data: {"error"', b"event: error\ndata: {")), last
    assert b"upstream_error" in last


@pytest.mark.parametrize("part", [b"", *PARTS.values()], ids=["whole", *PARTS])
async def test_lines_of_ollama_have_no_empty_one_between(rig, part: bytes) -> None:
    """An empty line is an error to its Python client."""
    body = HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(WHOLE + part)
    rig.engine.queue.append(Behaviour(raw=body))
    told = lines((await rig.post(API_CHAT, chat())).body)
    assert told[-1]["code"] == "upstream_error"


async def test_after_a_whole_event_nothing_is_put_in(rig) -> None:
    body = HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(WHOLE)
    rig.engine.queue.append(Behaviour(raw=body))
    got = await rig.post(CHAT, BODIES[CHAT])
    assert got.body.startswith(WHOLE + b'data: {"error"')
