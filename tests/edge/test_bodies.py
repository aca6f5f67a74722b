"""Bodies and framing: bounded, read once, never forwarded as they came."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest
from aiohttp import http_parser

from gateway import listeners
from gateway.edge.dialects import guard
from tests.edge.rig import CHAT, COUNT, TEXT, chat, request

MIB = 1 << 20


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b"\xef\xbb\xbf{}",
        b'{"a": NaN}',
        b'"text"',
        b"[]",
        b"7",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    ],
)
async def test_what_is_no_json_object_is_a_400(rig, body: bytes) -> None:
    """Class L: client bytes never cause a 5xx."""
    got = await rig.post(CHAT, body)
    assert (got.status, got.code) == (400, "invalid_request")
    assert got.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("depth", [200, 254, 260, 500, 900, 1100])
async def test_nesting_of_any_depth_is_relayed_or_a_400(rig, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    body = json.dumps(chat(max_tokens=3) | {"x": "@"}).replace('"@"', deep).encode()
    got = await rig.post(CHAT, body)
    assert got.status in (200, 400), got.body
    if got.status == 200:
        assert json.dumps(rig.engine.seen[0].body["x"]) == deep
    else:
        assert "nested" in got.error["message"] or "JSON" in got.error["message"]
        assert rig.engine.seen == []


def test_what_cannot_be_written_is_told_apart() -> None:
    deep: dict[str, object] = {}
    for _ in range(300):
        deep = {"a": deep}
    for body, why in (({"dimensions": 10**30}, "64 bits"), (deep, "nested")):
        with pytest.raises(guard.Invalid, match=why):
            guard.dump(body)


async def test_a_body_over_the_limit_is_413_before_it_was_sent(start) -> None:
    """Class J: an explicit limit, our own JSON, and the connection is not needed to the end."""
    async with start({"limits": {"body_bytes": MIB}}) as rig, rig.socket() as peer:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {500 * MIB}\r\n\r\n"
        await peer.send(head.encode() + b"{" * 1000)
        status, fields = await peer.head()
        assert status == 413
        body = await peer.reader.readexactly(int(fields["content-length"]))
        error = json.loads(body)["error"]
        assert error["code"] == "body_too_large"
        assert str(MIB) in error["message"]
        assert (error["needed"], error["available"]) == (500 * MIB, MIB)
        assert rig.records[0]["code"] == "body_too_large"


async def test_a_client_that_sends_all_of_a_large_body_first_still_reads_the_413(start) -> None:
    """Closing on unread bytes resets the connection, and the answer would be lost on the way."""
    data = request(CHAT, b"{" * (8 * MIB))
    async with start({"limits": {"body_bytes": MIB}}) as rig:
        for _ in range(3):
            async with rig.socket() as peer:
                await peer.send(data)
                status, _ = await peer.head()
                assert status == 413


async def test_a_body_without_a_length_is_cut_off_at_the_limit(start) -> None:
    async with start({"limits": {"body_bytes": MIB}}) as rig, rig.socket() as peer:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        await peer.send(head.encode())
        for _ in range(20):
            await peer.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
        status, _ = await peer.head()
        assert status == 413


async def test_bodies_up_to_the_limit_pass(start) -> None:
    async with start({"limits": {"body_bytes": 2 * MIB}}, pool=8192) as rig:
        body = chat(16, max_tokens=2, x="y" * (MIB + 400_000))
        assert (await rig.post(CHAT, body)).status == 200
        assert rig.engine.seen[0].body["x"] == body["x"]


async def test_expect_100_continue_is_answered(rig) -> None:
    """curl waits a second for it before every body over a kilobyte (a megabyte since 7.84)."""
    data = json.dumps(chat(max_tokens=2)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
    async with rig.socket() as peer:
        await peer.send(f"{head}content-length: {len(data)}\r\n\r\n".encode())
        status, _ = await peer.head()
        assert status == 100
        await peer.send(data)
        status, _ = await peer.head()
        assert status == 200
    assert "expect" not in rig.engine.seen[0].headers


async def test_expect_100_continue_is_not_given_to_a_body_that_is_refused(start) -> None:
    async with start({"limits": {"body_bytes": 1000}}) as rig, rig.socket() as peer:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
        await peer.send(f"{head}content-length: 5000\r\n\r\n".encode())
        status, _ = await peer.head()
        assert status == 413


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_compressed_body_is_counted_and_goes_on_plain(rig, coding: str) -> None:
    plain = json.dumps(chat(max_tokens=3)).encode()
    data = gzip.compress(plain, mtime=0) if coding == "gzip" else zlib.compress(plain)
    got = await rig.post(CHAT, data, headers={"content-encoding": coding})
    assert got.status == 200
    seen = rig.engine.seen[0]
    assert "content-encoding" not in seen.headers
    assert int(seen.headers["content-length"]) == len(seen.received.body)
    assert rig.records[0]["prompt_tokens"] == 20


async def test_a_compressed_bomb_is_413_at_the_limit(start) -> None:
    """Class J: gzip bodies are bounded by what they unpack to."""
    bomb = gzip.compress(b" " * (64 * MIB), mtime=0)
    async with start({"limits": {"body_bytes": MIB}}) as rig:
        got = await rig.post(CHAT, bomb, headers={"content-encoding": "gzip"})
        assert (got.status, got.code) == (413, "body_too_large")
        assert got.error["needed"] < 3 * MIB, "unpacked no further than it had to be"


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", b"this is not gzip"),
        ("gzip", gzip.compress(b'{"a": 1}', mtime=0)[:-9]),
        ("deflate", b"\xff\xff\xff\xff"),
    ],
)
async def test_a_broken_coding_is_a_400(rig, coding: str, data: bytes) -> None:
    got = await rig.post(CHAT, data, headers={"content-encoding": coding})
    assert got.status == 400
    assert rig.engine.seen == []


@pytest.mark.parametrize("path", [CHAT, "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", b"this is not gzip"),
        ("gzip", gzip.compress(b'{"a": 1}', mtime=0)[:-6] + b"wrong!"),
        ("deflate", b"\xff\xff\xff\xff"),
    ],
)
async def test_behind_a_broken_coding_the_connection_ends(rig, path, coding, data) -> None:
    """Its parser waits for the rest of a body that never comes, and would swallow the next request."""
    async with rig.socket() as peer:
        await peer.send(request(path, data, f"content-encoding: {coding}"))
        async with asyncio.timeout(2):
            status, fields = await peer.head()
            await peer.rest()
        assert (status, fields["connection"]) == (400, "close")


@pytest.mark.parametrize("path", [CHAT, COUNT, "/api/show"])
@pytest.mark.parametrize(
    "coding", ["gzip, chunked", "GZIP,chunked", "identity, chunked", "x, chunked", ",chunked"]
)
async def test_a_body_in_another_transfer_coding_is_refused_and_its_connection_ends(
    rig, path: str, coding: str
) -> None:
    """RFC 9112, 6.1. Read as chunked it was taken for a broken JSON, or for whatever it spelled."""
    data = json.dumps(chat(max_tokens=2)).encode()
    lines = (f"POST {path} HTTP/1.1", "host: x", f"transfer-encoding: {coding}", "", "")
    got = await rig.raw("\r\n".join(lines).encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
    top, _, body = got.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 400 ")
    assert b"may be chunked, and nothing beside it" in body
    assert rig.engine.seen == []


@pytest.mark.parametrize("coding", ["chunked", "Chunked", " chunked "])
async def test_a_body_in_chunks_is_read(rig, coding: str) -> None:
    data = json.dumps(chat(max_tokens=2)).encode()
    lines = (
        f"POST {CHAT} HTTP/1.1",
        "host: x",
        "connection: close",
        f"transfer-encoding: {coding}",
    )
    body = b"\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    assert (await rig.raw("\r\n".join(lines).encode() + body)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", [CHAT, COUNT, "/api/show"])
@pytest.mark.parametrize("codings", [["snappy"], ["gzip, deflate"], ["gzip", "identity"], ["foo"]])
async def test_an_unknown_coding_is_told_which_are_known(rig, path: str, codings) -> None:
    """It was read as if nothing had been done to it."""
    fields = [f"content-encoding: {coding}" for coding in codings]
    answer = await rig.raw(request(path, chat(max_tokens=2), *fields))  # and the connection ends
    assert answer.startswith(b"HTTP/1.1 415 "), answer
    assert b"connection: close" in answer.lower()
    assert b"plain, gzip or deflate" in answer
    assert b'"code":"invalid_request"' in answer
    assert rig.engine.seen == []


@pytest.mark.parametrize("coding", ["br", "zstd"])
async def test_a_coding_without_its_library_is_no_fault_of_the_http(rig, coding: str) -> None:
    got = await rig.post(CHAT, b"\x00\x01", headers={"content-encoding": coding})
    unpacked = {"br": http_parser.HAS_BROTLI, "zstd": http_parser.HAS_ZSTD}[coding]
    assert got.status == (400 if unpacked else 415)
    assert unpacked or "plain, gzip or deflate" in got.error["message"]
    assert rig.engine.seen == []


@pytest.mark.parametrize("coding", ["identity", "", "GZIP"])
async def test_a_coding_that_is_none_and_one_in_capitals_are_understood(rig, coding: str) -> None:
    data = json.dumps(chat(max_tokens=2)).encode()
    data = gzip.compress(data, mtime=0) if coding == "GZIP" else data
    answer = await rig.raw(request(CHAT, data, f"content-encoding: {coding}", "connection: close"))
    assert answer.startswith(b"HTTP/1.1 200 "), answer


async def test_a_header_of_the_engines_own_decompression_is_not_passed_on(rig) -> None:
    got = await rig.post(CHAT, chat(max_tokens=2), headers={"x-body-compressed": "zstd"})
    assert got.status == 200
    assert "x-body-compressed" not in rig.engine.seen[0].headers


SMUGGLED = [
    ("content-length: 5", "transfer-encoding: chunked"),
    ("content-length: 5", "transfer-encoding: invalid!!"),
    ("content-length: 5", "content-length: 6"),
    ("content-length: 5, 5",),
    ("content-length: -1",),
    ("content-length: +5",),
    ("content-length: 0x5",),
    ("content-length: 99999999999999999999999",),
    ("transfer-encoding: gzip, chunked, gzip",),
    ("transfer-encoding: chunked", "transfer-encoding: identity"),
    ("transfer-encoding : chunked",),
    ("x-a: 1\r\n transfer-encoding: chunked", "content-length: 5"),
    ("x-a: b\x00c", "content-length: 5"),
]


@pytest.mark.parametrize("fields", SMUGGLED)
async def test_a_request_with_two_framings_is_refused_and_reaches_nobody(rig, fields) -> None:
    """Class J: a front that reads a body one way and an engine that reads it another."""
    head = "\r\n".join([f"POST {CHAT} HTTP/1.1", "host: x", *fields])
    smuggled = b"0\r\n\r\nPOST /flush_cache HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    answer = await rig.raw(head.encode("latin-1") + b"\r\n\r\n" + smuggled)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), answer
    assert rig.engine.calls["/flush_cache"] == 0
    assert rig.engine.seen == []


async def test_chunked_bodies_are_read_and_forwarded_with_a_length(rig) -> None:
    data = json.dumps(chat(max_tokens=2)).encode()
    chunks = b"".join(b"%x;ext=1\r\n%b\r\n" % (1, data[i : i + 1]) for i in range(len(data)))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n"
    answer = await rig.raw(head.encode() + b"\r\n" + chunks + b"0\r\ntrailer: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    headers = rig.engine.seen[0].headers
    assert "transfer-encoding" not in headers
    assert "trailer" not in headers
    assert int(headers["content-length"]) == len(rig.engine.seen[0].received.body)


@pytest.mark.parametrize("broken", [b"zz\r\nxx\r\n", b"5\r\nhelloXX\r\n", b"-1\r\n"])
async def test_a_broken_chunk_is_a_400(rig, broken: bytes) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = await rig.raw(head.encode() + broken)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), answer


async def test_a_client_that_leaves_in_the_middle_of_its_body(rig) -> None:
    """Class F: the first of the phases. Nothing was taken, so nothing is given back."""
    async with rig.socket() as peer:
        await peer.send(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{{".encode()
        )
        await rig.until(lambda: rig.handled == 1)
        peer.reset()
    await rig.until(lambda: len(rig.records) == 1)
    assert rig.records[0]["outcome"] == "cancelled"
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    "target", ["?a=%C3%A9&b=1", "?a=é", "?a=\xff", "?", "?x=%00", "?a=[1]{2}|\"'^`"]
)
async def test_the_query_goes_on_as_it_came_or_is_a_400(rig, target: str) -> None:
    answer = await rig.raw(request(CHAT + target, chat(max_tokens=2), "connection: close"))
    status = int(answer.split(b" ")[1])
    assert status in (200, 400), answer
    if status == 200:
        assert rig.engine.seen[0].received.target == CHAT + target.removesuffix("?")


async def test_headers_forwarded(rig) -> None:
    """Class P: neither the client's keys nor what sets engine internals goes on; the rest does."""
    sent = {
        "authorization": "Bearer client-key",
        "x-api-key": "client-key",
        "api-key": "client-key",
        "cookie": "a=b",
        "x-override-rid": "x",
        "X-Override-Anything": "x",
        "x-data-parallel-rank": "1",
        "connection": "keep-alive, x-mine",
        "x-mine": "hop",
        "te": "trailers",
        "proxy-authorization": "Basic eA==",
        "keep-alive": "timeout=5",
        "accept-encoding": "br, zstd, gzip",
        "x-request-id": "client-id",
        "x-trace": "kept",
        "user-agent": "agent/1",
        "x-stainless-retry-count": "2",
        "accept": "text/event-stream",
    }
    body = json.dumps(chat(max_tokens=2)).encode()
    fields = [f"{name}: {value}" for name, value in sent.items()]
    async with rig.socket() as peer:
        await peer.send(request(CHAT + "?x=1&y=%2F", body, *fields, "x-octets: \xe9\xff"))
        status, _ = await peer.head()
    assert status == 200
    seen = rig.engine.seen[0]
    assert seen.received.target == CHAT + "?x=1&y=%2F"
    got = seen.headers
    gone = (
        "authorization",
        "x-api-key",
        "api-key",
        "cookie",
        "x-override-rid",
        "x-override-anything",
    )
    gone += ("x-data-parallel-rank", "x-mine", "te", "proxy-authorization", "keep-alive")
    assert not set(gone) & got.keys()
    assert got["accept-encoding"] == "identity"
    assert (got["x-trace"], got["user-agent"]) == ("kept", "agent/1")
    assert got["x-octets"] == "\xe9\xff"
    assert got["host"] == rig.engine.url.removeprefix("http://")
    assert rig.records[0]["client_retry"] == 2


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_the_servers_key_is_added_and_the_clients_is_not(start, tmp_path, path: str) -> None:
    key = tmp_path / "key"
    key.write_text("engine-key\n")
    policy = {"backend": {"api_key_file": str(key)}}
    async with start(policy, api_key="engine-key") as rig:
        body = chat(max_tokens=2) | {"prompt": "a"}
        got = await rig.post(path, body, headers={"authorization": "Bearer mine"})
        assert got.status == 200
        assert rig.engine.seen[0].headers["authorization"] == "Bearer engine-key"


# ---- bodies and heads that never end -----------------------------------------------------------


async def test_a_body_that_drips_is_a_408_in_its_time(start) -> None:
    async with start({"limits": {"body_s": 0.3}}) as rig, rig.socket() as peer:
        await peer.send(b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 900\r\n\r\n{")
        status, fields = await peer.head()
        assert (status, fields["connection"]) == (408, "close")
        error = json.loads(await peer.reader.readexactly(int(fields["content-length"])))["error"]
        assert error["message"].startswith("1 bytes of the body came in 0.3 s, and not the rest")
        assert error["code"] == "invalid_request"
        assert "retry-after" not in fields
        assert "x-should-retry" not in fields
        await rig.until(lambda: not rig.app.listeners.runners[0].server.connections, 5)
        assert rig.records[0]["outcome"] == "rejected"


async def test_a_head_that_drips_is_cut_off(start, monkeypatch) -> None:
    monkeypatch.setattr(listeners, "KEEPALIVE_S", 0.3)
    async with start() as rig:
        assert await rig.raw(b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nx-a: ") == b""
        assert await rig.raw(b"") == b""
        assert rig.handled == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n",
        b"GET / HTTP/9.9\r\nhost: g\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nbad header\r\n\r\n",
        b"BREW /v1/completions HTTP/1.1\r\nhost: g\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_http_are_answered_quietly(rig, data: bytes, caplog) -> None:
    """Whoever scans the port fills no log, and a broken client reads what is wrong."""
    caplog.set_level("INFO")
    answer = await rig.raw(data)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert b"content-type: application/json" in head.lower()
    assert b"x-request-id: " in head.lower()
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_request"
    assert error["message"].endswith(".")
    assert ("method of HTTP" in error["message"]) == data.startswith((b"\x16", b"BREW"))
    assert [line for line in caplog.records if line.name.startswith("aiohttp")] == []
    assert rig.handled == 0


LONG = "y" * 60_000


@pytest.mark.parametrize(
    ("data", "status", "limit"),
    [
        (request("/" + LONG, b"{}"), 414, "8192 bytes"),
        (request(f"{CHAT}?{LONG}", b"{}"), 414, "8192 bytes"),
        (request(CHAT, b"{}", f"x-a: {LONG}"), 431, "16384 bytes"),
        (request(CHAT, b"{}", f"{LONG}: a"), 431, "16384 bytes"),
        (request(CHAT, b"{}", *(f"x-{i}: a" for i in range(200))), 431, "128 headers"),
    ],
    ids=["path", "query", "header", "name", "headers"],
)
async def test_a_head_over_its_limit_is_told_the_limit(rig, data, status, limit, caplog) -> None:
    """It is HTTP; what is wrong with it has statuses of its own, and no byte of it comes back."""
    caplog.set_level("INFO")
    head, _, body = (await rig.raw(data)).partition(b"\r\n\r\n")
    assert int(head.split(b" ")[1]) == status
    assert b"x-should-retry: false" in head.lower()
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_request"
    assert f"has more than {limit}." in error["message"]
    assert b"yyyy" not in body
    assert [line for line in caplog.records if line.name.startswith("aiohttp")] == []
    assert rig.handled == 0


async def test_a_head_just_within_its_limits_passes(rig) -> None:
    few = listeners.HEADERS - 4  # and host, length, connection, x-a
    fields = [f"x-{i}: a" for i in range(few)]
    fields += ["connection: close", "x-a: " + "y" * (listeners.HEAD_BYTES - 3)]
    query = "?" + "y" * (listeners.LINE_BYTES - len(CHAT) - 1)
    answer = await rig.raw(request(CHAT + query, chat(max_tokens=2), *fields))
    assert answer.startswith(b"HTTP/1.1 200"), answer[:300]


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [' + b'{"role":"user","content":"a"},' * 30_000 + b"{}]}",
        b"{" + b'"a":1,' * 60_000 + b'"messages": []}',
        b'{"messages": [' + b'{"role" :"user"},' * 60_000 + b"{}]}",
        b'{"messages": [' + b'{"role\\\\":1},' * 60_000 + b"{}]}",
        b'{"messages": [{"role":"user","content": [' + b'{"type" : "text"},' * 60_000 + b"{}]}]}",
        b'{"messages": [' + b"[]," * 60_000 + b"[]]}",
    ],
    ids=["messages", "fields", "spaces", "backslashes", "parts", "lists"],
)
async def test_a_body_of_very_many_fields_is_refused_before_it_is_looked_at(
    rig, body: bytes
) -> None:
    """57 MB of one-word messages held the event loop for seconds."""
    got = await rig.post(CHAT, body)
    assert (got.status, got.code) == (400, "invalid_request")
    assert "50,000 fields, objects and lists" in got.error["message"]
    assert rig.engine.seen == []


async def test_text_that_looks_like_fields_is_text(rig) -> None:
    """A prompt may be JSON itself, however large."""
    text = '{"a":1}' * 60_000
    got = await rig.post(CHAT, {**chat(), "messages": [{"role": "user", "content": text}]})
    assert got.status == 200


@pytest.mark.parametrize("tail", [b'\\"' * 200_000, b'":\\' * 100_000, b'{"a":"' * 60_000])
async def test_texts_without_an_end_are_read_once(rig, tail: bytes) -> None:
    """A text that is tried anew from each of its quotes would take minutes."""
    got = await rig.post(CHAT, b'{"a":' + b'"' + b":" * 60_000 + tail)
    assert (got.status, got.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"messages":[{"role":"user","content":"hi \\ud83d"}]}', "surrogate"),
        (b'{"temperature":NaN}', "line 1 column 16"),
        # PowerShell's default, and a body packed without saying so: the reader's place for both is 0.
        (b'{"a":"caf\xe9"}', "no UTF-8 text at its byte 9; encode it as UTF-8"),
        (gzip.compress(b"{}", mtime=0), "no UTF-8 text at its byte 1"),
        # What an agent in JavaScript sends that cut a text inside an emoji.
        (b'{"a":"x\\ud83d"}', "half a character, a surrogate without its other, at char 7"),
        (b'{"a":"\\ude00"}', "half a character"),
        (b'{"max_tokens":1,}', "trailing comma"),
        (b"", "empty"),
        ('{"a": "secret"}'.encode("utf-16"), "UTF-8"),
        (b"[" * 2000, "nested too deeply"),
    ],
)
async def test_json_that_is_none_is_told_what_and_where(rig, body: bytes, why: str) -> None:
    """Half an emoji, cut by a client, looks right in every log of that client's."""
    got = await rig.post(CHAT, body)
    assert (got.status, got.code) == (400, "invalid_request")
    assert why in got.error["message"]
    assert "secret" not in got.error["message"]


async def test_a_byte_order_mark_is_not_a_mistake(rig) -> None:
    """The engine's own reader takes it, and some editors and shells put it before all they write."""
    got = await rig.post(CHAT, b"\xef\xbb\xbf" + json.dumps(chat(max_tokens=2)).encode())
    assert got.status == 200
    assert rig.engine.seen[0].body["max_tokens"] == 2
