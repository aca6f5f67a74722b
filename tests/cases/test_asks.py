"""What a body asks for: the cap that is forwarded, the charge that goes with it, or a refusal."""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

import pytest

from tests.cases.world import POOL, ids, kv, together
from tests.edge.rig import CHAT, GENERATE, TEXT, chat
from tests.fakes.behaviour import Behaviour

OLD, NEW = "max_tokens", "max_completion_tokens"
SMALL_CONTEXT = {"context": 4096}
WIDE = {"context": 131_072}


def text(prompt: int, cap: int | None = None, **fields: Any) -> dict[str, Any]:
    return ids(prompt, cap, stream=False, **fields)


def generate(**params: Any) -> dict[str, Any]:
    return {"text": "a b c", "sampling_params": params}


def edge(prompt: int, cap: int) -> Any:
    return pytest.param(
        {}, SMALL_CONTEXT, TEXT, text(prompt, 16), {OLD: cap}, kv(prompt, cap), id=f"A13-{prompt}"
    )


def at_window(cap: int) -> dict[str, Any]:
    """A chat within 100 tokens of the window, its system message in the count."""
    system = {"role": "system", "content": "s " * 1996}
    user = {"role": "user", "content": "w " * (32_768 - 2000 - 100 - 4)}
    return {"messages": [system, user], "max_tokens": cap}


# What differs in policy and engine, the request, the fields as they reach the server (None: not
# there), and the KV tokens charged.
FORWARDED = [
    pytest.param({}, {}, CHAT, chat(29_996, max_tokens=32_000), {OLD: 2766}, 32_767, id="A03-near"),
    pytest.param({}, {}, CHAT, chat(1, max_tokens=32_000), {OLD: 8192}, kv(5, 8192), id="A04"),
    pytest.param({}, {"page": 16}, TEXT, text(16, 17), {OLD: 17}, 16 + 32 + 16, id="A06-pages"),
    edge(4078, 16),
    edge(4079, 15),
    edge(4080, 14),
    edge(4081, 13),
    pytest.param(
        {}, {}, CHAT, chat(496, n=4, max_tokens=100), {"n": 4}, 4 * kv(500, 100), id="B07"
    ),
    pytest.param(
        {"backend": {"max_output_tokens": 32_768, "prefill_tokens": 100_000}},
        WIDE,
        TEXT,
        text(90_000, 20_000),
        {OLD: 8998},
        kv(90_000, 8998),
        id="D04-charged-what-is-forwarded",
    ),
    pytest.param({}, {}, CHAT, at_window(50), {OLD: 50}, kv(32_668, 50), id="K03-fits"),
    pytest.param(
        {},
        {},
        CHAT,
        {"messages": [{"role": "user", "content": "<|endoftext|><|im_end|>"}], "max_tokens": 7},
        {OLD: 7},
        kv(5, 7),
        id="K10-special-tokens-are-text",
    ),
    *(
        pytest.param(
            {}, {}, CHAT, chat(1, max_tokens=cap), {OLD: 4096}, kv(5, 4096), id=f"L01-{cap}"
        )
        for cap in (0, -1, None)
    ),
    pytest.param({}, {}, CHAT, chat(1, **{NEW: 9}), {NEW: 9, OLD: None}, kv(5, 9), id="L06-new"),
    pytest.param({}, {}, CHAT, chat(1, **{OLD: 9}), {OLD: 9, NEW: None}, kv(5, 9), id="L06-old"),
    *(
        pytest.param(
            {},
            {},
            CHAT,
            chat(1, **{OLD: old, NEW: new}),
            {NEW: 50, OLD: None},
            kv(5, 50),
            id=f"L07-{old}-{new}",
        )
        for old, new in ((100_000, 50), (50, 100_000))
    ),
    pytest.param({}, {}, GENERATE, generate(n=2, max_new_tokens=9), {}, 2 * kv(3, 9), id="L10-n"),
    pytest.param(
        {},
        {},
        GENERATE,
        generate(max_new_tokens=999_999),
        {"sampling_params": {"max_new_tokens": 8192}},
        kv(3, 8192),
        id="L12-huge",
    ),
    pytest.param(
        {},
        {},
        GENERATE,
        generate() | {"unheard_of": 1},
        {"sampling_params": {"max_new_tokens": 4096}, "unheard_of": 1},
        kv(3, 4096),
        id="L12-absent-and-a-field-nobody-knows",
    ),
]


@pytest.mark.parametrize(("policy", "engine", "path", "body", "fields", "charged"), FORWARDED)
async def test_what_reaches_the_server_is_what_was_charged(
    world, policy, engine, path: str, body: Any, fields: dict[str, Any], charged: int
) -> None:
    async with world(policy, **engine) as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=1, hold=leave)
        asked = asyncio.ensure_future(rig.post(path, body))
        seen = await rig.engine.arrived()
        assert {name: seen.body.get(name) for name in fields} == fields
        assert rig.reserved == charged
        leave.set()
        got = await asked
        assert got.status == 200
        clamped = got.headers.get("x-kvgate-clamped-from")
        source = rig.records[0]["cap_source"]
        assert (clamped is None) == (source == "asked")


def image(side: int) -> dict[str, Any]:
    """A square one."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", side, side) + b"\x08\x02"
    url = "data:image/png;base64," + base64.b64encode(head + b"\0" * 900).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def forty(side: int) -> dict[str, Any]:
    """A chat with so many."""
    parts = [image(side)] * 40
    return {"max_tokens": 5, "messages": [{"role": "user", "content": parts}]}


LONG = {"context": 200_000}


def pictured(words: int) -> dict[str, Any]:
    """A chat with a text and an image beside it."""
    parts = [
        {"type": "text", "text": "w " * words},
        image(512),
    ]
    return {"max_tokens": 5, "messages": [{"role": "user", "content": parts}]}


ECHO = text(4000, 1, echo=True, logprobs=5)

# What differs in policy and engine, the request, how often it is sent, status, code, and what the
# sentence must name.
REFUSED = [
    pytest.param(
        {}, {}, CHAT, chat(32_996), 1, 400, "context_length_exceeded", "33000 32761", id="A03"
    ),
    pytest.param(
        {}, LONG, TEXT, text(120_000, 5), 1, 400, "context_length_exceeded", "120000", id="B01"
    ),
    pytest.param(
        {},
        {"pool": 106_496, "page": 8192, **LONG},
        TEXT,
        text(100_000, 256),
        1,
        400,
        "context_length_exceeded",
        "97239",
        id="B03-less-a-page",
    ),
    pytest.param(
        {}, {"pool": 800}, TEXT, text(1002, 5), 5, 400, "context_length_exceeded", "1002", id="B06"
    ),
    pytest.param(
        {},
        {"max_running": 16},
        CHAT,
        chat(496, n=64, max_tokens=100),
        1,
        400,
        "invalid_request",
        "64 16",
        id="B07-n-over-the-slots",
    ),
    pytest.param(
        {"limits": {"max_n": 16}},
        {},
        CHAT,
        chat(1, n=64),
        1,
        400,
        "invalid_request",
        "64 16",
        id="B07-n-over-the-limit",
    ),
    pytest.param(
        {}, {}, CHAT, forty(2048), 1, 400, "context_length_exceeded", "32761", id="C07-forty-images"
    ),
    pytest.param(
        {}, {}, CHAT, forty(4096), 1, 400, "invalid_request", "671,088,640", id="C07-and-larger"
    ),
    pytest.param(
        {"backend": {"max_image_prompt_tokens": 16_000}},
        {},
        CHAT,
        pictured(20_000),
        1,
        400,
        "context_length_exceeded",
        "16000 images",
        id="C10-longer-than-allowed-with-an-image",
    ),
    pytest.param({}, {}, TEXT, ECHO, 20, 400, "invalid_request", "echo 4000 2048", id="C09"),
    pytest.param({}, {}, CHAT, chat(1, regex=""), 1, 400, "invalid_request", "regex", id="C13"),
    pytest.param(
        {}, {}, CHAT, at_window(65_536), 1, 400, "context_length_exceeded", "32768", id="K03-stub"
    ),
    pytest.param(
        {}, {}, CHAT, chat(1, max_tokens=-950), 1, 400, "invalid_request", "-950", id="L03"
    ),
    pytest.param(
        {},
        {},
        TEXT,
        text(100_000, 5),
        1,
        400,
        "context_length_exceeded",
        "100000",
        id="O03-hopeless",
    ),
]


@pytest.mark.parametrize(
    ("policy", "engine", "path", "body", "times", "status", "code", "words"), REFUSED
)
async def test_what_can_never_run_is_told_at_once_with_its_numbers(
    world, policy, engine, path: str, body: Any, times: int, status: int, code: str, words: str
) -> None:
    """It never waits, nothing of it is sent, and no client is told to try again."""
    async with world(policy, **engine) as rig:
        for got in await asyncio.gather(*together(rig, path, [body] * times)):
            assert (got.status, got.code) == (status, code)
            assert got.headers["x-should-retry"] == "false"
            assert "retry-after" not in got.headers
            for word in words.split():
                assert word in got.error["message"].lower()
        assert rig.engine.seen == []
        assert {record["queue_ms"] for record in rig.records} == {None}


@pytest.mark.parametrize(
    "value",
    [None, True, "4096", 4096.0, 1e9, 2**63, 10**400, [], {}, "NaN", "abc", -1, -3197, 0.5],
    ids=lambda value: f"L04-{str(value)[:8]}",
)
@pytest.mark.parametrize("field", [OLD, NEW])
async def test_a_cap_of_any_type_is_a_number_or_a_400(world, field: str, value: Any) -> None:
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=1)
        got = await rig.post(CHAT, chat(1, **{field: value}))
        assert got.status in (200, 400)
        if got.status == 200:
            cap = rig.engine.seen[0].body[field if field in rig.engine.seen[0].body else OLD]
            assert type(cap) is int
            assert 1 <= cap <= 8192


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("POST", "/v1/audio/transcriptions", id="G07-audio"),
        pytest.param("POST", "/v1/messages/batches", id="G07-batches"),
        pytest.param("POST", "/invocations", id="G07-unknown"),
        pytest.param("GET", "/metrics", id="P04-metrics-are-elsewhere"),
        pytest.param("GET", "/status", id="P04-status-is-elsewhere"),
        pytest.param("POST", "/flush_cache", id="G07-admin"),
    ],
)
async def test_what_is_not_accounted_for_is_not_forwarded(world, method: str, path: str) -> None:
    async with world() as rig:
        async with rig.http.request(method, rig.app.listen_url + path, json=ids(5, 5)) as answer:
            assert answer.status == 404
            error = (await answer.json())["error"]
        assert error["code"] == "not_found"
        if path != "/metrics":  # the gate reads that one for itself
            assert rig.engine.calls[path] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, text(9, 5)),
        (CHAT, chat(5, max_tokens=5)),
        (GENERATE, generate()),
        ("/v1/messages", chat(5, max_tokens=5)),
        ("/v1/responses", {"input": "a b", "max_output_tokens": 5}),
        ("/v1/embeddings", {"input": "a b"}),
    ],
)
async def test_g07_every_route_that_generates_reserves(world, path: str, body: Any) -> None:
    async with world() as rig:
        leave = asyncio.Event()
        rig.engine.default = Behaviour(tokens=1, hold=leave)
        asked = asyncio.ensure_future(rig.post(path, body))
        await rig.engine.arrived()
        assert rig.reserved >= 3
        leave.set()
        assert (await asked).status == 200


async def test_a09_switched_off_it_forwards_the_very_bytes(world) -> None:
    body = b'{"model":"tiny",  "messages":[{"role":"user","content":"a b"}], "max_tokens": 99999}'
    async with world({"admission": "off"}) as rig:
        rig.engine.default = Behaviour(tokens=1)
        got = await rig.post(CHAT, body)
        assert got.status == 400, "the engine's own answer to a cap over its context"
        assert "x-kvgate-clamped-from" not in got.headers
        body = body.replace(b"99999", b"9")
        assert (await rig.post(CHAT, body)).status == 200
        assert rig.engine.seen[0].received.body == body
        assert [record["outcome"] for record in rig.records] == ["completed", "completed"]


async def test_c10_a_text_of_that_length_and_a_short_one_with_an_image_pass(world) -> None:
    async with world({"backend": {"max_image_prompt_tokens": 17_000}}) as rig:
        rig.engine.default = Behaviour(tokens=1)
        assert (await rig.chat(20_000, max_tokens=5)).status == 200
        assert (await rig.post(CHAT, pictured(100))).status == 200


async def test_a10_an_answer_without_an_end_ends_at_the_cap_that_was_put_in(world) -> None:
    async with world({"backend": {"default_output_tokens": 40}}) as rig:
        rig.engine.default = Behaviour(tokens=1 << 20)
        got = await rig.chat(stream=True)
        assert b'"finish_reason": "length"' in got.body
        assert rig.engine.seen[0].body["max_tokens"] == 40
        record = rig.records[0]
        assert (record["cap_source"], record["output_tokens"]) == ("injected", 40)


async def test_a12_a_cap_that_was_lowered_is_said_each_time(world) -> None:
    """A client that raises its limit in vain can see why."""
    async with world() as rig:
        rig.engine.default = Behaviour(tokens=1)
        for _ in range(4):
            got = await rig.chat(max_tokens=64_000)
            assert got.headers["x-kvgate-clamped-from"] == "64000"
            assert got.headers["x-kvgate-max-tokens"] == "8192"
        counted = rig.app.metrics.registry.get_sample_value
        assert counted("kvgate_caps_clamped_total", {"backend": "gpu0"}) == 4


async def test_g04_what_is_refused_takes_no_slot(world) -> None:
    """Bad requests come before anything is taken, so the only slot is free for the good one."""
    async with world({"backend": {"slots": 1}}) as rig:
        bad = [b"{", b"[]", {"messages": []}, {"messages": [{"role": "user2", "content": 5}]}]
        for body in [*bad, chat(1, n=0), chat(1, max_tokens=-2), chat(1, stream="maybe")]:
            assert (await rig.post(CHAT, body)).status == 400
            assert rig.reserved == 0
        rig.engine.default = Behaviour(tokens=1)
        async with asyncio.timeout(2):
            assert (await rig.chat(max_tokens=5)).status == 200


def test_the_numbers_of_the_world() -> None:
    assert kv(1000, 4096) == 5097
    assert kv(16, 17, 16) == 64
    assert POOL == 100_000
