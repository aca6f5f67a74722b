"""Our numbers are the engine's own: against `usage.prompt_tokens` of a genuine SGLang."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from gateway.tokens import Counter, Kind, Method, build_counter
from gateway.tokens.counter import tokenize_chat
from tests.real.install import SGLANG_VERSION
from tests.tokens.texts import chats, texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.real.engine import Engine

pytestmark = pytest.mark.timeout(600)

CHATS = 320
LONGEST = 1500  # tokens: the shared engine's pool has 2048


class Server:
    """The engine over HTTP, asked for one token each time."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(self._url + path, json=body) as reply:
            answer = await reply.json(content_type=None)
            assert reply.status == 200, (reply.status, answer, json.dumps(body)[:500])
            return answer

    async def tokenize(self, body: dict[str, Any]) -> int:
        return int((await self.post("/v1/tokenize", body))["count"])


@pytest.fixture
async def server(engine: Engine) -> AsyncIterator[Server]:
    async with aiohttp.ClientSession() as session:
        yield Server(session, engine.url)


async def counter_of(engine: Engine, server: Server | None) -> Counter:
    return await build_counter(
        tokenizer_dir=Path(engine.model_dir),
        engine_version=SGLANG_VERSION,
        remote=server.tokenize if server else None,
        model_type="qwen3",
    )


def specials_of(engine: Engine) -> list[str]:
    tokenizer = json.loads((Path(engine.model_dir) / "tokenizer.json").read_bytes())
    return [token["content"] for token in tokenizer["added_tokens"]]


async def test_calibration_agrees_with_the_server(engine: Engine, server: Server) -> None:
    counter = await counter_of(engine, server)
    assert counter.notes == ()
    counted = await counter.count(Kind.CHAT, {"messages": [{"role": "user", "content": "hi"}]}, 60)
    assert counted.method is Method.EXACT


async def chat_tokens(server: Server, body: dict[str, Any]) -> int:
    """The engine's own number: from usage, or from its tokenizer where it cannot generate.

    A forced tool call needs a grammar backend, which the CPU install has not.
    """
    if body.get("tools") and body.get("tool_choice") not in (None, "auto", "none"):
        return await server.tokenize(tokenize_chat(body))
    limits = {"model": "tiny", "max_tokens": 1, "temperature": 0}
    answer = await server.post("/v1/chat/completions", {**body, **limits})
    return int(answer["usage"]["prompt_tokens"])


async def test_chats(engine: Engine, server: Server) -> None:
    counter = await counter_of(engine, None)
    compared = 0
    for body in chats(17, specials_of(engine)):
        counted = await counter.count(Kind.CHAT, body, 100)
        if counted.total > LONGEST:
            continue
        assert counted.method is Method.EXACT, (counter.fallbacks, body)
        assert counter.observe(counted, await chat_tokens(server, body)) == 0, body
        compared += 1
        if compared == CHATS:
            break
    accuracy = counter.accuracy
    assert (accuracy.requests, accuracy.exact, accuracy.unders) == (CHATS, CHATS, 0)


async def test_completions_generate_and_token_ids(engine: Engine, server: Server) -> None:
    counter = await counter_of(engine, None)
    some = (text for text in texts(18, specials_of(engine)) if len(text) < 2000)
    for text, other in itertools.islice(zip(some, some, strict=False), 60):
        ids = [ord(char) % 5000 for char in text][:200]
        cases = [
            (Kind.COMPLETION, "/v1/completions", {"prompt": text}),
            (Kind.COMPLETION, "/v1/completions", {"prompt": [text, other]}),
            (Kind.COMPLETION, "/v1/completions", {"prompt": ids}),
            (Kind.GENERATE, "/generate", {"text": text}),
            (Kind.GENERATE, "/generate", {"text": [text, other]}),
            (Kind.GENERATE, "/generate", {"input_ids": [ids, ids[:9]]}),
        ]
        for kind, path, body in cases:
            counted = await counter.count(kind, body, 100)
            assert counted.method is Method.EXACT
            if kind is Kind.COMPLETION:
                answer = await server.post(path, {**body, "model": "tiny", "max_tokens": 1})
                assert counted.total == answer["usage"]["prompt_tokens"], body
            else:
                answer = await server.post(path, {**body, "sampling_params": {"max_new_tokens": 1}})
                answers = answer if isinstance(answer, list) else [answer]
                own = [one["meta_info"]["prompt_tokens"] for one in answers]
                assert list(counted.prompts) == own, body


async def test_anthropic_messages(engine: Engine, server: Server) -> None:
    counter = await counter_of(engine, None)
    tool = {"name": "f", "description": "does <it>", "input_schema": {"type": "object"}}
    turns = [
        {"role": "user", "content": "hello 世界"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "calling"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1, "é"]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "before"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "42"}],
                },
                {"type": "text", "text": "after"},
            ],
        },
    ]
    bodies = [
        {"messages": turns[:1]},
        {"messages": turns[:1], "system": "Be brief."},
        {
            "messages": turns[:1],
            "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"messages": turns, "tools": [tool]},
        {"messages": turns, "tools": [tool], "tool_choice": {"type": "tool", "name": "f"}},
        {"messages": turns, "tools": [tool], "tool_choice": {"type": "none"}},
        {"messages": [*turns, {"role": "assistant", "content": ""}, turns[0]], "tools": [tool]},
        {"messages": [turns[0], {"role": "system", "content": " inline "}, turns[0]]},
        {
            "messages": turns,
            "tools": [{"type": "web_search_20250305", "name": "web_search"}, tool],
            "output_config": {"effort": "low"},
        },
    ]
    for body in bodies:
        counted = await counter.count(Kind.MESSAGES, body, 100)
        if "tool_choice" in body:  # a forced call cannot be generated here, but counted
            answer = await server.post("/v1/messages/count_tokens", {**body, "model": "tiny"})
        else:
            answer = await server.post("/v1/messages", {**body, "model": "tiny", "max_tokens": 1})
            answer = answer["usage"]
        assert counted.total == answer["input_tokens"], body
        assert counted.method is Method.EXACT
