"""Nobody sees the first token of an answer in one piece: what the engine counts gives its prefill back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from tests.real.load import chat_body, post

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real.conftest import Note
    from tests.real.engine import Engine
    from tests.real.gateproc import Gate

PROMPT = 1400
"""Tokens, near enough: 1.4 s by what is assumed before anything was measured. The engine takes 0.05 s."""

REQUESTS = 6


async def test_a_prompt_is_given_back_long_before_its_answer(
    make_gate: Callable[..., Gate], engine: Engine, report: Note
) -> None:
    gate = make_gate(engine)
    seen = []
    async with aiohttp.ClientSession() as http:
        for number in range(REQUESTS):
            body = chat_body(PROMPT, seed=number, max_tokens=60, ignore_eos=True)
            asked = asyncio.ensure_future(post(http, f"{gate.url}/v1/chat/completions", body))
            read = False
            while not asked.done():
                held = await asyncio.to_thread(gate.ledgers)
                read = read or (held["slots"] == 1 and held["prefill"] == 0)
            assert (await asked).status == 200
            seen.append(read)
    report(f"read before the whole answer was there: {seen}")
    # The first ones by its count of what runs, which is told once a second; then by its counters.
    assert all(seen[3:])
