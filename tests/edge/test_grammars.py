"""Grammars that end the engine, or keep it compiling: refused before it has them.

What xgrammar 0.1.27 and 0.2.1 (SGLang 0.5.6 and 0.5.17) do with the deep ones was seen by itself: a
segmentation fault. The malformed structural tags are sgl-project/sglang#13068.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest

from gateway.edge.dialects import Invalid, grammars
from gateway.edge.dialects.grammars import ANY_JSON
from gateway.edge.dialects.one_grammar import DEEPEST, MOST_BYTES, MOST_GROUPS
from tests.edge.rig import API_CHAT, CHAT, GENERATE, TEXT, chat

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
ASKED: dict[str, Any] = {
    CHAT: chat(max_tokens=2),
    TEXT: {"prompt": "a", "max_tokens": 2},
    MESSAGES: chat(max_tokens=2),
    RESPONSES: {"input": "a", "max_output_tokens": 5},
}


def nested(fields: int) -> Any:
    """A schema of a field in a field: two levels of JSON each, and one for the last."""
    schema: Any = {"type": "string"}
    for _ in range(fields):
        schema = {"properties": {"a": schema}}
    return schema


FITS = nested(DEEPEST // 2 - 2)
DEEP = nested(DEEPEST)
TEXT_DEEP = '{"x":' + "[" * 100_000 + "]" * 100_000 + "}"
LONG = {"enum": [f"word {number:07}" for number in range(MOST_BYTES // 15)]}
GROUPS = "(" * (MOST_GROUPS + 1) + "a" + ")" * (MOST_GROUPS + 1)


def generate(**params: Any) -> Any:
    return {"text": "a", "sampling_params": params}


def schema(of: Any) -> Any:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": of}}}


def tool(parameters: Any, **fields: Any) -> Any:
    function = {"name": "f", "parameters": parameters, **fields}
    return {"tools": [{"type": "function", "function": function}]}


def tag(**fields: Any) -> Any:
    return {"type": "structural_tag", **fields}


PARTS = {
    "type": "triggered_tags",
    "triggers": ["<f"],
    "tags": [{"begin": "<f>", "content": {"type": "json_schema", "json_schema": {"type": ["string"], "elements": 5}}, "end": ""}],
}  # fmt: skip

STRUCTURES = {
    "structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}],
    "triggers": ["<a>"],
}


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        (CHAT, schema(DEEP), "response_format"),
        (CHAT, schema(LONG), "response_format"),
        (TEXT, schema(DEEP), "response_format"),
        (CHAT, {"regex": GROUPS}, "regex"),
        (CHAT, {"ebnf": "root ::= " + GROUPS}, "ebnf"),
        (CHAT, {"regex": "a" * (MOST_BYTES + 1)}, "regex"),
        (CHAT, {"regex": ["a"]}, "regex"),
        (CHAT, {"regex": ""}, "regex"),
        (TEXT, {"ebnf": ""}, "ebnf"),
        (TEXT, {"json_schema": TEXT_DEEP}, "json_schema"),
        (TEXT, {"json_schema": json.dumps(DEEP)}, "json_schema"),
        (TEXT, {"json_schema": "{"}, "json_schema"),
        (CHAT, tool(DEEP) | {"tool_choice": "required"}, "tools"),
        (CHAT, tool(DEEP) | {"tool_choice": {"type": "function"}}, "tools"),
        (CHAT, tool(DEEP, strict=True), "tools"),
        (CHAT, tool(LONG, strict=True), "tools"),
        (MESSAGES, {"tools": [{"name": "f", "input_schema": DEEP}], "tool_choice": {"type": "any"}}, "tools"),
        (RESPONSES, {"tools": [{"type": "function", "name": "f", "parameters": DEEP}], "tool_choice": "required"}, "tools"),
        (CHAT, schema({"pattern": "\x00a"}), "response_format"),
        (CHAT, tool({"patternProperties": {"\x00a": {}}}, strict=True), "tools"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": DEEP}}}, "text"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {"pattern": "\x00a"}}}}, "text"),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": DEEP}}}, "output_config"),
        (CHAT, {"response_format": tag()}, "response_format"),
        (CHAT, {"response_format": tag(format="x")}, "response_format"),
        (CHAT, {"response_format": tag(structures=[], triggers=None)}, "response_format"),
        (CHAT, {"response_format": tag(structures=[{"begin": "a"}], triggers=["a"])}, "response_format"),
        (CHAT, {"response_format": tag(format={"type": "tag", "content": DEEP})}, "response_format"),
    ],
)  # fmt: skip
async def test_what_is_deeper_or_larger_than_people_write_is_refused(
    rig, path: str, fields: Any, field: str
) -> None:
    got = await rig.post(path, ASKED[path] | fields)
    assert got.status == 400, got.body
    assert field in got.body.decode()
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    "params",
    [
        {"json_schema": TEXT_DEEP},
        {"json_schema": json.dumps(DEEP)},
        {"json_schema": {"type": "object"}},
        {"json_schema": "not JSON"},
        {"regex": ["a"]},
        {"regex": GROUPS},
        {"ebnf": 5},
        {"structural_tag": STRUCTURES},
        {"structural_tag": "[]"},
        {"structural_tag": json.dumps({"structures": STRUCTURES["structures"]})},
        {"structural_tag": json.dumps({"structures": [5], "triggers": []})},
        {"structural_tag": json.dumps(tag(format=None))},
        {"regex": "\x00a"},
        {"ebnf": 'root ::= "\x00"'},
        {"ebnf": "root ::= é"},
        {"ebnf": 'root ::= "a" é "b"'},
        {"ebnf": 'root ::= TagDispatch(("t", a)){0,3}\na ::= root'},
        {"structural_tag": json.dumps(tag(format={"type": "grammar", "grammar": "root ::= é"}))},
        {"json_schema": json.dumps({"type": "string", "pattern": "\x00a"})},
        {"json_schema": json.dumps({"patternProperties": {"\x00a": {}}})},
        {"structural_tag": json.dumps(tag(format={"type": "regex", "pattern": "\x00a"}))},
        {"structural_tag": json.dumps(tag(format={"type": []}))},
        {"structural_tag": json.dumps(tag(format={"type": "sequence", "elements": 5}))},
        {"structural_tag": json.dumps(tag(format={"type": "triggered_tags", "tags": None}))},
        {"structural_tag": json.dumps(tag(format={"type": "tag", "content": {"type": {}}}))},
        {"structural_tag": json.dumps(tag(format={"elements": [{"tags": [{"content": {"tags": 5}}]}]}))},
    ],
)  # fmt: skip
async def test_generate_takes_grammars_as_texts_that_can_be_read(rig, params: Any) -> None:
    """There no reader of the engine's own looks at them before its scheduler does."""
    for many in (False, True):
        body = {"text": ["a"], "sampling_params": [params]} if many else generate(**params)
        got = await rig.post(GENERATE, body)
        assert (got.status, got.error["param"]) == (400, next(iter(params))), got.body
    assert rig.engine.seen == []


async def test_a_format_of_ollama_is_a_grammar_as_well(rig) -> None:
    got = await rig.post(API_CHAT, chat(format=DEEP))
    assert (got.status, got.code) == (400, "invalid_request")
    got = await rig.post("/api/generate", {"prompt": "a", "raw": True, "format": DEEP})
    assert (got.status, got.code) == (400, "invalid_request")
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, ASKED[CHAT] | schema(FITS)),
        (CHAT, ASKED[CHAT] | {"response_format": tag(**STRUCTURES)}),
        (CHAT, ASKED[CHAT] | {"response_format": tag(format={"type": "any_text"})}),
        (CHAT, ASKED[CHAT] | tool(DEEP)),  # to the model it is text
        (CHAT, ASKED[CHAT] | tool(DEEP) | {"tool_choice": "auto"}),
        (CHAT, ASKED[CHAT] | tool(FITS, strict=True) | {"tool_choice": "required"}),
        (CHAT, ASKED[CHAT] | {"json_schema": {"type": "object"}}),  # nothing that a chat reads
        (CHAT, ASKED[CHAT] | {"regex": "(a|b)+"}),
        (CHAT, ASKED[CHAT] | {"regex": "é[ä-ü]+"}),
        (CHAT, ASKED[CHAT] | {"ebnf": 'root ::= "é\\"ü" [ä-ü\\]ß] # größer\n'}),
        (CHAT, ASKED[CHAT] | {"ebnf": 'start: "é" /[ä-ü]+/ // größer'}),
        (CHAT, ASKED[CHAT] | {"regex": r"[^\x00-\x1f\u0000]+"}),
        (CHAT, ASKED[CHAT] | schema({"type": "string", "pattern": r"^[^\u0000]*$"})),
        (TEXT, ASKED[TEXT] | {"json_schema": json.dumps(FITS)}),
        (GENERATE, generate(json_schema=json.dumps(FITS))),
        (GENERATE, generate(json_schema=ANY_JSON)),
        (GENERATE, generate(json_schema="", structural_tag=None)),
        (
            RESPONSES,
            ASKED[RESPONSES]
            | {"text": {"format": {"type": "json_schema", "name": "x", "schema": FITS}}},
        ),
        (RESPONSES, ASKED[RESPONSES] | {"text": {"verbosity": "low"}}),
        (GENERATE, generate(structural_tag=json.dumps(STRUCTURES))),
        (GENERATE, generate(structural_tag=json.dumps(tag(format=PARTS)))),
    ],
)
async def test_what_people_write_passes_as_it_is(rig, path: str, body: Any) -> None:
    got = await rig.post(path, body)
    assert got.status == 200, got.body
    sent = rig.engine.seen[0].body
    for field in ("response_format", "tools", "json_schema", "regex"):
        assert sent.get(field) == body.get(field)


@pytest.mark.parametrize("text", ['"\\', "[", "/", '"\n', "[\\]", "/a", "#", '\\"'])
def test_a_grammar_is_read_in_one_go(text: str) -> None:
    """Quotes that are opened again and again and never closed took minutes when each was read to the end."""
    before = time.process_time()
    with contextlib.suppress(Invalid):
        grammars.check({"ebnf": text * (MOST_BYTES // len(text) - 1) + "é"}, "ebnf")
    assert time.process_time() - before < 2  # 0.05 s
