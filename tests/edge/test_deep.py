"""Nesting is a mistake of the client's, however deep it is and wherever it stands."""

from __future__ import annotations

import pytest

from tests.edge.rig import API_CHAT, CHAT, COUNT, GENERATE, TEXT, chat

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
DEPTHS = (
    300,
    900,
    960,
    990,
    1015,
)  # orjson reads 1024 levels; Python gives up at about 1,000 frames


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def tool_use(depth: int) -> bytes:
    block = b'{"type":"tool_use","id":"t","name":"f","input":%b}' % nested(depth)
    turns = b'[{"role":"user","content":"a"},{"role":"assistant","content":[%b]}]' % block
    return b'{"max_tokens":5,"messages":%b}' % turns


def called(depth: int) -> bytes:
    call = b'{"type":"function_call","call_id":"c","name":"f","arguments":%b}' % nested(depth)
    return b'{"input":[{"role":"user","content":"a"},%b]}' % call


def ollama_call(depth: int) -> bytes:
    calls = b'[{"function":{"name":"f","arguments":%b}}]' % nested(depth)
    return b'{"messages":[{"role":"assistant","content":"","tool_calls":%b}]}' % calls


def aside(first: bytes, depth: int) -> bytes:
    return b'{%b,"x":%b}' % (first, nested(depth))


TURN = b'"messages":[{"role":"user","content":"a"}]'
PLACES = {
    MESSAGES: tool_use,
    RESPONSES: called,
    CHAT: lambda depth: aside(TURN, depth),
    API_CHAT: ollama_call,
    TEXT: lambda depth: aside(b'"prompt":"a"', depth),
    GENERATE: lambda depth: aside(b'"text":"a"', depth),
}


@pytest.mark.parametrize("path", PLACES)
async def test_a_body_nested_too_deeply_is_a_400_in_words(rig, path: str) -> None:
    for depth in DEPTHS:
        got = await rig.post(path, PLACES[path](depth))
        assert (got.status, got.code) == (400, "invalid_request"), (depth, got.body)
        assert "nested too deeply" in got.body.decode()
    assert rig.engine.seen == []


async def test_what_is_only_counted_is_counted_or_a_400_in_words(rig) -> None:
    """It is not written again, and how deep its reader goes is Python's affair (3.13 reads all of it)."""
    for depth in DEPTHS:
        got = await rig.post(COUNT, tool_use(depth))
        if got.status == 200:
            assert got.json()["input_tokens"] > 0
        else:
            assert (got.status, got.code) == (400, "invalid_request"), (depth, got.body)
            assert "nested too deeply" in got.body.decode()


async def test_after_deaths_as_well(rig) -> None:
    """Then each body is compared with those that were in flight."""
    rig.app.data._deaths.quarantine.died([b"another"], rig.app.gate.now())
    for depth in DEPTHS:
        got = await rig.post(CHAT, PLACES[CHAT](depth))
        assert (got.status, got.code) == (400, "invalid_request"), (depth, got.body)
    assert (await rig.post(CHAT, chat())).status == 200
