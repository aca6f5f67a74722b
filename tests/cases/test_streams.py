"""The way back: bytes as they come, one framing, and a tap that may fail."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource

import pytest

from tests.cases.world import ids
from tests.edge.rig import CHAT, TEXT, chat, events, request
from tests.fakes.behaviour import Behaviour

MIB = 1 << 20
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
ENDED = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


def chunk(text: str = "w", **fields) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice], **fields}).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


async def test_h01_each_event_passes_when_it_comes(world) -> None:
    """One read, one event; the headers are out with the first."""
    async with world() as rig:
        steps = [asyncio.Event() for _ in range(5)]
        at = 0

        def next_step(seen) -> Behaviour:
            return Behaviour(tokens=5, hold=steps[0], hold_at=1)

        rig.engine.script = next_step
        async with rig.socket() as peer:
            await peer.send(request(CHAT, chat(5, stream=True, max_tokens=5)))
            status, fields = await peer.head()
            assert status == 200
            # H03: neither a cache nor a proxy may hold events back. J06: one framing.
            assert fields["cache-control"] == "no-cache"
            assert fields["x-accel-buffering"] == "no"
            assert "content-length" not in fields
            assert fields["transfer-encoding"] == "chunked"
            async with asyncio.timeout(2):
                first = await peer.reader.readuntil(b'" w"')
            assert b"content-encoding" not in first
            assert rig.engine.seen[0].events == 1, "the second is not made before the first is here"
            steps[at].set()
            async with asyncio.timeout(2):
                await peer.reader.readuntil(b"0\r\n\r\n")


async def test_h03_headers_against_buffering_stand_once(world) -> None:
    async with world() as rig:
        head = SSE.replace(
            b"\r\n\r\n", b"\r\nX-Accel-Buffering: no\r\ncache-control: no-store\r\n\r\n"
        )
        rig.engine.default = Behaviour(raw=head + chunk() + ENDED)
        got = await rig.chat(stream=True)
        assert got.headers.getall("x-accel-buffering") == ["no"]
        assert got.headers.getall("cache-control") == ["no-store"]


async def test_h04_nothing_is_said_before_the_server_speaks(world) -> None:
    """Without heartbeats an error still has its status: no early 200, no comment lines."""
    async with world() as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=1, hold=leave)
        async with rig.socket() as peer:
            await peer.send(request(CHAT, chat(5, stream=True, max_tokens=1)))
            await rig.engine.arrived()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await peer.reader.read(1)
            leave.set()
            async with asyncio.timeout(2):
                raw = await peer.reader.readuntil(b"0\r\n\r\n")
            assert b"\n: " not in raw


# What the server streams after its head, which limit it would break elsewhere.
LONG = [
    pytest.param([chunk("y" * (2 * MIB)), ENDED], id="H12-one-line-of-2-MB"),
    pytest.param([b"data: " + b"z" * MIB] + [b"z" * MIB] * 31, id="H13-no-newline"),
    pytest.param([b": comment\n\n", b"\n\n", chunk(), b"event: x\nid: 7\n\n", ENDED], id="H12-odd"),
]


@pytest.mark.parametrize("parts", LONG)
async def test_what_is_no_tidy_line_passes_intact_in_flat_memory(world, parts) -> None:
    async with world() as rig:
        whole = b"".join(parts)
        rig.engine.default = Behaviour(raw=SSE + whole)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with rig.socket() as peer:
            await peer.send(request(CHAT, chat(5, stream=True), "connection: close"))
            body = (await peer.rest()).partition(b"\r\n\r\n")[2]
        assert len(body) >= len(whole)
        assert whole[:1000] in _unchunked(body)[:1010]
        assert whole in _unchunked(body)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 250 * 1024  # KiB; the test itself holds the answer three times


def _unchunked(body: bytes) -> bytes:
    out, at = [], 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        if not size:
            return b"".join(out)
        out.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("http", ["1.0", "1.1"])
async def test_j06_there_is_exactly_one_framing(world, stream: bool, http: str) -> None:
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=2)
        data = request(TEXT, ids(5, 5, stream=stream), "connection: close")
        raw = await rig.raw(data.replace(b"HTTP/1.1", b"HTTP/" + http.encode()))
        head = raw.partition(b"\r\n\r\n")[0].lower()
        lengths = head.count(b"\r\ncontent-length:")
        codings = head.count(b"\r\ntransfer-encoding:")
        assert (lengths, codings) == ((0, http == "1.1") if stream else (1, 0))


@pytest.mark.parametrize("stream", [False, True])
async def test_j09_the_server_is_asked_for_plain_bytes(world, stream: bool) -> None:
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=2)
        got = await rig.post(
            TEXT, ids(5, 5, stream=stream), headers={"accept-encoding": "br, zstd, gzip"}
        )
        assert rig.engine.seen[0].headers["accept-encoding"] == "identity"
        assert "content-encoding" not in got.headers
        assert rig.records[0]["output_tokens"] == 2


async def test_j10_what_comes_compressed_goes_on_compressed_and_says_so(world) -> None:
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=2, gzip=True)
        raw = await rig.raw(request(TEXT, ids(5, 5, stream=False), "connection: close"))
        head, _, body = raw.partition(b"\r\n\r\n")
        assert b"content-encoding: gzip" in head.lower()
        assert json.loads(gzip.decompress(body))["choices"]


@pytest.mark.parametrize("asked", [False, True], ids=["M01-not-asked", "M01-asked"])
async def test_usage_is_always_known_and_shown_to_those_who_asked(world, asked: bool) -> None:
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=3)
        options = {"stream_options": {"include_usage": True}} if asked else {}
        got = await rig.chat(stream=True, max_tokens=9, **options)
        shown = [event for event in events(got.body)[:-1] if event.get("usage")]
        assert bool(shown) == asked
        record = rig.records[0]
        assert (record["usage_prompt_tokens"], record["output_tokens"]) == (20, 3)


async def test_m03_the_last_usage_that_says_something_counts(world) -> None:
    parts = [
        chunk(usage=None),
        chunk(usage=usage(0, 0)),
        chunk(usage=usage(120, 7)),
        ENDED,
        chunk(usage=usage(120, 30)),
        chunk(usage=usage(0, 0)),
        b"data: [DONE]\n\n",
    ]
    async with world() as rig:
        rig.engine.default = Behaviour(raw=SSE + b"".join(parts))
        await rig.chat(stream=True)
        record = rig.records[0]
        assert (record["usage_prompt_tokens"], record["output_tokens"]) == (120, 30)


def test_m04_usage_is_found_wherever_the_network_cuts_it() -> None:
    from gateway.upstream.sse import SseTap

    last = b'data: {"choices":[],"usage":{"prompt_tokens":120,"completion_tokens":30}}\n\n'
    whole = chunk() + ENDED + last + b"data: [DONE]\n\n"
    for cut in range(len(whole) + 1):
        tap = SseTap("chat", strip_usage=True)
        out = tap.feed(whole[:cut]) + tap.feed(whole[cut:]) + tap.finish()
        assert (tap.prompt_tokens, tap.completion_tokens, tap.done) == (120, 30, True)
        assert out == whole.replace(last, b"")


async def test_m06_an_answer_too_large_to_look_into_is_relayed_whole(world) -> None:
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=2, pad=12 * MIB)
        got = await rig.chat(max_tokens=2)
        assert got.status == 200
        assert len(got.body) > 12 * MIB
        assert rig.records[0]["outcome"] == "completed"
        assert rig.records[0]["usage_prompt_tokens"] is None


@pytest.mark.parametrize("how", ["closed", "error"], ids=["H10-cut", "H10-error"])
async def test_no_success_is_ever_made_up(world, how: str) -> None:
    async with world() as rig:
        behaviour = Behaviour(tokens=9, close_at=2)
        if how == "error":
            behaviour = Behaviour(tokens=9, error=(500, "boom"), error_at=2)
        rig.engine.queue.append(behaviour)
        got = await rig.chat(stream=True, max_tokens=9)
        assert b'"finish_reason": "' not in got.body
        assert b'"error"' in got.body
        assert rig.records[0]["outcome"] == "failed"
        await rig.ready()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(CHAT, chat(5, n=3, stream=True, max_tokens=4), id="L10-chat"),
        pytest.param(
            "/generate",
            {"text": "a", "sampling_params": {"n": 2, "max_new_tokens": 4}},
            id="L10-generate",
        ),
    ],
)
async def test_an_answer_of_several_sequences_ends_with_its_last(world, path: str, body) -> None:
    async with world() as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=4, hold=leave, hold_at=3)
        asked = asyncio.ensure_future(rig.post(path, body))
        seen = await rig.engine.arrived()
        await rig.engine.until(lambda: seen.events == 3)
        assert rig.reserved > 0
        leave.set()
        got = await asked
        assert got.status == 200
        assert rig.records[0]["output_tokens"] == 4 * seen.job.sequences
        if path == "/generate":
            assert len(got.json()) == 2


def ended(index: int, **fields) -> bytes:
    """The last event of one sequence."""
    choice = {"index": index, "finish_reason": "stop", **fields}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def generated(index: int, reason: str | None) -> bytes:
    meta = {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "finish_reason": reason and {"type": reason},
    }
    return (
        b"data: " + json.dumps({"text": "w", "meta_info": meta, "index": index}).encode() + b"\n\n"
    )


# What is asked in several sequences, and the event with which each of them ends.
SEVERAL = [
    pytest.param(
        CHAT, chat(5, n=3, stream=True), lambda at: ended(at, delta={}), id="L10-cut-chat"
    ),
    pytest.param(
        TEXT,
        {"prompt": ["a", "b", "c"], "stream": True},
        lambda at: ended(at, text="w"),
        id="L10-cut-prompts",
    ),
    pytest.param(
        "/generate",
        {"text": ["a", "b", "c"], "stream": True},
        lambda at: generated(at, "stop"),
        id="L10-cut-generate",
    ),
]


@pytest.mark.parametrize(("path", "body", "end"), SEVERAL)
async def test_an_answer_is_not_complete_because_one_of_its_sequences_is(
    world, path: str, body, end
) -> None:
    """The server closes in good order, but for some sequences without the reason of their end."""
    async with world() as rig:
        for sequences in (1, 2, 3):
            events_ = [end(at) for at in range(sequences)]
            rig.engine.default = Behaviour(raw=SSE + b"".join(events_))
            got = await rig.post(path, body)
            whole = sequences == 3
            assert (b'"error"' not in got.body) == whole, sequences
            assert rig.records[0]["outcome"] == ("completed" if whole else "failed")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_with_nothing_in_it_is_none(world, stream: bool) -> None:
    """No status of success around nothing, which a client can not read and a record calls complete."""
    async with world() as rig:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 0\r\n\r\n"
        rig.engine.default = Behaviour(raw=head)
        got = await rig.chat(max_tokens=5, stream=stream)
        assert (got.status, got.code) == (502, "upstream_error")
        assert rig.records[0]["outcome"] == "failed"
