"""Two servers behind one gate: conversations go on where they were, and agents take turns."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gateway.core.prefix import Prefixes
from gateway.edge import tickets
from tests.edge.rig import CHAT, chat, running
from tests.fakes.behaviour import Behaviour
from tests.fakes.sglang import FakeSGLang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.edge.rig import Rig


@asynccontextmanager
async def two(tmp_path: Any, **policy: Any) -> AsyncIterator[tuple[Rig, FakeSGLang]]:
    async with FakeSGLang() as other:
        more = [{"url": other.url, "name": "gpu1"}]
        async with running(tmp_path, {"more": more, **policy}) as rig:
            await rig.until(lambda: all(backend.ready for backend in rig.app.fleet), 20.0)
            yield rig, other


async def test_what_a_server_found_in_its_cache_reaches_the_core(rig, monkeypatch) -> None:
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 7},
    }
    answer = json.dumps({"object": "chat.completion", "choices": [], "usage": usage}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    rig.engine.queue.append(Behaviour(raw=head % len(answer) + answer))
    told: list[int] = []
    monkeypatch.setattr(Prefixes, "found", lambda _self, _hoped, cached: told.append(cached))
    assert (await rig.chat(max_tokens=5)).status == 200
    assert told == [7]


async def test_each_of_two_servers_takes_its_part(tmp_path) -> None:
    async with two(tmp_path) as (rig, other):
        hold = asyncio.Event()
        for engine in (rig.engine, other):
            engine.queue += [Behaviour(tokens=3, hold=hold, hold_at=1)] * 4
        asked = [asyncio.ensure_future(rig.chat(max_tokens=200)) for _ in range(4)]
        await rig.until(lambda: len(rig.engine.seen) + len(other.seen) == 4)
        assert (len(rig.engine.seen), len(other.seen)) == (2, 2)
        hold.set()
        assert [got.status for got in await asyncio.gather(*asked)] == [200] * 4


@pytest.mark.parametrize("header", tickets.SESSIONS)
async def test_sub_agents_do_not_stand_before_another_agent_of_the_same_key(rig, header) -> None:
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(tokens=3, hold=hold, hold_at=1))
    first = asyncio.ensure_future(rig.chat(max_tokens=1500))
    await rig.until(lambda: bool(rig.engine.seen))
    asked = []
    for number, session in enumerate(["a", "a", "a", "b"], 1):
        body = chat(max_tokens=1500 + number)
        asked.append(asyncio.ensure_future(rig.post(CHAT, body, headers={header: session})))
        await rig.queued(number)
    hold.set()
    assert [got.status for got in await asyncio.gather(first, *asked)] == [200] * 5
    caps = [seen.body["max_tokens"] - 1500 for seen in rig.engine.seen]
    assert caps == [0, 1, 4, 2, 3]
    told = [record["session"] for record in reversed(rig.records)]
    assert told[0] is None
    assert (len(set(told[1:])), told[1:].count(told[1])) == (2, 3), "which are of one session"


def test_a_session_s_name_is_kept_as_a_mark_only() -> None:
    mark = tickets.session({"x-session-id": "ses_secret"})
    assert mark is not None
    assert re.fullmatch("[0-9a-f]{12}", mark)
    assert mark == tickets.session({"x-session-id": "ses_secret"})
    assert mark != tickets.session({"x-session-id": "ses_other"})
    assert tickets.session({"x-other": "ses_secret"}) is None
    assert mark != tickets.session({"x-kvgate-session": "ses_secret"}), "each agent has its own"


def test_a_session_s_mark_says_nothing_beyond_one_run(monkeypatch) -> None:
    """Nor can it be found out from outside what was hashed: the key is new at each start."""
    mark = tickets.session({"x-session-id": "ses_secret"})
    monkeypatch.setattr(tickets, "_KEY", b"another run")
    assert tickets.session({"x-session-id": "ses_secret"}) != mark
    odd = b"\xff\xfe".decode("utf-8", "surrogateescape")  # as aiohttp reads bytes that are no text
    assert tickets.session({"x-session-id": odd}) is not None


async def test_a_prompt_is_counted_by_one_of_two_servers_that_say_the_same_of_themselves(
    tmp_path,
) -> None:
    async with two(tmp_path) as (rig, other):
        before = [engine.calls["/v1/tokenize"] for engine in (rig.engine, other)]
        assert (await rig.chat(20, max_tokens=1)).status == 200
        asked = [engine.calls["/v1/tokenize"] for engine in (rig.engine, other)]
        assert sum(asked) == sum(before) + 1
