"""Every refusal: status, code, words, numbers, and the headers SDKs act on."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from gateway.core.model import Code, Refusal
from gateway.edge import replies
from tests.edge.rig import CHAT, TEXT, chat
from tests.fakes.behaviour import Behaviour
from tests.fakes.typed import MESSAGES, RESPONSES

FULL = {"prompt": [1] * 20, "max_tokens": 5000, "stream": True}


class Busy:
    """A gate whose whole pool is taken until `release`."""

    def __init__(self, rig) -> None:
        self.rig = rig
        self.hold = asyncio.Event()

    async def __aenter__(self) -> Busy:
        self.rig.engine.queue.append(Behaviour(tokens=2, hold=self.hold, hold_at=1))
        self.running = asyncio.ensure_future(self.rig.post(TEXT, FULL))
        await self.rig.engine.arrived()
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.hold.set()
        await self.running


@pytest.mark.parametrize("code", list(Code))
def test_each_code_has_a_status_a_type_and_something_to_do(code: Code) -> None:
    answer = replies.refused(Refusal(code, "it does not fit", 7, 5, 3, 2.25, 4.2))
    error = json.loads(answer.body)["error"]
    assert error["code"] == code.value
    assert "It does not fit. " in error["message"]
    assert len(error["message"]) > 30
    assert (error["needed"], error["available"], error["position"]) == (7, 5, 3)
    assert answer.headers["x-kvgate-error-source"] == "gateway"
    if answer.status in (429, 503):
        assert answer.headers["retry-after"] == "5"
        assert "x-should-retry" not in answer.headers
    else:
        assert "retry-after" not in answer.headers
        assert answer.headers.get("x-should-retry") == (None if answer.status == 401 else "false")


SAYS_TOO_LONG = {
    "LangChain 1.x": r"(?-i:prompt is too long)",
    "Claude Code 2.1": r"prompt is too long\D*(?P<needed>\d+)\s*tokens?\s*>\s*(?P<available>\d+)",
    "Qwen Code": r"(?P<needed>\d+)\s*tokens?\s*>\s*(?P<available>\d+)\s*maximum\b",
    "OpenCode, pi": r"prompt is too long",
}
"""What clients look for before they make room by themselves; none of these looks at the code."""


@pytest.mark.parametrize("client", SAYS_TOO_LONG)
@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES, MESSAGES, "/api/chat", "/api/generate"])
async def test_that_a_prompt_is_too_long_is_said_so_that_clients_know(
    rig, path: str, client
) -> None:
    words = " w" * 4000
    said = {"messages": [{"role": "user", "content": words}], "prompt": words, "input": words}
    got = await rig.post(path, {"model": "tiny", "max_tokens": 5, **said})
    assert (got.status, got.code) == (400, "context_length_exceeded")
    error = got.error if isinstance(got.error, dict) else got.json()
    message = got.error if isinstance(got.error, str) else error["message"]
    found = re.search(SAYS_TOO_LONG[client], message, re.IGNORECASE)
    assert found, message
    for name, number in found.groupdict().items():
        assert int(number) == error[name]


@pytest.mark.parametrize(
    ("wait", "told"), [(None, 5), (0.0, 1), (0.2, 1), (58.4, 59), (59.4, 59), (1000.0, 59)]
)
def test_retry_after_is_a_whole_number_of_seconds_from_1_to_59(wait, told: int) -> None:
    """Class O: SDKs obey it without limit, or ignore it at 60 or above it."""
    answer = replies.refused(Refusal(Code.QUEUE_FULL, "full", retry_after_s=wait))
    assert answer.headers["retry-after"] == str(told)


async def test_a_full_queue_is_429_with_place_and_time(start) -> None:
    """Class N: bounded by count; the refusal says who is in the way and when to come back."""
    async with start({"queue": {"max_requests": 1}}) as rig:
        async with Busy(rig):
            waiting = asyncio.ensure_future(rig.chat(max_tokens=5))
            await rig.queued()
            got = await rig.chat(max_tokens=5)
            error = got.error
            assert (got.status, got.code, error["type"]) == (429, "queue_full", "rate_limit_error")
            assert 1 <= int(got.headers["retry-after"]) <= 60
            assert error["needed"] == 26
            assert error["position"] >= 1
            assert rig.records[0]["code"] == "queue_full"
            rig.engine.default = Behaviour(tokens=1)
        assert (await waiting).status == 200


async def test_the_queue_is_bounded_by_bytes_and_by_tokens(start) -> None:
    """Class G: each bound sheds by itself."""
    for bound in ({"max_bytes": 2000}, {"max_tokens": 60}):
        async with start({"queue": bound}) as rig:
            async with Busy(rig):
                body = chat(max_tokens=20, x="y" * 900)
                first = asyncio.ensure_future(rig.post(CHAT, body))
                await rig.queued()
                second = asyncio.ensure_future(rig.post(CHAT, body))
                if "max_bytes" in bound:
                    await rig.queued(2) if len(json.dumps(body)) * 2 <= 2000 else None
                got = await rig.post(CHAT, body)
                assert (got.status, got.code) == (429, "queue_full")
            assert (await first).status == 200
            assert (await second).status in (200, 429)
            assert rig.app.gate.view().queue.bytes == 0


async def test_waiting_ends_at_its_limit(start) -> None:
    async with start({"queue": {"max_wait_s": 0.2}}) as rig, Busy(rig):
        got = await rig.chat(max_tokens=5)
        assert (got.status, got.code) == (503, "queue_timeout")
        assert 1 <= int(got.headers["retry-after"]) <= 60
        assert rig.records[0]["outcome"] == "evicted"
        assert 150 < rig.records[0]["queue_ms"] < 1500


async def test_draining_refuses_what_waits_and_what_comes_and_finishes_what_runs(rig) -> None:
    async with Busy(rig) as busy:
        waiting = asyncio.ensure_future(rig.chat(max_tokens=5))
        await rig.queued()
        told = (await rig.control("/drain", "POST")).json()
        assert told == {"state": "draining", "running": 1}
        for got in (await waiting, await rig.chat()):
            assert (got.status, got.code) == (503, "draining")
            assert 1 <= int(got.headers["retry-after"]) <= 60
        assert (await rig.control("/drain", "POST")).status == 200
        busy.hold.set()
        assert (await busy.running).body.endswith(b"data: [DONE]\n\n")


@pytest.fixture
def keyed(tmp_path) -> dict[str, Any]:
    """A policy of two clients with keys."""
    (tmp_path / "alice").write_text("sk-alice-key-0123456789\n")
    (tmp_path / "bob").write_text("sk-bob-key-9876543210\n")
    return {
        "clients": [
            {"name": "alice", "key_file": str(tmp_path / "alice"), "max_waiting": 1},
            {"name": "bob", "key_file": str(tmp_path / "bob"), "max_inflight": 1},
        ]
    }


async def test_keys(start, keyed) -> None:
    """Class P: no part of a key comes back."""
    async with start(keyed) as rig:
        for headers in ({}, {"authorization": "Bearer sk-wrong-123"}, {"x-api-key": "sk-wrong-1"}):
            got = await rig.post(CHAT, chat(), headers=headers)
            assert (got.status, got.code) == (401, "unauthorized")
            assert got.error["message"].count("Bearer") == 1, "what to do is said, and once"
            assert "operator" in got.error["message"]
            assert got.error["type"] == "authentication_error"
            assert b"sk-wrong" not in got.body
            async with rig.http.get(rig.app.listen_url + "/v1/models", headers=headers) as answer:
                assert answer.status == 401
        assert rig.engine.seen == []
        for headers in (
            {"authorization": "Bearer sk-alice-key-0123456789"},
            {"x-api-key": "sk-bob-key-9876543210"},
        ):
            assert (await rig.post(CHAT, chat(max_tokens=2), headers=headers)).status == 200
        assert [record["client"] for record in rig.records[:2]] == ["bob", "alice"]


async def test_a_client_may_have_only_so_many_waiting(start, keyed) -> None:
    alice = {"authorization": "Bearer sk-alice-key-0123456789"}
    async with start(keyed) as rig:
        hold = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=2, hold=hold, hold_at=1))
        running = asyncio.ensure_future(rig.post(TEXT, FULL, headers=alice))
        await rig.engine.arrived()
        waiting = asyncio.ensure_future(rig.post(TEXT, FULL, headers=alice))
        await rig.queued()
        got = await rig.post(TEXT, FULL, headers=alice)
        assert (got.status, got.code) == (429, "client_limit")
        assert "alice" in got.error["message"]
        hold.set()
        assert (await running).status == (await waiting).status == 200


async def test_every_answer_carries_its_numbers(rig) -> None:
    got = await rig.chat(max_tokens=5)
    for name in ("backend", "prompt-tokens", "max-tokens", "queue-ms"):
        assert got.headers[f"x-kvgate-{name}"], name
    assert got.headers["x-kvgate-backend"] == "gpu0"
    assert "x-kvgate-clamped-from" not in got.headers


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ("abc-1.2_3:4", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("has space", False),
        ('quote"', False),
        ("ü", False),
        ("a\x01b", None),
    ],
)
async def test_a_clean_request_id_is_echoed_and_any_other_replaced(rig, sent, echoed) -> None:
    """Class P: nothing a client writes there can forge a line."""
    data = chat(max_tokens=2)
    body = json.dumps(data).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-request-id: {sent}\r\nconnection: close\r\n"
    raw = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
    answer = await rig.raw(raw)
    if echoed is None:
        assert answer.split(b" ")[1] in (b"200", b"400")
        return
    told = answer.lower().split(b"x-request-id: ")[1].split(b"\r\n")[0].decode()
    assert (told == sent) is echoed
    assert "x-request-id" not in rig.engine.seen[0].headers
    assert rig.records[0]["client_request_id"] == (sent if echoed else None)
    if not echoed:
        assert told == rig.records[0]["id"]


async def test_refusals_carry_the_request_id_too(rig) -> None:
    got = await rig.post(CHAT, b"nonsense", headers={"x-request-id": "mine"})
    assert got.headers["x-request-id"] == "mine"
    got = await rig.post("/nowhere", b"", headers={"x-request-id": "mine"})
    assert got.headers["x-request-id"] == "mine"
