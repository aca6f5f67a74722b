"""The official client, unchanged: streamed and not, tools, and its exceptions."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from gateway.edge import replies
from tests.edge.rig import TEXT
from tests.fakes.behaviour import Behaviour, queue_full

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MESSAGES: Any = [{"role": "user", "content": "one two three"}]


@pytest.fixture
async def client(rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=rig.app.listen_url + "/v1", api_key="sk-any", max_retries=0
    ) as one:
        yield one


async def test_an_answer_and_a_stream(rig, client) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4)
    assert answer.choices[0].message.content == "w w w w"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    text = ""
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=4, stream=True
    )
    async for chunk in stream:
        assert chunk.usage is None
        text += chunk.choices[0].delta.content or ""
    assert text.split() == ["w"] * 4
    listed = [model async for model in client.models.list()]
    assert [model.id for model in listed] == ["tiny"]
    assert await client.models.retrieve("tiny") == listed[0]
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.models.retrieve("huge")
    assert (unknown.value.code, unknown.value.param) == ("not_found", "model")
    done = await client.completions.create(model="tiny", prompt="a b", max_tokens=3)
    assert done.choices[0].finish_reason == "length"


async def test_usage_where_it_was_asked_for(client) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []


async def test_tools_go_on_as_they_came(rig, client) -> None:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools: Any = [{"type": "function", "function": {"name": "read", "parameters": parameters}}]
    await client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=tools, tool_choice="auto", max_tokens=2
    )
    sent = rig.engine.seen[0].body
    assert (sent["tools"], sent["tool_choice"]) == (tools, "auto")
    assert rig.records[0]["prompt_tokens"] == rig.records[0]["usage_prompt_tokens"]


async def test_errors_are_those_of_its_own_types(rig, client) -> None:
    long: Any = [{"role": "user", "content": "w " * 3000}]
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="tiny", messages=long)
    assert bad.value.code == "context_length_exceeded"
    assert "2041" in bad.value.message
    with pytest.raises(openai.NotFoundError):
        await client.images.generate(prompt="x")
    await rig.control("/drain", "POST")
    with pytest.raises(openai.InternalServerError) as draining:
        await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert (draining.value.status_code, draining.value.code) == (503, "draining")


async def test_a_broken_stream_raises(rig, client) -> None:
    """Class H: never an empty success."""
    rig.engine.default = Behaviour(tokens=9, gap_s=0.01, close_at=3)
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, max_tokens=9
    )
    with pytest.raises(openai.APIError) as broken:
        async for _ in stream:
            pass
    assert "broke off" in str(broken.value)


async def test_it_does_not_repeat_what_cannot_help_and_comes_back_when_told(
    start, monkeypatch
) -> None:
    """Class O: x-should-retry stops it, retry-after times it."""
    monkeypatch.setattr(replies, "LONGEST_RETRY_S", 1)
    async with start({"queue": {"max_requests": 1, "max_wait_s": 30}}) as rig:
        url = rig.app.listen_url + "/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=2) as client:
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "w " * 3000}]
                )
            assert rig.handled == 1
            hold = asyncio.Event()
            rig.engine.queue.append(Behaviour(tokens=2, hold=hold, hold_at=1))
            full = {"prompt": [1] * 20, "max_tokens": 5000}
            running = asyncio.ensure_future(rig.post(TEXT, full))
            await rig.engine.arrived()
            waiting = asyncio.ensure_future(rig.post(TEXT, full))
            await rig.queued()
            refused = len(rig.records)
            asked = asyncio.ensure_future(
                client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2)
            )
            await rig.until(lambda: len(rig.records) > refused)
            told = rig.records[0]
            assert told["code"] == "queue_full"
            hold.set()
            await asyncio.gather(running, waiting)
            loop = asyncio.get_running_loop()
            began = loop.time()
            answer = await asked
            assert 0.7 < loop.time() - began < 4
            assert answer.choices
            assert rig.records[0]["client_retry"] == 1


async def test_a_full_engine_is_invisible_to_it(rig, client) -> None:
    rig.engine.queue.append(queue_full())
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, max_tokens=2
    )
    assert len([chunk async for chunk in stream]) > 2
    assert json.dumps(rig.records[0]["attempts"]) == "2"
