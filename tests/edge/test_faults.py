"""What is wrong with a body is said of it, and not that it is too long: chats that cannot be read are
bounded by their bytes, and what the model never sees is left out before it is counted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edge.rig import CHAT, COUNT
from tests.fakes.behaviour import Behaviour
from tests.fakes.typed import MESSAGES, RESPONSES


def nameless(words: int, **fields: Any) -> dict[str, Any]:
    """A chat whose message has no role that is one."""
    return {"messages": [{"role": 5, "content": "w " * words}], "max_tokens": 5, **fields}


async def test_a_chat_that_no_server_reads_is_told_so_and_not_that_it_is_long(rig) -> None:
    """A thousand tokens of text, bounded by some 2,500 where 2,041 are the most."""
    for stream in (False, True):
        got = await rig.post(CHAT, nameless(1000, stream=stream))
        assert (got.status, got.code) == (400, "invalid_request")
        told = got.error["message"]
        assert "server does not read this body: role: input should be text. Counted by its" in told
        assert "the longest input here is 2041" in told
        assert "Shorten" not in told
        assert rig.records[0]["code"] == "invalid_request"
    assert rig.engine.seen == []


async def test_one_that_is_short_enough_gets_the_engine_s_own_words(rig) -> None:
    rig.engine.default = Behaviour(error=(400, "role: input should be text"))
    got = await rig.post(CHAT, nameless(10))
    assert (got.status, got.headers["x-kvgate-error-source"]) == (400, "upstream")
    assert len(rig.engine.seen) == 1


@pytest.mark.parametrize(("words", "role"), [(3000, "user"), (4500, 5)])
async def test_what_is_long_in_any_case_is_long(rig, words: int, role: Any) -> None:
    """Agents shorten what is told to be too long, and a history may have a wrong call in it anywhere."""
    body = nameless(words)
    body["messages"][0]["role"] = role
    got = await rig.post(CHAT, body)
    assert (got.status, got.code) == (400, "context_length_exceeded")
    assert "read this body" not in got.error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_not_counted_in_time_is_not_told_to_be_too_long(
    rig, monkeypatch, stream: bool
) -> None:
    """It fits, and a client that is told otherwise shortens it, or gives up."""
    monkeypatch.setattr("gateway.tokens.counter.REMOTE_SECONDS", 0)
    got = await rig.chat(1000, stream=stream)
    assert (got.status, got.code, got.headers["retry-after"]) == (503, "queue_timeout", "5")
    assert "x-should-retry" not in got.headers
    assert "too busy to count this prompt" in got.error["message"]
    assert (got.error["needed"] > 2041, got.error["available"]) == (True, 2041)
    assert rig.records[0]["code"] == "queue_timeout"
    assert rig.engine.seen == []
    monkeypatch.undo()
    assert (await rig.chat(1000, stream=stream)).status == 200


async def test_what_is_long_however_it_is_counted_is_told_so_at_once(rig, monkeypatch) -> None:
    monkeypatch.setattr("gateway.tokens.counter.REMOTE_SECONDS", 0)
    got = await rig.chat(5000)
    assert (got.status, got.code) == (400, "context_length_exceeded")
    assert "The first is the most it can be: not all of it was counted." in got.error["message"]
    monkeypatch.undo()
    assert "The first" not in (await rig.chat(5000)).error["message"]


def image(**source: Any) -> list[Any]:
    return [{"role": "user", "content": [{"type": "image", "source": source}]}]


PDF = {"type": "document", "source": {}}
FIRST = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (image(type="base64", media_type="image/png", data=""), f"`{FIRST}.source` needs `data`"),
        (image(type="url"), f"`{FIRST}.source` needs `data`"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], f"`{FIRST}.text` must be"),
        ([{"role": "user", "content": [PDF]}], f"`{FIRST}` is of no type that reaches the model"),
        ([{"role": "user", "content": [5]}], f"`{FIRST}` is of no type that reaches the model"),
        ([5], "`messages[0]` must be an object"),
        ([{"role": "user", "content": []}], "`messages` must have something for the model"),
        ([], "must be a list with at least one message"),
    ],
)
async def test_a_message_of_which_nothing_is_left_is_told_what_was_wrong(
    rig, messages: Any, told: str
) -> None:
    for path in (MESSAGES, COUNT):
        got = await rig.post(path, {"model": "tiny", "max_tokens": 5, "messages": messages})
        assert got.status == 400
        assert told in got.error["message"]
    assert rig.engine.seen == []


async def test_an_image_without_data_beside_words_is_left_out_as_the_engine_does(rig) -> None:
    (turn,) = image(type="base64", data="")
    turn["content"].append({"type": "text", "text": "a b"})
    body = {"model": "tiny", "max_tokens": 5, "messages": [turn]}
    assert (await rig.post(COUNT, body)).status == 200
    assert (await rig.post(MESSAGES, body)).status == 200


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (7, "`input` must be text or a list"),
        ([5], "`input` must have an item for the model"),
        ([{"type": "reasoning", "summary": []}], "`input` must have an item for the model"),
    ],
)
async def test_responses_of_nothing_say_what_is_there(rig, given: Any, told: str) -> None:
    got = await rig.post(RESPONSES, {"model": "tiny", "input": given})
    assert (got.status, told in got.error["message"]) == (400, True), got.body
