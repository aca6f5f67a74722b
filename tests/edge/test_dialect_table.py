"""docs/dialects.md: every cell of its tables of caps, sent through a gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.edge.rig import (
    API_CHAT,
    API_EMBED,
    API_EMBEDDINGS,
    API_GENERATE,
    CHAT,
    GENERATE,
    TEXT,
)
from tests.fakes.behaviour import Behaviour
from tests.fakes.typed import EMBEDDINGS, MESSAGES, RESPONSES

PAGE = Path(__file__).parents[2] / "docs" / "dialects.md"

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "a b"}]},
    TEXT: {"prompt": [1, 2, 3]},
    GENERATE: {"text": "a b"},
    MESSAGES: {"model": "tiny", "messages": [{"role": "user", "content": "a b"}]},
    RESPONSES: {"model": "tiny", "input": "a b"},
    EMBEDDINGS: {"model": "tiny", "input": "a b"},
    API_CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "a b"}]},
    API_GENERATE: {"model": "tiny", "prompt": "a b"},
    API_EMBED: {"model": "tiny", "input": "a b"},
    API_EMBEDDINGS: {"model": "tiny", "prompt": "a b"},
}
COLUMNS = [
    (CHAT, "max_tokens", 0),
    (CHAT, "max_completion_tokens", 1),
    (TEXT, "max_tokens", 2),
    (GENERATE, "max_new_tokens", 3),
    (MESSAGES, "max_tokens", 4),
    (RESPONSES, "max_output_tokens", 5),
    (API_CHAT, "num_predict", 6),
    (API_GENERATE, "num_predict", 6),
]
OLLAMA = (API_CHAT, API_GENERATE)
WRAPPED = {GENERATE: "sampling_params"} | dict.fromkeys(OLLAMA, "options")


def rows(title: str) -> list[list[str]]:
    """The cells of the first table under a title, its head left out."""
    part = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


CAPS, SEVERAL = rows("Caps of one answer"), rows("Several fields")


def test_the_tables_are_there() -> None:
    assert (len(CAPS), {len(row) for row in CAPS}, len(SEVERAL)) == (19, {8}, 45)


async def ask(rig: Any, path: str, fields: dict[str, Any], told: str) -> Any:
    """Send a body; what came to the engine, or None where it was refused as `told`."""
    rig.engine.default = Behaviour(tokens=1)
    before = len(rig.engine.seen)
    got = await rig.post(path, {**BODIES[path], **fields})
    if told == "400":
        assert (got.status, got.code) == (400, "invalid_request")
        assert len(rig.engine.seen) == before
        return None
    assert got.status == 200, got.body
    record = rig.records[0]
    cap = record["cap_forwarded"]
    assert got.headers["x-kvgate-max-tokens"] == str(cap)
    # A page is one token here, and a prompt's demand is itself, the cap and one page.
    assert record["kv_reserved"] == record["prompt_tokens"] + record["prompts"] * (cap + 1)
    return rig.engine.seen[-1].body


def judge(record: dict[str, Any], sent: Any, told: str) -> None:
    """Whether the cap is what the cell says."""
    cap, source = record["cap_forwarded"], record["cap_source"]
    match told:
        case "ours":
            assert source == "injected"
        case "room":
            assert source == "clamped"
            assert record["cap_asked"] == min(int(sent), 1 << 40)
            assert record["kv_reserved"] > 0.9 * 2048
        case number:
            assert cap == int(number)


@pytest.mark.parametrize(
    ("path", "field", "column"), COLUMNS, ids=[f"{path} {field}" for path, field, _ in COLUMNS]
)
async def test_a_cap(rig, path: str, field: str, column: int) -> None:
    for sent, *cells in CAPS:
        told = cells[column]
        value = None if sent == "absent" else json.loads(sent.strip("`"))
        fields: dict[str, Any] = {} if sent == "absent" else {field: value}
        wrapped = {WRAPPED[path]: fields} if path in WRAPPED else fields
        try:
            body = await ask(rig, path, wrapped, told)
            if body is None:
                continue
            judge(rig.records[0], value, told)
            name = "max_tokens" if path in OLLAMA or (path == CHAT and not fields) else field
            written = body.get("sampling_params", body)[name]
            assert (type(written), written) == (int, rig.records[0]["cap_forwarded"])
        except AssertionError as error:
            error.add_note(f"{path} {field}: {sent} -> {told}")
            raise


async def test_what_is_told_of_an_absurd_number_is_the_number_on_the_page(rig) -> None:
    got = await rig.chat(max_tokens=10**30)
    assert f" {got.headers['x-kvgate-clamped-from']} (2^40) " in PAGE.read_text()


async def test_several_fields(rig) -> None:
    for cells in SEVERAL:
        path, sent, forwarded = (cell.strip("`") for cell in cells)
        fields = json.loads("{" + sent + "}")
        try:
            body = await ask(rig, path, fields, forwarded)
            if body is None:
                continue
            cap = str(rig.records[0]["cap_forwarded"])
            wanted = json.loads("{" + forwarded.replace("ours", cap) + "}")
            names = set(wanted) | set(fields)
            assert {name: body[name] for name in names if name in body} == wanted
        except AssertionError as error:
            error.add_note(f"{path}: {sent} -> {forwarded}")
            raise
