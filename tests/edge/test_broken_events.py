"""An error in a stream is an event of its own, also where the last one broke off in the middle."""

from __future__ import annotations

import gzip

import aiohttp
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
    told = got.body.rstrip(b"\n").split(b"\n\n")
    last = told[-2 if path == RESPONSES else -1].lstrip(b"\n")  # it has an end of its own behind it
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


def packed(data: bytes) -> bytes:
    head = HEAD + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(chunk(data[at : at + 20]) for at in range(0, len(data), 20))


async def test_a_stream_that_came_packed_is_not_written_into(rig) -> None:
    """Nobody asked for it, and words of ours behind its end would make a good answer unreadable."""
    answer = WHOLE + b"data: [DONE]\n\n"
    rig.engine.queue.append(Behaviour(raw=packed(gzip.compress(answer)) + b"0\r\n\r\n"))
    got = await rig.post(CHAT, BODIES[CHAT])  # the test's client unpacks it
    assert got.body == answer
    assert rig.records[0]["outcome"] == "completed"


async def test_a_packed_stream_that_breaks_off_breaks_visibly(rig) -> None:
    rig.engine.queue.append(Behaviour(raw=packed(gzip.compress(WHOLE)[:-9])))
    with pytest.raises(aiohttp.ClientPayloadError):
        await rig.post(CHAT, BODIES[CHAT])
    await rig.until(lambda: rig.records)
    assert rig.records[0]["outcome"] == "failed"


@pytest.mark.parametrize(
    "types",
    [
        b"Content-Type: Text/Event-Stream\r\n",
        b"content-type: text/event-stream\r\ncontent-type: application/json\r\n",
        b"content-type: application/json\r\ncontent-type: text/event-stream\r\n",
    ],
)
async def test_a_media_type_is_read_in_any_case(rig, types: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + types
    body = chunk(b'data: {"error":{"message":"full","code":400}}\n\n') + b"0\r\n\r\n"
    rig.engine.queue.append(Behaviour(raw=head + b"transfer-encoding: chunked\r\n\r\n" + body))
    assert (await rig.post(CHAT, BODIES[CHAT])).status == 400
