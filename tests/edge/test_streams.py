"""Streams: what comes is what goes, at once, and a broken answer never looks whole."""

from __future__ import annotations

import asyncio
import json
import re

import aiohttp
import pytest

from gateway.edge import relay
from tests.edge.rig import CHAT, GENERATE, TEXT, chat, events, request
from tests.fakes.behaviour import Behaviour, refuse

KIB, MIB = 1 << 10, 1 << 20
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
USAGE = re.compile(rb'data: [^\n]*"choices": \[\], "usage"[^\n]*\n\n')

BODIES = {
    CHAT: chat(stream=True, max_tokens=5),
    TEXT: {"prompt": ["a b", "c"], "n": 2, "stream": True, "max_tokens": 5},
    GENERATE: {"text": "a b c", "stream": True, "sampling_params": {"max_new_tokens": 5}},
}


async def _directly(rig, path: str, body: bytes) -> bytes:
    """The engine's own stream for the very request it got from the gate."""
    async with rig.http.post(rig.engine.url + path, data=body) as answer:
        return await answer.read()


def whole_chunks(data: bytes) -> bytes:
    """A chunked body of one piece."""
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])
@pytest.mark.parametrize("asked", [False, True])
async def test_a_stream_is_the_servers_own_byte_for_byte_less_the_usage_we_asked_for(
    rig, path: str, asked: bool
) -> None:
    """Class H and M: usage is always asked for, and left out where the client did not."""
    body = BODIES[path] | ({"stream_options": {"include_usage": True}} if asked else {})
    got = await rig.post(path, body)
    sent = await _directly(rig, path, rig.engine.seen[0].received.body)
    usage = USAGE.findall(sent)
    assert len(usage) == (0 if path == GENERATE else 1)
    assert got.body == (sent if asked else USAGE.sub(b"", sent))
    record = rig.records[0]
    assert record["outcome"] == "completed"
    sequences = 4 if path == TEXT else 1
    assert record["output_tokens"] == 5 * sequences
    assert record["usage_prompt_tokens"] == record["prompt_tokens"]
    assert record["ttft_ms"] is not None
    assert 0 < record["ttft_expected_ms"] <= record["ttft_bound_ms"], "beside what was expected"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", ["a b c", ["a b c", "d e"]])
async def test_each_sequence_of_generate_tells_its_prompt_and_it_counts_once(
    rig, stream: bool, text: str | list[str]
) -> None:
    body = {"text": text, "stream": stream, "sampling_params": {"n": 4, "max_new_tokens": 3}}
    assert (await rig.post(GENERATE, body)).status == 200
    record = rig.records[0]
    prompt = 3 if isinstance(text, str) else 5
    assert record["prompt_tokens"] == record["usage_prompt_tokens"] == prompt
    assert record["output_tokens"] == 12 * (1 if isinstance(text, str) else 2)
    assert record["kv_used"] == 4 * prompt + record["output_tokens"]
    metrics = (await rig.control("/metrics")).body.decode()
    assert not re.search(r"^kvgate_undercounted_total\{.*\} [1-9]", metrics, re.MULTILINE)


async def test_continuous_usage_of_a_client_that_asked_for_it_passes(rig) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    got = await rig.chat(stream=True, max_tokens=3, stream_options=options)
    assert got.body == await _directly(rig, CHAT, rig.engine.seen[0].received.body)
    assert rig.records[0]["output_tokens"] == 3


async def test_a_stream_has_one_framing_and_the_headers_against_buffering(rig) -> None:
    """Class H and J."""
    answer = await rig.raw(request(CHAT, BODIES[CHAT], "connection: close"))
    head, _, _ = answer.partition(b"\r\n\r\n")
    fields = [line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
    assert fields.count(b"transfer-encoding") == 1
    assert b"content-length" not in fields
    assert len(fields) == len(set(fields)), "no header twice"
    assert b"x-accel-buffering: no" in head.lower()
    assert b"cache-control: no-cache" in head.lower()
    assert b"content-encoding" not in fields
    assert answer.endswith(b"0\r\n\r\n")


async def test_an_answer_in_one_piece_has_one_framing(rig) -> None:
    answer = await rig.raw(request(CHAT, chat(max_tokens=3), "connection: close"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.lower().count(b"content-length") == 1
    assert b"transfer-encoding" not in head.lower()
    assert json.loads(body)["choices"][0]["finish_reason"] == "length"


async def test_an_http_1_0_client_gets_a_plain_stream_that_ends_with_the_connection(rig) -> None:
    data = request(CHAT, BODIES[CHAT]).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    answer = await rig.raw(data)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert body.endswith(b"data: [DONE]\n\n")
    assert events(body)[-1] == "[DONE]"


@pytest.mark.parametrize("asked", [False, True])
async def test_each_event_is_forwarded_when_it_comes(rig, asked: bool) -> None:
    """Class H: nothing is held back until more comes; one read upstream is one write here."""
    steps = [asyncio.Event() for _ in range(3)]
    hold = {"hold": steps[0], "hold_at": 1}
    rig.engine.default = Behaviour(tokens=4, **hold)
    options = {"stream_options": {"include_usage": True}} if asked else {}
    async with rig.socket() as peer:
        await peer.send(request(CHAT, chat(stream=True, max_tokens=4, **options)))
        status, fields = await peer.head()
        assert status == 200
        assert "x-kvgate-max-tokens" in fields
        got = b""
        async with asyncio.timeout(2):
            while got.count(b"data: ") < 2:  # the role and the first token; the engine waits
                got += await peer.reader.read(1 << 16)
        assert not steps[0].is_set()
        assert rig.engine.seen[0].events == 1
        ledger = rig.app.gate.view().pools[0]
        assert ledger.prefill.reserved == 0, "the first token ends the prefill"
        assert ledger.kv.used in (21, 22), "and each token makes the reservation a fact"
        steps[0].set()
        async with asyncio.timeout(2):
            while b"[DONE]" not in got:
                got += await peer.reader.read(1 << 16)


@pytest.mark.parametrize("strip", [False, True])
async def test_one_line_of_two_megabytes_passes(rig, strip: bool) -> None:
    """Class H: nothing is read by lines."""
    line = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * (2 * MIB) + b'"}}]}\n\n'
    data = line + b"data: [DONE]\n\n"
    head = STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n"
    rig.engine.default = Behaviour(raw=head + whole_chunks(data))
    options = {} if strip else {"stream_options": {"include_usage": True}}
    got = await rig.chat(stream=True, **options)
    assert got.body == data
    assert rig.records[0]["outcome"] == "completed"


async def test_a_stream_without_a_newline_passes_in_flat_memory(rig) -> None:
    """Class H: the tap gives up, the relay does not. 24 MiB here; the bound does not depend on it."""
    piece = b"x" * (256 * KIB)
    pieces = 96
    head = STREAM_HEAD + b"content-length: %d\r\n\r\n" % (len(piece) * pieces)
    rig.engine.default = Behaviour(raw=head + piece * pieces)
    taps = []
    make = relay.SseTap

    class Watched(make):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            taps.append(self)

    relay.SseTap = Watched
    size = held = 0
    try:
        async with rig.http.post(rig.app.listen_url + CHAT, json=BODIES[CHAT]) as answer:
            async for data in answer.content.iter_any():
                size += len(data)
                held = max(held, *(len(tap._pending) + len(tap._tail) for tap in taps))
    finally:
        relay.SseTap = make
    assert size >= len(piece) * pieces
    assert held <= MIB
    assert rig.records[0]["output_tokens"] in (None, 0)


async def test_a_compressed_answer_passes_as_it_came(rig) -> None:
    """Class J: the header and the bytes agree, and identity was asked for."""
    rig.engine.default = Behaviour(gzip=True)
    got = await rig.chat(max_tokens=3)  # the test's client unpacks it
    assert got.json()["choices"]
    assert rig.engine.seen[0].headers["accept-encoding"] == "identity"
    assert rig.records[0]["outcome"] == "completed"


async def test_a_usage_tap_that_fails_costs_nothing(rig) -> None:
    """Class M: an answer too large to look into is relayed whole, its usage unknown."""
    rig.engine.default = Behaviour(tokens=3, pad=9 * MIB)
    got = await rig.chat(max_tokens=3)
    assert len(got.body) > 9 * MIB
    assert rig.records[0]["outcome"] == "completed"
    assert rig.records[0]["output_tokens"] in (None, 0)


# ---- answers that break ----------------------------------------------------------------------


def assert_one_error_and_no_end(body: bytes, before: int) -> None:
    found = events(body)
    assert len(found) == before + 1, found
    error = found[-1]["error"]
    assert (error["type"], error["code"]) == ("server_error", "upstream_error")
    assert b"[DONE]" not in body


@pytest.mark.parametrize("how", ["reset_at", "close_at"])
async def test_a_stream_that_breaks_gets_one_error_in_band_and_no_end_mark(rig, how: str) -> None:
    """Class H: no made-up ending, and the record says it failed. Class G: the ledger is zero."""
    rig.engine.default = Behaviour(tokens=9, gap_s=0.01, **{how: 3})
    got = await rig.chat(stream=True, max_tokens=9)
    assert got.status == 200
    assert_one_error_and_no_end(got.body, before=4)  # the role and three tokens
    assert rig.records[0]["outcome"] == "failed"
    assert len(rig.engine.seen) == 1, "never sent again after a byte"


@pytest.mark.parametrize(
    "framing", ["content-length: {}\r\n\r\n", "connection: close\r\n\r\n", "chunked"]
)
async def test_a_stream_that_ends_in_good_order_without_its_mark_is_not_complete(
    rig, framing: str
) -> None:
    data = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n' * 3
    if framing == "chunked":
        raw = STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + whole_chunks(data)
    else:
        raw = STREAM_HEAD + framing.format(len(data)).encode() + data
    rig.engine.default = Behaviour(raw=raw)
    got = await rig.chat(stream=True)
    assert got.body.startswith(data)
    assert_one_error_and_no_end(got.body, before=3)
    assert rig.records[0]["outcome"] == "failed"


async def test_an_empty_stream_is_not_complete(rig) -> None:
    rig.engine.default = Behaviour(raw=STREAM_HEAD + b"content-length: 0\r\n\r\n")
    got = await rig.chat(stream=True)
    assert_one_error_and_no_end(got.body, before=0)


async def test_an_error_of_the_engine_in_the_stream_passes_as_it_came(rig) -> None:
    """The client sees the engine's own words, once; ours are not added."""
    rig.engine.default = Behaviour(tokens=9, error=(500, "boom"), error_at=2)
    got = await rig.chat(stream=True, max_tokens=9)
    found = events(got.body)
    assert [event["error"]["message"] for event in found if "error" in event] == ["boom"]
    assert rig.records[0]["outcome"] == "failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_breaks_before_it_answers_is_a_502(rig, stream: bool) -> None:
    rig.engine.default = Behaviour(reset_at=0)
    got = await rig.chat(stream=stream)
    assert (got.status, got.code) == (502, "upstream_error")
    assert got.headers["x-kvgate-error-source"] == "upstream"
    assert rig.records[0]["outcome"] == "failed"
    assert len(rig.engine.seen) <= 2, "once more at most, where the connection had been kept"


async def test_half_an_answer_breaks_visibly(rig) -> None:
    """Class H: half a JSON body must not look like a whole one."""
    rig.engine.default = Behaviour(tokens=9, reset_at=1)
    with pytest.raises(aiohttp.ClientError):
        await rig.chat(max_tokens=9)
    assert rig.records[0]["outcome"] == "failed"


async def test_half_an_answer_without_a_length_breaks_visibly(rig) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    rig.engine.default = Behaviour(raw=head + b'5\r\n{"a":\r\n')
    with pytest.raises(aiohttp.ClientError):
        await rig.chat(max_tokens=9)
    await rig.ready()
    body = await rig.raw(request(CHAT, chat(max_tokens=9), "connection: close"))
    assert b'{"a":' in body
    assert not body.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 404, 422, 500])
async def test_errors_of_the_engine_keep_their_status_and_body(
    rig, status: int, stream: bool
) -> None:
    """Class J: unwrapped, with a length that is right, and marked as the engine's."""
    rig.engine.default = refuse(status, "no such thing")
    got = await rig.chat(stream=stream)
    assert got.status == status
    assert got.json()["message"] == "no such thing"
    assert int(got.headers["content-length"]) == len(got.body)
    assert got.headers["x-kvgate-error-source"] == "upstream"
    record = rig.records[0]
    assert record["outcome"] == ("failed" if status >= 500 else "completed")
    assert record["source"] == "upstream"
    assert rig.app.fleet.any_ready, "a body the engine refuses says nothing of its health"


@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])
async def test_a_first_event_that_is_an_error_becomes_its_real_status(rig, path: str) -> None:
    """Since 0.5.12 refusals of the scheduler come as 200 with an error inside."""
    event = {"error": {"object": "error", "message": "too long", "type": "BAD", "code": 400}}
    if path == GENERATE:
        reason = {"type": "abort", "status_code": 400, "message": "too long"}
        event = {"text": "", "meta_info": {"id": "x", "finish_reason": reason}}
    data = b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"
    raw = STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + whole_chunks(data)
    rig.engine.default = Behaviour(raw=raw)
    got = await rig.post(path, BODIES[path])
    assert got.status == 400
    assert got.error["message"] == "too long"
    assert got.error["code"] == 400
    assert got.headers["x-kvgate-error-source"] == "upstream"
    assert rig.records[0]["upstream_status"] == 400


async def test_a_first_event_error_on_a_connection_that_breaks_still_has_its_status(rig) -> None:
    event = {"error": {"message": "broken", "code": 500}}
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    head = STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n"
    rig.engine.default = Behaviour(raw=head + b"%x\r\n%b\r\n" % (len(data), data))
    got = await rig.chat(stream=True)
    assert (got.status, got.error["message"]) == (500, "broken")
    assert rig.records[0]["outcome"] == "failed"


async def test_an_event_stream_nobody_asked_for_is_relayed(rig) -> None:
    data = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    head = STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n"
    rig.engine.default = Behaviour(raw=head + whole_chunks(data))
    got = await rig.chat()
    assert got.body == data


# ---- readers that are slow -------------------------------------------------------------------


async def test_a_reader_that_does_not_read_stops_the_server_and_grows_nothing(rig) -> None:
    """Class H: drain is awaited on every side, so the kernel's window does the work."""
    rig.engine.default = Behaviour(tokens=2000, pad=16 * KIB)  # 32 MiB in all
    async with rig.socket() as peer:
        peer.writer.transport.pause_reading()
        await peer.send(request(CHAT, chat(stream=True, max_tokens=2000)))
        seen = await rig.engine.arrived()
        quiet_since = -1
        while quiet_since != seen.events:  # until the engine has come to a stand
            quiet_since = seen.events
            await asyncio.sleep(0.15)
        assert 0 < seen.events < 1500, "the engine could push everything into somebody's memory"
        (running,) = rig.app.reaper._running.values()
        assert running.reply is not None
        assert running.reply.unread <= MIB
        peer.writer.transport.resume_reading()
        size = 0
        async with asyncio.timeout(10):
            while data := await peer.reader.read(1 << 20):
                size += len(data)
                if data.endswith(b"0\r\n\r\n"):
                    break
    assert size > 2000 * 16 * KIB
    assert rig.records[0]["outcome"] == "completed"


async def test_a_reader_that_never_reads_again_is_given_up(rig, monkeypatch) -> None:
    """Its connection is dropped with all that waits in it, and the engine is told to stop."""
    monkeypatch.setattr(relay, "STALLED_S", 0.3)
    rig.engine.default = Behaviour(tokens=2000, pad=16 * KIB)
    async with rig.socket() as peer:
        peer.writer.transport.pause_reading()
        await peer.send(request(CHAT, chat(stream=True, max_tokens=2000)))
        seen = await rig.engine.arrived()
        async with asyncio.timeout(3):
            await seen.ended.wait()
        await rig.until(lambda: len(rig.records) == 1)
        assert rig.records[0]["outcome"] == "cancelled"
        await rig.until(lambda: not rig.app.listeners.runners[0].server.connections)


async def test_an_answer_that_has_come_whole_frees_its_reservation_before_it_is_read(rig) -> None:
    """The engine is done: a slow reader holds our memory, not the GPU's."""
    rig.engine.default = Behaviour(tokens=4, pad=100 * KIB)
    async with rig.socket() as peer:
        peer.writer.transport.pause_reading()
        await peer.send(request(CHAT, chat(stream=True, max_tokens=4)))
        await rig.engine.arrived()
        await rig.until(lambda: rig.reserved == 0 and bool(rig.engine.seen[0].ended.is_set()))
        peer.writer.transport.resume_reading()
        async with asyncio.timeout(5):
            got = b""
            while not got.endswith(b"0\r\n\r\n"):
                got += await peer.reader.read(1 << 20)
