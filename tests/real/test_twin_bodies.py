"""Every kind of request, right and wrong, put to the genuine server: what `tests.twin` holds the twin
to is still what it says. With KVGATE_RECORD set the file is written anew instead.

Left out are the three that kill it (see `tests/twin/test_kinds.py`). What is recorded is what 0.5.17 says.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.real.install import SGLANG_VERSION, USUAL
from tests.real.load import CLIENT_TIMEOUT
from tests.twin.kinds import ANSWERS, Kind, ask, known

if TYPE_CHECKING:
    from tests.real.conftest import Note
    from tests.real.engine import Engine


# Where a request names no temperature its words are drawn, and may contain a stop string or not.
TRIES = 30


@pytest.mark.skipif(
    SGLANG_VERSION != USUAL, reason="recorded of another version, and an empty text ends 0.5.23"
)
async def test_the_genuine_server_answers_as_recorded(engine: Engine, report: Note) -> None:
    heard: list[tuple[Kind, dict[str, Any], dict[str, Any]]] = []
    connector = aiohttp.TCPConnector(force_close=True)  # as after a 500, which ends a connection
    async with aiohttp.ClientSession(connector=connector, timeout=CLIENT_TIMEOUT) as session:
        for kind, recorded in known():
            for _ in range(TRIES):
                answer = await ask(session, engine.url, kind)
                if answer == recorded or os.environ.get("KVGATE_RECORD"):
                    break
            heard.append((kind, recorded, answer))
    if os.environ.get("KVGATE_RECORD"):
        ANSWERS.write_text("".join(_line(kind, answer) for kind, _, answer in heard))
    wrong = [
        f"{kind.name}\n    was {was}\n    is  {answer}"
        for kind, was, answer in heard
        if was != answer
    ]
    report(f"{len(heard)} kinds of request, {len(wrong)} answered otherwise than recorded")
    assert not wrong, "\n".join(wrong)


def _line(kind: Kind, answer: dict[str, Any]) -> str:
    fields = dataclasses.asdict(kind)
    usual = {field.name: field.default for field in dataclasses.fields(Kind)}
    ask = {name: value for name, value in fields.items() if value != usual.get(name)}
    return json.dumps({"ask": ask, "answer": answer}) + "\n"
