"""What is kept of a request that waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from gateway.edge.work import Work
from tests.edge.rig import CHAT, TEXT, chat
from tests.fakes.behaviour import Behaviour

FULL = {"prompt": [1] * 20, "max_tokens": 5000, "stream": True}


def work(body: Any, instead: Any = None) -> Work:
    return Work(SimpleNamespace(instead=instead), body, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "body",
    [
        {"a": "中文 and 😀", "b": [1, -0.0, 1.5e300, True, None], "": {"c": {}}},
        {"large": 2**64 - 1, "small": -(2**63), "long": 1e22},
    ],
)
def test_what_was_packed_is_what_it_was(body: Any) -> None:
    one = work(orjson.loads(orjson.dumps(body)))
    one.pack()
    one.pack()
    assert one._body is None, "nothing of it is kept parsed"
    assert one.body == body
    assert list(one.body) == list(body)
    assert orjson.dumps(one.body) == orjson.dumps(body)
    assert one._packed == b"", "nor twice"


def test_what_is_packed_takes_what_it_has() -> None:
    one = work({"a": "x" * 2000})
    one.pack()
    assert one._packed.__sizeof__() == bytes(2008).__sizeof__()


def test_what_cannot_be_written_stays_as_it_is() -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    body = {"deep": deep}
    one = work(body)
    one.pack()
    assert one.body is body


def test_a_body_in_other_words_is_kept_once() -> None:
    """The intent has it as well."""
    body: Any = {}
    one = work(body, SimpleNamespace(body=body))
    one.pack()
    assert one.body is body


async def test_a_server_gets_the_same_whether_it_waited_or_not(rig) -> None:
    asked = chat(max_tokens=3) | {"user": "ü😀", "metadata": {"b": 1, "a": [1.0, -0.0]}}
    await rig.post(CHAT, asked)
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=2, hold=hold, hold_at=1)
    running = asyncio.ensure_future(rig.post(TEXT, FULL))
    await rig.engine.arrived()
    waits = asyncio.ensure_future(rig.post(CHAT, asked))
    await rig.queued()
    hold.set()
    assert (await waits).status == 200
    await running
    at_once, waited = (
        {name: value for name, value in seen.body.items() if name != "rid"}
        for seen in (rig.engine.seen[0], rig.engine.seen[-1])
    )
    assert waited == at_once
    assert list(waited) == list(at_once)
