"""Grammars that take the engine long to compile are told in seconds, and sent one after the other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.edge.dialects import Invalid, grammars
from gateway.edge.dialects.anthropic import Messages
from gateway.edge.dialects.openai import Chat, Text
from gateway.edge.dialects.responses import Responses
from gateway.edge.dialects.sglang import Generate
from tests.edge.rig import CHAT, chat
from tests.fakes.behaviour import Behaviour

API_CHAT, API_GENERATE = "/api/chat", "/api/generate"


def text(**bounds: Any) -> Any:
    return {"type": "object", "properties": {"a": {"type": "string", **bounds}}, "required": ["a"]}


def schema(of: Any) -> Any:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": of}}}


def tool(of: Any, **more: Any) -> Any:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": of, **more}}]}


def many(number: int, **bounds: Any) -> Any:
    names = [f"a{each}" for each in range(number)]
    return {"type": "object", "properties": {name: {"type": "string", **bounds} for name in names}}


MEASURED = [
    # what, seconds of one core (xgrammar 0.2.1, 151,669 tokens, cache as SGLang has it)
    (schema(many(1)), 0.026),
    (schema(many(100)), 0.17),
    (schema(many(300)), 1.3),
    (schema(many(1200)), 20.5),
    (schema(many(300) | {"required": [f"a{each}" for each in range(300)]}), 0.08),
    (schema({"enum": [f"value number {each}" for each in range(1000)]}), 0.042),
    (schema(text(maxLength=20)), 0.805),
    (schema(text(maxLength=50)), 2.3),
    (schema(many(10, maxLength=50)), 2.4),
    (schema(text(maxLength=100)), 4.9),
    (schema(text(maxLength=256)), 9.1),
    (schema(text(maxLength=4000)), 9.1),
    (schema(text(minLength=50)), 1.3),
    (schema(text(minLength=300)), 2.9),
    (schema(text(pattern="^[a-zA-Z0-9_-]{1,100}$")), 1.2),
    ({"regex": "[^a]{1,100}"}, 3.75),
    ({"regex": ".{1,100}"}, 4.7),
    ({"regex": "\\w{1,100}"}, 1.1),
    ({"regex": ".*foo.*"}, 0.021),
    ({"regex": "|".join(f"word{each}x" for each in range(1000))}, 0.02),
    ({"ebnf": 'root ::= [a-z]{1,100} "x"'}, 0.47),
]


@pytest.mark.parametrize(("asked", "seconds"), MEASURED)
def test_seconds_are_near_those_measured(asked: Any, seconds: float) -> None:
    told = Chat().read(chat() | asked).compile_s
    if seconds < 0.1:
        assert told < 0.25, "worth no thought"
    else:
        assert seconds / 1.5 <= told <= 3 * seconds


LONG = text(maxLength=256)
LEGACY = {"structures": [{"begin": "<a>", "schema": LONG, "end": "</a>"}], "triggers": ["<a"]}
PARTS = {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": LONG}]}
ASKED: list[tuple[Any, Any]] = [
    (Chat(), chat() | schema(LONG)),
    (Chat(), chat() | tool(LONG, strict=True)),
    (Chat(), chat() | tool(LONG) | {"tool_choice": "required"}),
    (Chat(), chat() | {"response_format": {"type": "structural_tag", "format": PARTS}}),
    (Chat(), chat() | {"response_format": {"type": "structural_tag", **LEGACY}}),
    (Text(), {"prompt": "a", "json_schema": json.dumps(LONG)}),
    (Text(), {"prompt": "a", "regex": ".{1,256}"}),
    (Text(), {"prompt": "a"} | schema(LONG)),
    (Messages(), chat(max_tokens=5) | {"output_config": {"format": {"type": "json_schema", "schema": LONG}}}),
    (Responses(), {"input": "a", "text": {"format": {"type": "json_schema", "name": "x", "schema": LONG}}}),
    (Generate(), {"text": "a", "sampling_params": {"json_schema": json.dumps(LONG)}}),
    (Generate(), {"text": ["a", "b"], "sampling_params": [{}, {"ebnf": "root ::= [^a]{1,256}"}]}),
    (Generate(), {"text": "a", "sampling_params": {"structural_tag": json.dumps(LEGACY)}}),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "body"), ASKED)
def test_every_place_of_a_grammar_is_told(dialect: Any, body: Any) -> None:
    seconds = dialect.read(body).compile_s
    assert 9.0 < seconds < 15.0
    grammar = grammars.of(body, seconds)
    assert grammar is not None
    assert grammar == grammars.of(json.loads(json.dumps(body)), seconds), "the same one"
    other = json.loads(json.dumps(body).replace("256", "255"))
    assert grammars.of(other, seconds) != grammar


def test_another_prompt_is_no_other_grammar() -> None:
    body = {"text": "a", "sampling_params": {"json_schema": json.dumps(LONG), "temperature": 0.5}}
    other = {"text": "b", "sampling_params": {"json_schema": json.dumps(LONG), "temperature": 1.0}}
    assert grammars.of(body, 9.0) == grammars.of(other, 9.0)


def tools(number: int, of: Any, **more: Any) -> Any:
    made = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": of(i)}}
        for i in range(number)
    ]
    return chat() | {"tools": made, "tool_choice": "required"} | more


def test_of_the_same_tools_another_grammar_is_made_for_each_that_is_named() -> None:
    bodies = [
        tools(8, lambda i: text(maxLength=200 + i), **more)
        for more in (
            {},
            {"parallel_tool_calls": False},
            *(
                {"tool_choice": {"type": "function", "function": {"name": f"f{i}"}}}
                for i in range(8)
            ),
        )
    ]
    assert len({grammars.of(body, 9.0) for body in bodies}) == len(bodies)


def test_all_tools_are_one_grammar() -> None:
    """A thousand of them, of which nobody would have seen the end, kept everybody's grammars away for hours."""
    alike = Chat().read(tools(300, lambda _: text(maxLength=256))).compile_s
    assert 9.0 < alike < 15.0, "compiled once"
    with pytest.raises(Invalid, match="different lengths"):
        Chat().read(tools(1000, lambda i: text(maxLength=256 + i)))
    with pytest.raises(Invalid, match="places"):
        Chat().read(tools(26, lambda i: text(pattern=f"[^{chr(97 + i)}]{{1,250}}")))


def test_all_parts_of_a_tag_are_one_grammar() -> None:
    parts = [{"type": "json_schema", "json_schema": text(maxLength=256 + i)} for i in range(100)]
    structures = [
        {"begin": f"<{i}>", "schema": text(maxLength=256 + i), "end": "<e>"} for i in range(100)
    ]
    forms: list[Any] = [
        {"format": {"type": "sequence", "elements": parts}},
        {"structures": structures, "triggers": ["<"]},
    ]
    for form in forms:
        with pytest.raises(Invalid, match="different lengths"):
            Chat().read(chat() | {"response_format": {"type": "structural_tag", **form}})
    texts = [{"type": "grammar", "grammar": f"root ::= [^{c}]{{1,250}}"} for c in "abcdefghijkl"]
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": texts}}
    with pytest.raises(Invalid, match="places"):
        Chat().read(chat() | {"response_format": tag})


def test_one_batch_is_no_way_to_have_many_compiled_at_once() -> None:
    def batch(*each: Any) -> Any:
        params = [{"json_schema": json.dumps(text(maxLength=most))} for most in each]
        return {"text": ["a"] * len(each), "sampling_params": params}

    with pytest.raises(Invalid, match="requests of their own"):
        Generate().read(batch(256, 255))
    assert 9.0 < Generate().read(batch(256, 256)).compile_s < 15.0, "the same one is compiled once"
    assert Generate().read(batch(20, 21)).compile_s < 5.0
    assert Generate().read(batch(256)).compile_s > 9.0


def test_tools_that_may_be_called_or_not_are_no_grammar() -> None:
    assert Chat().read(chat() | tool(LONG)).compile_s == 0.0


def test_what_cannot_be_written_is_told_apart_all_the_same() -> None:
    """A field that this route does not read, deeper than orjson writes."""
    deep: Any = "a"
    for _ in range(400):
        deep = [deep]
    body = chat() | schema(LONG) | {"json_schema": deep}
    assert grammars.of(body, 9.0) != grammars.of(body, 9.0)


def asked(letter: str, **more: Any) -> Any:
    return chat(stream=True, max_tokens=4, **more) | schema(text(pattern=f"[^{letter}]{{1,200}}"))


async def test_streams_go_on_while_grammars_wait_for_each_other(rig) -> None:
    hold = asyncio.Event()
    rig.engine.script = lambda seen: (
        Behaviour(tokens=4, hold=hold) if "response_format" in seen.body else None
    )
    large = [asyncio.create_task(rig.post(CHAT, asked(letter))) for letter in "abc"]
    await rig.queued(2)
    assert len(rig.engine.seen) == 1
    assert [s["compiling"] for s in (await rig.status())["backends"]] == [1]
    got = await rig.chat()
    assert got.status == 200, "who has no grammar does not wait"
    hold.set()
    assert [one.status for one in await asyncio.gather(*large)] == [200, 200, 200]
    assert {r["compile_ms"] for r in rig.records if r["compile_ms"]} == {9000.0}
    before = len(rig.records)
    await rig.post(CHAT, asked("a"))
    assert rig.records[0]["compile_ms"] is None
    assert len(rig.records) == before + 1


async def test_a_whole_answer_shows_that_it_is_compiled(rig) -> None:
    for expected in (9000.0, None):
        body = asked("a") | {"stream": False}
        assert (await rig.post(CHAT, body)).status == 200
        assert rig.records[0]["compile_ms"] == expected


async def test_for_ollama_as_well(rig) -> None:
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=4, hold=hold)
    bodies = [
        chat(stream=False) | {"format": text(maxLength=most), "options": {"num_predict": 4}}
        for most in (200, 256)
    ]
    both = [asyncio.create_task(rig.post(API_CHAT, body)) for body in bodies]
    await rig.queued(1)
    assert len(rig.engine.seen) == 1
    hold.set()
    assert [one.status for one in await asyncio.gather(*both)] == [200, 200]


@pytest.mark.parametrize("backend", [{"compile_s": "off"}, {"compile_s": 100}])
async def test_a_policy_may_let_them_go_at_once(start, backend) -> None:
    async with start({"backend": backend}) as rig:
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=4, hold=hold)
        large = [asyncio.create_task(rig.post(CHAT, asked(letter))) for letter in "abc"]
        await rig.until(lambda: len(rig.engine.seen) == 3)
        hold.set()
        assert [one.status for one in await asyncio.gather(*large)] == [200, 200, 200]


async def test_what_the_engine_refused_is_not_taken_for_compiled(rig) -> None:
    """Else eight that were refused for something else could follow all at once."""
    rig.engine.queue.append(Behaviour(error=(400, "top_k must be an odd number")))
    assert (await rig.post(CHAT, asked("a"))).status == 400
    hold = asyncio.Event()
    rig.engine.default = Behaviour(tokens=4, hold=hold)
    before = len(rig.engine.seen)
    both = [asyncio.create_task(rig.post(CHAT, asked(letter))) for letter in "ab"]
    await rig.queued(1)
    assert len(rig.engine.seen) == before + 1
    hold.set()
    assert [one.status for one in await asyncio.gather(*both)] == [200, 200]


def test_fields_that_may_be_left_out_are_bounded() -> None:
    """Nine thousand of them, which would take some twenty minutes, fit into the bytes of a grammar."""
    with pytest.raises(Invalid, match="required"):
        Chat().read(chat() | schema(many(4000)))
    numbers = {name: {"type": "integer"} for name in many(4000)["properties"]}
    assert Chat().read(chat() | schema({"type": "object", "properties": numbers})).compile_s < 5.0


@pytest.mark.parametrize("odd", [None, 5, "a", [[]], [{}], {"a": 1}, True])
def test_odd_fields_are_no_error_of_ours(odd: Any) -> None:
    made = {
        "type": "object",
        "properties": {"a": odd, "b": {"type": odd, "enum": odd}},
        "required": odd,
    }
    assert Chat().read(chat() | schema(made)).compile_s < 0.25
    Chat().read(chat() | schema({"properties": odd}))
