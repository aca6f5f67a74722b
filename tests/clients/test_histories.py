"""Agents whose histories grow to 100,000 tokens and that send no cap, on the cards of incident C.

Figures (`-s` prints them), with the gate, the twin and the agents on one machine of two cores that did
other work as well, 30 November 2026: 90 turns up to 113,255 tokens; reading, parsing and counting took
72 ms a turn (median), 401 ms at most, nearly all of it waiting for a processor: alone, a turn is 8 ms of
processor time, 13 ms above 130,000 tokens.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.app import App
from gateway.policy.load import load_policy
from gateway.tokens.local import LocalCounter
from tests.tokens import fetch_tokenizers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
AGENTS, TURNS = 6, 15
SPEED = 30.0
NEW = 4
"""Pieces of a prompt that are new with a turn: the call, its result, the beginning of the answer; and
the call once more, since the template prints the last one a little differently."""


async def program(name: str, *arguments: str) -> asyncio.subprocess.Process:
    """One of `programs`, with pipes to it."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tests.clients.programs.{name}", *arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def test_all_of_them_come_through_and_counting_stays_the_same(
    tmp_path: Path, record_property: Any
) -> None:
    folder = fetch_tokenizers.folder() / "qwen3"
    if not folder.is_dir() and fetch_tokenizers.main():
        pytest.skip("the tokenizers are not here: python -m tests.tokens.fetch_tokenizers")
    twin = await program("qwen_twin", str(folder), str(SPEED))
    assert twin.stdout is not None
    url = (await twin.stdout.readline()).decode().strip()
    assert url, "the twin did not start: see what it said"
    policy = (ROOT / "policies" / "l20-tp4-262k.yaml").read_text()
    path = tmp_path / "policy.yaml"
    path.write_text(policy.replace("http://127.0.0.1:30000", url) + "\nobserve: {recent: 1000}\n")
    loopback = {"listen": "127.0.0.1:0", "control": "127.0.0.1:0"}
    app = App(load_policy(path, tokenizer=folder, env={}, **loopback))
    try:
        await app.start()
        while not app.fleet.any_ready:
            await asyncio.sleep(0.02)
        agents = await program("histories", app.listen_url, str(AGENTS), str(TURNS))
        met = json.loads((await agents.communicate())[0])
        records = app.records.recent()
        counter = app.fleet.backends["l20"].counter
        view = app.gate.view()
    finally:
        await app.stop()
        engine = json.loads((await twin.communicate(b""))[0] or "null")

    turns = AGENTS * TURNS
    assert engine == {"retractions": 0, "crashes": 0}
    assert [one["statuses"] for one in met] == [[200] * TURNS] * AGENTS
    assert [one["ended"] for one in met] == [TURNS] * AGENTS
    assert [pool.kv.reserved for pool in view.pools] == [0]
    assert len(records) == turns
    assert sum(one["prompt_tokens"] > 100_000 for one in records) >= AGENTS
    assert {one["outcome"] for one in records} == {"completed"}
    assert {one["cap_source"] for one in records} == {"injected"}
    assert {one["count_method"] for one in records} == {"exact"}
    assert all(one["prompt_tokens"] == one["usage_prompt_tokens"] for one in records)

    # A turn costs the count of what is new in it, however long the history is: not a piece of a
    # prompt is encoded twice.
    assert counter is not None
    assert isinstance(counter._local, LocalCounter)
    cache = counter._local._text.cache
    beginnings = 100  # calibration, tools, system messages, first questions
    assert cache.misses <= turns * NEW + beginnings
    assert cache.hits > turns * TURNS

    door = sorted(one["door_ms"] for one in records)
    late = [one["door_ms"] for one in records if one["prompt_tokens"] > 80_000]
    figures = {
        "turns": turns,
        "longest_tokens": max(one["prompt_tokens"] for one in records),
        "read_parse_count_ms_median": statistics.median(door),
        "read_parse_count_ms_p99": door[len(door) * 99 // 100],
        "read_parse_count_ms_max": door[-1],
        "the_same_above_80000_tokens_median": statistics.median(late),
        "waited_s_max": max(one["queue_ms"] or 0 for one in records) / 1000,
    }
    for name, value in figures.items():
        record_property(name, value)
    print(json.dumps(figures))
