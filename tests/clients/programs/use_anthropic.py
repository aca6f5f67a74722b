"""The Anthropic SDK, as it comes, against the URL in its arguments. Prints what it saw as JSON."""

import asyncio
import json
import sys
import time

import anthropic

URL = sys.argv[1]
TURNS = [{"role": "user", "content": "Tell me about the sea."}]
TOOLS = [{"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}]
SYSTEM = [{"type": "text", "text": "Be brief."}]


def plain() -> dict:
    client = anthropic.Anthropic(base_url=URL, api_key="sk-any", max_retries=0)
    answer = client.messages.create(
        model="tiny", max_tokens=8, messages=TURNS, tools=TOOLS, system=SYSTEM
    )
    counted = client.messages.count_tokens(model="tiny", messages=TURNS, tools=TOOLS, system=SYSTEM)
    with client.messages.stream(model="tiny", max_tokens=8, messages=TURNS) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    return {
        "stop": answer.stop_reason,
        "input": answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0),
        "output": answer.usage.output_tokens,
        "counted": counted.input_tokens,
        "text": text,
        "same": last.content[0].text == text,
        "stream_output": last.usage.output_tokens,
    }


def errors() -> dict:
    client = anthropic.Anthropic(base_url=URL, api_key="sk-any", max_retries=0)
    long = [{"role": "user", "content": "sea " * 9000}]
    found = {}
    try:
        client.messages.create(model="tiny", max_tokens=8, messages=long)
    except anthropic.BadRequestError as error:
        found["long"] = error.body["error"]["code"]
    try:
        client.messages.create(model="tiny", max_tokens=0, messages=TURNS)
    except anthropic.BadRequestError as error:
        found["zero"] = error.body["error"]["type"]
    return found


async def many() -> dict:
    """More than the queue takes at once: the SDK comes back after `retry-after` and gets its answer."""
    client = anthropic.AsyncAnthropic(base_url=URL, api_key="sk-any", max_retries=6)
    begun = time.monotonic()

    async def one() -> int:
        async with client.messages.stream(model="tiny", max_tokens=700, messages=TURNS) as stream:
            return len([piece async for piece in stream.text_stream])

    sizes = await asyncio.gather(*(one() for _ in range(10)))
    return {"answered": sum(size > 0 for size in sizes), "seconds": time.monotonic() - begun}


print(json.dumps({"plain": plain(), "errors": errors(), "many": asyncio.run(many())}))
