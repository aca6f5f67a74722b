"""Agents that keep their whole history and never send a cap, as incident C had them.

Arguments: the gate's URL, how many agents, how many turns each. A turn asks for what comes next,
streamed; is answered with a few dozen tokens, taken for a call of a tool; and adds the call and some
7,000 tokens of new code as its result. Prints what they met as JSON.
"""

import asyncio
import json
import random
import sys
from typing import Any

import aiohttp

from tests.bench.fresh_text import code, english

URL, AGENTS, TURNS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
RESULT = 23_500
"""Characters of a result: some 7,000 tokens of Qwen 3's."""
SAID = 60
"""Tokens of an answer: a call and its arguments."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": english(random.Random(name), 1500),
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("read", "write", "edit", "bash", "grep", "glob", "task", "todo", "fetch", "skill")
]


async def agent(http: aiohttp.ClientSession, number: int) -> dict[str, Any]:
    """One session from its first question to its last."""
    rng = random.Random(number)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": english(rng, 12_000)},
        {"role": "user", "content": f"Mend the {number}. of the bugs."},
    ]
    met: dict[str, Any] = {"statuses": [], "ended": 0}
    for turn in range(TURNS):
        body = {
            "model": "Qwen3.6-27B",
            "messages": messages,
            "tools": TOOLS,
            "stream": True,
            "stream_options": {"include_usage": True},
            "twin_output_tokens": SAID,
        }
        headers = {"x-session-id": f"ses_{number}"}
        async with http.post(URL + "/v1/chat/completions", json=body, headers=headers) as answer:
            text = (await answer.read()).decode()
            met["statuses"].append(answer.status)
            met["ended"] += text.rstrip().endswith("data: [DONE]")
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": "read", "arguments": json.dumps({"path": f"f{turn}.py"})},
        }
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        result = code(rng, RESULT)
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": result})
    return met


async def main() -> None:
    """All of them at once."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        print(json.dumps(await asyncio.gather(*(agent(http, n) for n in range(AGENTS)))))


asyncio.run(main())
