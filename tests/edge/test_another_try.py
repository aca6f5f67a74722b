"""A broken answer is told so that coding agents ask again by themselves.

The headers are out, so no status tells them. They look at the error's type (Continue 1.5: OpenAI's
`server_error`) or for words in its text (pi 0.73, OpenCode 1.18); none of them looks at our code.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.model import Code, Refusal
from gateway.edge import replies
from gateway.edge.models import nobody
from gateway.upstream.watch import Life
from tests.edge.rig import CHAT, TEXT, chat, events
from tests.fakes.behaviour import Behaviour

BODIES = {CHAT: chat(stream=True, max_tokens=9), TEXT: {"prompt": "a", "stream": True}}


@pytest.mark.parametrize("how", ["reset_at", "close_at"])
@pytest.mark.parametrize("path", BODIES)
async def test_a_broken_stream_is_a_server_error_by_type_and_in_words(
    rig, path: str, how: str
) -> None:
    rig.engine.queue.append(Behaviour(tokens=9, **{how: 3}))
    error = events((await rig.post(path, BODIES[path])).body)[-1]["error"]
    assert error["type"] == "server_error"
    assert "server error" in error["message"]
    assert error["code"] == "upstream_error", "by which people find it in our docs"


async def test_a_stream_cut_at_the_end_of_the_gate_is_one_too(rig) -> None:
    """pi and OpenCode look for "terminated"."""
    rig.engine.queue.append(Behaviour(tokens=9, hold=asyncio.Event(), hold_at=2))
    asked = asyncio.ensure_future(rig.chat(stream=True, max_tokens=9))
    await rig.engine.until(lambda: bool(rig.engine.seen) and rig.engine.seen[0].events == 2)
    await rig.stop()
    error = events((await asked).body)[-1]["error"]
    assert error["type"] == "server_error"
    assert "terminated" in error["message"]


async def test_an_answer_that_never_began_has_the_type_of_its_status(rig) -> None:
    rig.engine.queue.append(Behaviour(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"))
    got = await rig.chat(max_tokens=9)
    assert (got.status, got.error["type"]) == (502, "server_error")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, "server_error"), (504, "server_error"), (404, "not_found_error")],
)
def test_words_of_a_proxy_before_the_server_get_the_type_of_their_status(
    status: int, kind: str
) -> None:
    assert replies.error_in(b"<html>", status)["type"] == kind


# ---- while no server is ready ----------------------------------------------------------------------


def away(*since_s: float) -> list[Any]:
    """Servers that are down for so long."""
    now = asyncio.get_running_loop().time()
    views = [SimpleNamespace(state=Life.DOWN, since=now - one) for one in since_s]
    return [
        SimpleNamespace(name="gpu0", watch=SimpleNamespace(snapshot=lambda v=v: v)) for v in views
    ]


@pytest.mark.parametrize(
    ("since_s", "told"), [((0.0,), 10), ((24.5,), 25), ((500.0,), 59), ((500.0, 30.5), 31)]
)
async def test_who_asks_while_no_server_is_ready_waits_as_long_as_it_has_been_down(
    since_s: tuple[float, ...], told: int
) -> None:
    """Six tries ten seconds apart, as OpenCode makes them, were over long before a large model was loaded again."""
    assert replies.retry_after(nobody(away(*since_s))) == told


def test_no_time_is_told_that_a_client_takes_for_none() -> None:
    """OpenAI's SDK for JavaScript, as Continue 1.5 has it, comes back at once where it is told 60 s or more."""
    assert replies.retry_after(Refusal(Code.QUEUE_FULL, "full", retry_after_s=300.0)) < 60
