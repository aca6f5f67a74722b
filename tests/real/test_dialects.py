"""Anthropic's messages, OpenAI's responses and Ollama's API through the gate to a genuine SGLang."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from tests.real.engine import MODEL_NAME
from tests.real.install import SGLANG_VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.real.conftest import Note
    from tests.real.engine import Engine
    from tests.real.gateproc import Gate

CUT = "response.incomplete" if SGLANG_VERSION == "0.5.23" else "response.completed"
"""How a stream ends that was as long as it might be."""

TURNS: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "Read the file, please."}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "It is short.", "signature": "s"},
            {"type": "text", "text": "I will."},
            {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "one two three"}],
    },
]
TOOLS = [
    {
        "name": "read",
        "description": "Reads a file.",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
]
PLAIN = [{"role": "user", "content": "Say hello."}]
BODIES: list[dict[str, Any]] = [
    {"messages": PLAIN},
    {"messages": PLAIN, "system": "Be brief."},
    {"messages": PLAIN, "system": [{"type": "text", "text": "Be brief."}], "tools": TOOLS},
    {"messages": TURNS, "tools": TOOLS, "tool_choice": {"type": "auto"}},
]
"""No `thinking`: without a reasoning parser this server answers it with a 400 of its own."""


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
        yield session


def full(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": MODEL_NAME, "max_tokens": 4, **body, **more}


async def test_a_count_is_the_engines_own(
    http: aiohttp.ClientSession, gate: Gate, engine: Engine
) -> None:
    """By the gate before, by the engine's route, and by its usage after."""
    for body in BODIES:
        asked = full(body)
        counts = []
        for url in (gate.url, engine.url):
            async with http.post(url + "/v1/messages/count_tokens", json=asked) as answer:
                counts.append((await answer.json())["input_tokens"])
        async with http.post(gate.url + "/v1/messages", json=asked) as answer:
            usage = (await answer.json())["usage"]
            ours = int(answer.headers["x-kvgate-prompt-tokens"])
        used = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        assert counts[0] == ours
        if body["messages"] is TURNS:  # this server has no reasoning parser, and drops the thought
            assert counts[1] == used <= ours, body
            assert ours < used + 20
        else:
            assert (*counts, ours) == (used, used, used), body
        assert usage["output_tokens"] == 4


async def test_a_stream_passes_byte_by_byte_and_its_usage_is_read(
    http: aiohttp.ClientSession, gate: Gate
) -> None:
    asked = full(BODIES[0], stream=True, max_tokens=20)
    async with http.post(gate.url + "/v1/messages", json=asked) as answer:
        data = await answer.read()
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: ")]
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_delta") > 10
    assert gate.reserved() == 0


async def test_a_response_and_its_stream(gate: Gate) -> None:
    async with AsyncOpenAI(base_url=f"{gate.url}/v1", api_key="any", max_retries=0) as client:
        raw = await client.responses.with_raw_response.create(
            model=MODEL_NAME, instructions="Be brief.", input="Say hello.", max_output_tokens=12
        )
        answer: Any = raw.parse()
        told = json.loads(raw.content)
        assert told["store"] is False
        usage = told["usage"]
        prompt = usage.get("input_tokens", usage.get("prompt_tokens"))
        assert int(raw.headers["x-kvgate-prompt-tokens"]) == prompt
        assert answer.output_text
        stream = await client.responses.create(
            model=MODEL_NAME, input="Say hello.", max_output_tokens=12, stream=True
        )
        kinds = [event.type async for event in stream]
        assert (kinds[0], kinds[-1]) == ("response.created", CUT)
        assert "response.output_text.delta" in kinds
    assert gate.reserved() == 0


FUNCTION: Any = {"type": "function", "name": "read", "parameters": {"type": "object"}}
CODEX: Any = {
    "input": [
        {
            "type": "message",
            "id": "msg_1",
            "role": role,
            "content": [{"type": "input_text", "text": "Hi."}],
        }
        for role in ("developer", "user")
    ],
    "tools": [
        FUNCTION,
        {"type": "namespace", "name": "agents", "tools": [FUNCTION]},
        {"type": "web_search", "external_web_access": False},
        {"type": "custom", "name": "patch", "description": "Edits.", "format": {"type": "text"}},
    ],
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"summary": "auto"},
    "prompt_cache_key": "a",
    "client_metadata": {"session_id": "a"},
    "parallel_tool_calls": True,
    "store": False,
}
"""As Codex 0.171 words it."""


@pytest.mark.parametrize("stream", [False, True])
async def test_what_codex_sends_is_answered(
    http: aiohttp.ClientSession, gate: Gate, stream: bool
) -> None:
    asked = {**CODEX, "model": MODEL_NAME, "max_output_tokens": 8, "stream": stream}
    async with http.post(gate.url + "/v1/responses", json=asked) as answer:
        said = (await answer.read()).decode()
    assert answer.status == 200, said
    told = json.loads(said.splitlines()[-2].removeprefix("data: ")) if stream else json.loads(said)
    usage = told["response"]["usage"] if stream else told["usage"]
    prompt = usage.get("input_tokens", usage.get("prompt_tokens"))
    assert int(answer.headers["x-kvgate-prompt-tokens"]) >= prompt, "never below the server's own"
    assert gate.reserved() == 0


OLLAMA: list[tuple[str, dict[str, Any]]] = [
    ("/api/chat", {"messages": PLAIN}),
    ("/api/chat", {"messages": [{"role": "system", "content": "Be brief."}, *PLAIN]}),
    ("/api/chat", {"messages": PLAIN, "think": False}),
    ("/api/chat", {"messages": PLAIN, "think": "high", "logprobs": True, "top_logprobs": 2}),
    (
        "/api/chat",
        {
            "tools": [{"type": "function", "function": {"name": "read", "parameters": {}}}],
            "messages": [
                *PLAIN,
                {
                    "role": "assistant",
                    "content": "I will.",
                    "thinking": "It is short.",
                    "tool_calls": [{"function": {"name": "read", "arguments": {"path": "a"}}}],
                },
                {"role": "tool", "tool_name": "read", "content": "one two three"},
            ],
        },
    ),
    ("/api/generate", {"prompt": "Say hello.", "system": "Be brief."}),
    ("/api/generate", {"prompt": "Say hello.", "raw": True}),
]
OPTIONS = {
    "num_predict": 6, "num_ctx": 512, "temperature": 0.7, "top_p": 0.9, "top_k": 0, "min_p": 0.05, "seed": 3,
    "repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "stop": ["never said"],
}  # fmt: skip


async def test_ollama_is_counted_exactly_and_takes_every_option(
    http: aiohttp.ClientSession, gate: Gate
) -> None:
    for path, body in OLLAMA:
        asked = {"model": f"{MODEL_NAME}:latest", "options": OPTIONS, **body}
        for stream in (True, False):
            async with http.post(gate.url + path, json=asked | {"stream": stream}) as answer:
                data = await answer.read()
                assert answer.status == 200, (path, body, data)
                counted = int(answer.headers["x-kvgate-prompt-tokens"])
            lines = [json.loads(line) for line in data.splitlines()]
            last = lines[-1]
            assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 6)
            assert last["prompt_eval_count"] == counted, (path, body)
            if body.get("logprobs"):
                assert all(len(one["logprobs"][0]["top_logprobs"]) == 2 for one in lines[:1])
    assert gate.reserved() == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_is_gone_from_the_engine_without_an_id_of_ours(
    http: aiohttp.ClientSession, gate: Gate, engine: Engine, report: Note, stream: bool
) -> None:
    asking = asyncio.ensure_future(
        _read(http, gate, full(BODIES[0], stream=stream, max_tokens=1500))
    )
    while not engine.loads()["num_running_reqs"]:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    asking.cancel()
    left = time.monotonic()
    while gate.reserved() or engine.loads()["num_running_reqs"]:
        assert time.monotonic() < left + 20
        await asyncio.sleep(0.02)
    report(
        f"{'streamed' if stream else 'whole'}: gone {time.monotonic() - left:.2f} s after it left"
    )


async def _read(http: aiohttp.ClientSession, gate: Gate, body: dict[str, Any]) -> bytes:
    async with http.post(gate.url + "/v1/messages", json=body) as answer:
        return await answer.read()
