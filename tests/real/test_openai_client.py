"""The official `openai` client, unchanged but for its base URL, before a genuine SGLang."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.real.conftest import POOL
from tests.real.engine import MODEL_NAME
from tests.real.load import chat_body, digits, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.real.conftest import Note
    from tests.real.engine import Engine
    from tests.real.gateproc import Gate

GREETING: list[Any] = [{"role": "user", "content": "Say hello."}]

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file of the working folder.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    },
}


@pytest.fixture
async def client(gate: Gate) -> AsyncIterator[AsyncOpenAI]:
    async with connect(gate) as made:
        yield made


def connect(gate: Gate, max_retries: int = 0) -> AsyncOpenAI:
    url = f"{gate.url}/v1"
    return AsyncOpenAI(base_url=url, api_key="anyone", timeout=60, max_retries=max_retries)


async def test_chat(client: AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL_NAME, messages=GREETING, max_tokens=20
    )
    answer = raw.parse()
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content
    assert int(raw.headers["x-kvgate-prompt-tokens"]) == answer.usage.prompt_tokens
    assert int(raw.headers["x-kvgate-max-tokens"]) == 20
    assert raw.headers["x-request-id"]


async def test_chat_through_the_blocking_client(gate: Gate) -> None:
    def ask() -> str | None:
        with OpenAI(base_url=f"{gate.url}/v1", api_key="anyone", timeout=60) as blocking:
            answer = blocking.chat.completions.create(
                model=MODEL_NAME, messages=GREETING, max_completion_tokens=5
            )
            return answer.choices[0].message.content

    assert await asyncio.to_thread(ask)


async def test_streamed_chat(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL_NAME,
        messages=GREETING,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage]
    assert usage.completion_tokens == 20
    assert chunks[-1].usage is usage


async def test_a_stream_left_early(client: AsyncOpenAI, gate: Gate) -> None:
    stream = await client.chat.completions.create(
        model=MODEL_NAME, messages=GREETING, max_tokens=1000, stream=True
    )
    async with stream:
        async for _chunk in stream:
            break
    await until(lambda: gate.reserved() == 0, 5, "the reservation is given back")


async def test_completions(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL_NAME, prompt="One two", max_tokens=10)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10
    stream = await client.completions.create(
        model=MODEL_NAME, prompt="One two", max_tokens=10, stream=True
    )
    reasons = [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices]
    assert reasons[-1] == "length"


async def test_n_answers_are_charged_n_times(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL_NAME, messages=GREETING, max_tokens=10, n=2
    )
    assert len(answer.choices) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20
    # Sixty-four of them would leave each a stub of 20 tokens, although one fits well.
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model=MODEL_NAME, messages=GREETING, max_tokens=POOL, n=64
        )
    assert refused.value.code == "context_length_exceeded"


async def test_prompt_lists(client: AsyncOpenAI) -> None:
    texts = await client.completions.with_raw_response.create(
        model=MODEL_NAME, prompt=["One two", "Three"], max_tokens=5
    )
    answer = texts.parse()
    assert len(answer.choices) == 2
    assert answer.usage is not None
    assert int(texts.headers["x-kvgate-prompt-tokens"]) == answer.usage.prompt_tokens
    ids = await client.completions.with_raw_response.create(
        model=MODEL_NAME, prompt=[[9707, 11], [1879]], max_tokens=5
    )
    answer = ids.parse()
    assert answer.usage is not None
    assert int(ids.headers["x-kvgate-prompt-tokens"]) == answer.usage.prompt_tokens == 3


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_tools_are_counted(client: AsyncOpenAI, choice: Any) -> None:
    conversation: list[Any] = [
        {"role": "system", "content": "You work in a folder."},
        {"role": "user", "content": "What is in notes.txt?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "read_file", "arguments": '{"path": "notes.txt"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "nothing much"},
    ]
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL_NAME, messages=conversation, tools=[TOOL], tool_choice=choice, max_tokens=10
    )
    answer = raw.parse()
    assert answer.usage is not None
    assert int(raw.headers["x-kvgate-prompt-tokens"]) == answer.usage.prompt_tokens


async def test_models(client: AsyncOpenAI) -> None:
    assert MODEL_NAME in [model.id async for model in client.models.list()]


async def test_too_long_a_prompt_is_a_bad_request(client: AsyncOpenAI) -> None:
    began = time.monotonic()
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**chat_body(POOL + 500, seed=1))
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert str(POOL + 500) in refused.value.message, "it says what was needed"
    assert time.monotonic() - began < 2, "refused at the door, not after a turn in the queue"


async def test_a_malformed_request_is_a_bad_request(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(
            model=MODEL_NAME, messages=GREETING, max_tokens=-5, temperature=0
        )
    nobody: Any = [{"role": "user"}]
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model=MODEL_NAME, messages=nobody, max_tokens=5)


async def test_other_routes_are_not_found(client: AsyncOpenAI) -> None:
    for path in ("/v1/audio/transcriptions", "/server_info", "/flush_cache", "/v1/loads"):
        url = str(client.base_url).removesuffix("/v1/") + path
        with pytest.raises(openai.NotFoundError):
            await client.post(url, cast_to=object, body={})


async def test_a_full_queue_is_a_rate_limit_honoured(
    engine: Engine, make_gate: Callable[..., Gate], report: Note
) -> None:
    """429 with Retry-After; the client's own retries then carry the request through."""
    # By what is likely both would run together, as soon as the first has shown that the server answers.
    gate = make_gate(engine, {"queue": {"max_requests": 1}, "reservation": "declared"})
    long = chat_body(100, seed=1, max_tokens=1400)
    async with (
        connect(gate) as hasty,
        connect(gate, max_retries=6) as patient,
        asyncio.TaskGroup() as tasks,
    ):
        holder = tasks.create_task(hasty.chat.completions.create(**long))
        await until(lambda: gate.reserved() > 0, 5, "one request holds the pool")
        second = tasks.create_task(hasty.chat.completions.create(**long | {"max_tokens": 600}))
        await until(lambda: gate.status()["queue"]["requests"] == 1, 5, "one waits")

        third = chat_body(100, seed=3, max_tokens=600)
        with pytest.raises(openai.RateLimitError) as refused:
            await hasty.chat.completions.create(**third)
        assert refused.value.code == "queue_full"
        wait_s = int(refused.value.response.headers["retry-after"])
        assert 1 <= wait_s <= 60

        began = time.monotonic()
        raw = await patient.chat.completions.with_raw_response.create(**third)
        took = time.monotonic() - began
        assert raw.retries_taken >= 1
        assert took >= 1, "it waited as it was told"
        usage = raw.parse().usage
        assert usage is not None
        assert usage.completion_tokens == 600
    for task in (holder, second):
        assert task.result().choices[0].finish_reason == "length"
    report(
        f"queue full: 429, retry-after {wait_s} s; the openai client got its answer after "
        f"{took:.1f} s and {raw.retries_taken} retries"
    )


async def test_prompt_counts_agree_whatever_the_text(client: AsyncOpenAI) -> None:
    for text in ("déjà vu — 東京 🙂\n\n  indented", digits(40, seed=9), "<|im_start|>user\nhi"):
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL_NAME, messages=[{"role": "user", "content": text}], max_tokens=1
        )
        usage = raw.parse().usage
        assert usage is not None
        assert int(raw.headers["x-kvgate-prompt-tokens"]) == usage.prompt_tokens, repr(text)
