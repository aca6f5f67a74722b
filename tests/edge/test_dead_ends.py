"""Grammars, and what beside them, after which the engine finds no token to write: its scheduler ends.

Each that is refused here ended a genuine 0.5.17, or left xgrammar 0.1.27, 0.2.1 and 0.2.7 with an empty mask.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gateway.edge.dialects import dead_ends
from gateway.edge.dialects.hazards import MOST_STOPS
from gateway.edge.dialects.one_grammar import MOST_EXCLUDED
from tests.edge.rig import API_CHAT, CHAT, GENERATE, TEXT, chat

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SELF: Any = {"$ref": "#"}
ROUND: Any = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}  # fmt: skip
TREE: Any = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "all": {"$ref": "#/$defs/many"}},
    "required": ["next"],
    "$defs": {"many": {"type": "array", "items": {"$ref": "#"}}, "x/y": {"$ref": "#/$defs/many"}},
}  # fmt: skip
MOST_IDS = ",".join(map(str, range(MOST_EXCLUDED)))
TOKEN_PART = {"type": "token", "token": "<|im_end|>"}


def formed(schema: Any) -> Any:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}  # fmt: skip


def tag(form: Any) -> Any:
    return {"response_format": {"type": "structural_tag", "format": form}}


def tool(parameters: Any, **fields: Any) -> Any:
    function = {"name": "f", "parameters": parameters, **fields}
    return {"tools": [{"type": "function", "function": function}]}


@pytest.mark.parametrize(
    "text",
    [
        "root ::= root",
        "root ::= a\na ::= b\nb ::= a",
        'root ::= "a" b\nb ::= b "c"',
        'root ::= "a" b | "c"\nb ::= (b | b "x")+',
        "root ::= b{2}\nb ::= b",
        'root ::= (= "x") b\nb ::= (= "y") b "c"',
        'root ::= a "x"\na ::= "" a b\nb ::= b',
        "root ::= []",
        'root ::= "a" []',
        'root ::= # "x"\n root "y"',
        'root ::= b\nb ::= b ("x")',
        'root ::= b\nb ::= b("x" | "y")*',
        "root ::= -\n- ::= -",
        "root ::= .a\n.a ::= .a",
        'root ::= ExcludeToken\nExcludeToken ::= ExcludeToken ("x")',
        "root::=root+",
        'root ::= "a"{0} root',
        'root ::= a ("x"){ 0 , 0 } root\na ::= ""',
    ],
)
def test_a_rule_that_begins_with_itself_alone_leads_nowhere(text: str) -> None:
    assert dead_ends.rule_without_beginning(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a" root',
        'root ::= "a" | root "b"',
        'root ::= ""',
        'root ::= a "x"\na ::= a | ""',
        'root ::= a b\na ::= "" | a b\nb ::= "" | b a',
        "root ::= a? b* c{0,3}\na ::= [a-z]\nb ::= [^\\]] \nc ::= \"[]\"",
        'root ::= "[]" | "root ::= root"',
        'root ::= TagDispatch(("<a>", a), loop=true)\na ::= "x" (= "y")',
        'expr ::= term | expr "+" term\nterm ::= [0-9]+ | "(" expr ")"\nroot ::= expr\n',
        'root ::= ExcludeToken(1, 2) "x"',
        'root ::= "a"{0,} root',
        'root ::= "a"{0,3} root',
        'root ::= "a"{0}',
        'root ::= pair ("x" | pair)\npair ::= "a" ( "b" )',
        "root ::= nowhere",  # the engine's parser refuses it in words
        'root  ::=  "{" ws (pair ("," ws pair)*)? "}"\npair ::= str ":" ws str\nstr ::= "\\"" [^"\\\\]* "\\""\nws ::= [ \\t\\n]*',
    ],
)  # fmt: skip
def test_rules_that_people_write_can_be_followed(text: str) -> None:
    assert dead_ends.rule_without_beginning(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "root ::= " + "|".join(f"r{i}" for i in range(9_000)) + "".join(f"\nr{i} ::= r{i + 1}" for i in range(9_000)),
        "root ::= " + "(" * 100_000,
        "root ::= " + "a " * 100_000,
        "a ::=" * 50_000,
        "a(=(a" * 50_000,
        'root ::= "\\' * 50_000,
    ],
)  # fmt: skip
def test_each_rule_is_looked_at_once(text: str) -> None:
    before = time.process_time()
    dead_ends.rule_without_beginning(text)
    assert time.process_time() - before < 3  # 0.5 s


@pytest.mark.parametrize("schema", [SELF, ROUND, {"anyOf": [SELF, SELF]}, {"allOf": [SELF]}])
def test_a_reference_round_in_a_circle_writes_nothing(schema: Any) -> None:
    assert dead_ends.ref_without_end(schema)
    assert not dead_ends.ref_without_end({"type": "object", "properties": {"$ref": {}, "a": True}})


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {"anyOf": [SELF, {"type": "string"}]},
        {"type": "object", "properties": {"a": SELF}, "required": ["a"]},
        {"$ref": "#/$defs/none"},
        {"$ref": "http://a/b"},
        {"$ref": 5, "anyOf": "x", "allOf": []},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
        {"oneOf": [{"$ref": "#/oneOf/1"}, {"const": SELF}]},
        True,
        None,
    ],
)
def test_schemas_that_come_back_to_themselves_are_fine(schema: Any) -> None:
    assert not dead_ends.ref_without_end(schema)


def test_a_long_way_of_references_is_gone_once() -> None:
    steps: dict[str, Any] = {f"n{i}": {"$ref": f"#/$defs/n{i + 1}"} for i in range(5_000)}
    before = time.process_time()
    assert not dead_ends.ref_without_end({"$ref": "#/$defs/n0", "$defs": steps})
    assert dead_ends.ref_without_end({"$defs": steps | {"n5000": {"$ref": "#/$defs/n0"}}})
    assert time.process_time() - before < 2  # 0.02 s


BARE: dict[str, Any] = {
    CHAT: chat(max_tokens=5),
    TEXT: {"prompt": "a", "max_tokens": 5},
    MESSAGES: chat(max_tokens=5),
    RESPONSES: {"input": "a", "max_output_tokens": 5},
    API_CHAT: chat(stream=False),
}


def native(**params: Any) -> Any:
    return {"text": "a", "sampling_params": {"max_new_tokens": 5, **params}}


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        (CHAT, {"ebnf": "root ::= root"}, "ebnf"),
        (CHAT, {"ebnf": "root ::= Token(7)"}, "ebnf"),
        (CHAT, formed(SELF), "response_format"),
        (CHAT, tag(TOKEN_PART), "response_format"),
        (CHAT, tag({"type": "tag", "begin": TOKEN_PART, "content": {"type": "any_text"}, "end": ""}), "response_format"),
        (CHAT, tag({"type": "sequence", "elements": [{"type": "json_schema", "json_schema": SELF}]}), "response_format"),
        (CHAT, tag({"type": "grammar", "grammar": "root ::= root"}), "response_format"),
        (CHAT, {"response_format": {"type": "structural_tag", "structures": [{"begin": "a", "schema": SELF, "end": ""}], "triggers": ["a"]}}, "response_format"),
        (CHAT, tool(SELF) | {"tool_choice": "required"}, "tools"),
        (CHAT, tool(SELF, strict=True), "tools"),
        (TEXT, {"json_schema": json.dumps(ROUND)}, "json_schema"),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SELF}}}, "output_config"),
        (MESSAGES, {"tools": [{"name": "f", "input_schema": SELF}], "tool_choice": {"type": "any"}}, "tools"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": SELF}}}, "text"),
        (API_CHAT, {"format": SELF}, "response_format"),
        (GENERATE, native(ebnf="root ::= root"), "ebnf"),
        (GENERATE, native(json_schema=json.dumps(SELF)), "json_schema"),
        (GENERATE, native(structural_tag=json.dumps({"type": "structural_tag", "format": TOKEN_PART})), "structural_tag"),
        (CHAT, {"regex": "a", "min_tokens": 2}, "min_tokens"),
        (CHAT, {"response_format": {"type": "json_object"}, "min_tokens": 9}, "min_tokens"),
        (CHAT, tool({}, strict=True) | {"min_tokens": 9}, "min_tokens"),
        (TEXT, {"json_schema": "{}", "min_tokens": 2}, "min_tokens"),
        (GENERATE, native(regex="a", min_new_tokens=2), "min_new_tokens"),
        (CHAT, {"stop_token_ids": list(range(MOST_STOPS + 1)), "min_tokens": 1}, "stop_token_ids"),
        (GENERATE, native(stop_token_ids=list(range(MOST_STOPS + 1)), min_new_tokens=1), "stop_token_ids"),
        (CHAT, {"ebnf": f"root ::= ExcludeToken ({MOST_IDS}, 7)"}, "ebnf"),
        (TEXT, {"ebnf": f'root ::= "a" ExcludeToken({MOST_IDS}, # a comment )\n 7)'}, "ebnf"),
        (CHAT, tag({"type": "grammar", "grammar": f"root ::= ExcludeToken({MOST_IDS},7)"}), "response_format"),
        (CHAT, tag({"type": "exclude_token", "exclude_tokens": list(range(MOST_EXCLUDED + 1))}), "response_format"),
        (CHAT, {"logit_bias": {"5": -3.4e38}}, "logit_bias"),
        (GENERATE, native(logit_bias={"5": -3.4e38}), "logit_bias"),
    ],
)  # fmt: skip
async def test_what_leaves_no_token_to_write_is_refused(
    rig, path: str, fields: Any, field: str
) -> None:
    got = await rig.post(path, BARE.get(path, {}) | fields)
    assert got.status == 400, got.body
    assert field in got.body.decode()
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, formed(TREE)),
        (CHAT, tool(SELF)),  # text to the model
        (CHAT, {"ebnf": 'root ::= "Token(7)" | ExcludeToken(1)'}),
        (CHAT, {"ebnf": f"root ::= ExcludeToken({MOST_IDS}) ExcludeToken({MOST_IDS})"}),
        (CHAT, tag({"type": "any_tokens", "exclude_tokens": list(range(MOST_EXCLUDED))})),
        (CHAT, {"min_tokens": 3}),
        (CHAT, {"response_format": {"type": "text"}, "min_tokens": 3}),
        (CHAT, {"response_format": {"type": "json_object"}, "min_tokens": 0}),
        (CHAT, {"stop_token_ids": list(range(MOST_STOPS)), "min_tokens": 2}),
        (CHAT, {"stop_token_ids": list(range(MOST_STOPS + 1))}),
        (CHAT, {"logit_bias": {"5": -1e20, "6": 100}}),
        (GENERATE, native(json_schema=json.dumps(TREE), min_new_tokens=0)),
    ],
)
async def test_what_leaves_some_passes(rig, path: str, fields: Any) -> None:
    got = await rig.post(path, BARE.get(path, {}) | fields)
    assert got.status == 200, got.body


async def test_a_least_of_one_token_beside_a_grammar_is_none(rig) -> None:
    """It is kept by all but those that let nothing through, and these it ends."""
    await rig.post(CHAT, BARE[CHAT] | {"regex": "a*", "min_tokens": "1"})
    await rig.post(GENERATE, native(regex="a*", min_new_tokens=1))
    await rig.post(CHAT, BARE[CHAT] | {"min_tokens": "1"})
    chats = [one.body for one in rig.engine.seen]
    assert [chats[0]["min_tokens"], chats[2]["min_tokens"]] == [0, 1]
    assert chats[1]["sampling_params"]["min_new_tokens"] == 0
