"""Patterns that take the engine long to compile are refused, and those that people write are not."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest

from gateway.edge.dialects import dead_ends, repeats
from gateway.edge.dialects.repeats import MOST_LENGTHS, MOST_PIECES, TooMany
from tests.edge.rig import CHAT, GENERATE, TEXT, chat

WIDE = "".join(f"[^{letter}]{{1,300}}" for letter in "abcdefghi")
CUBE = "((a{1,10}){1,10}){1,10}"


@pytest.mark.parametrize(
    "pattern",
    [
        WIDE,
        CUBE,
        "(.{1,100},){1,100}",
        "((?:[a-z]{1,60}\\s){1,40})",
        "(([0-9]{10}){10}){10}",
        "." * 2_049,
        "(" + "." * 300 + "){1,10}",
        "(" * 400 + "[a-z]" + "){2}" * 400,
    ],
)
def test_many_places_are_told(pattern: str) -> None:
    with pytest.raises(TooMany):
        repeats.check([pattern])
    with pytest.raises(TooMany):
        repeats.check([], "root ::= " + pattern.replace(".", "[^x]").replace("?:", "").replace("\\s", "[ ]"))  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        "^[^\\n\\r]{1,300}$",
        ".{1,10000}",
        "a{100000}",
        "([0-9]{1,20}){1,20}",
        "^(?:[a-zA-Z0-9_-]{1,63}\\.){1,8}[a-z]{2,63}$",
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "(\\w+ ){1,100}",
        "\\[{300}\\.{300}\\({300}",
        "[.({[]{200}",
        "{1,300}){5}(",
        "(.{50}",
    ],
)
def test_what_people_write_is_few(pattern: str) -> None:
    repeats.check([pattern])


def test_alike_sets_of_several_patterns_count_once() -> None:
    repeats.check([f"^{word}[a-z]{{1,250}}$" for word in "abcdefghijklmnopqrst"])
    repeats.check([".{250}", "x.{255}", ".{256}"])
    with pytest.raises(TooMany):
        repeats.check([f"^[a-z{digit}]{{1,250}}$" for digit in "0123456789"])


def test_in_ebnf_a_text_is_no_set() -> None:
    repeats.check([], 'root ::= "[^a]{300}.{300}" # [^b]{300}\n' * 20)


@pytest.mark.parametrize(
    "text",
    ["[a]{1}", "a{1}", "(", "[a", "(a{2}", "(a", ")", "{1,", "a{1,2}", "\\", '"\\', "[^"],
)
def test_a_pattern_is_read_in_one_go(text: str) -> None:
    before = time.process_time()
    for many in (text * ((256 << 10) // len(text)), "(" * 999 + text * 40_000 + "){1}" * 999):
        for args in (([many],), ([], many)):
            try:
                repeats.check(*args)
            except TooMany:
                continue
    assert time.process_time() - before < 6  # 1 s


def deep(letter: str) -> str:
    """A thousand brackets within each other, each with a set of its own before the next."""
    outer = "".join(f"([{chr(0x4E00 + one)}]" for one in range(1_000))
    inner = "".join(f"[{chr(0x8000 + one)}]" for one in range(1_000))
    return outer + inner + f"{letter})" * 1_000


@pytest.mark.parametrize(
    ("patterns", "ebnf"),
    [
        (["a{1" + " " * 250_000], ""),
        (["a{1," + " " * 250_000], ""),
        (["a{" + " " * 250_000], ""),
        ([], 'root ::= "a"{1,' + " " * 250_000),
        ([], 'root ::= "a"{1' + " " * 250_000),
        ([deep(letter) for letter in "abcd"], ""),
    ],
)
def test_no_pattern_takes_long_to_be_looked_at(patterns: list[str], ebnf: str) -> None:
    """Of a second and more that all clients would wait: minutes, for the first ones."""
    before = time.process_time()
    repeats.check(patterns, ebnf)
    dead_ends.rule_without_beginning(ebnf)
    assert time.process_time() - before < 0.6  # 0.02 to 0.15 s


def test_sets_of_deep_brackets_are_counted() -> None:
    repeats.check([deep("x")])
    with pytest.raises(TooMany):
        repeats.check(["[a]" * 49 + deep("x")])
    with pytest.raises(TooMany):
        repeats.check(["(([a][d][e]([b][f][g]){1})[c][h][i]){256}"])


def test_pieces_are_bounded() -> None:
    word = "|".join(f"w{one}" for one in range(10_000))
    repeats.check([f"({word})"])
    assert not dead_ends.has_more("root ::= " + "|".join(f'"w{one}"' for one in range(10_000)), MOST_PIECES)  # fmt: skip
    with pytest.raises(TooMany):
        repeats.check(["a{1}" * 7_000, "b{1}" * 7_000])


def formed(schema: Any) -> Any:
    return chat(max_tokens=5, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})  # fmt: skip


def texts(*bounds: dict[str, Any]) -> Any:
    return {"type": "object", "properties": {f"f{at}": {"type": "string"} | one for at, one in enumerate(bounds)}}  # fmt: skip


def tagged(form: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": form})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(max_tokens=5, regex=WIDE)),
        (CHAT, formed(texts({"pattern": WIDE}))),
        (CHAT, formed({"patternProperties": {CUBE: {}}})),
        (CHAT, formed(texts(*({"maxLength": 9 + one} for one in range(MOST_LENGTHS + 1))))),
        (TEXT, {"prompt": "a", "ebnf": f"root ::= {CUBE}"}),
        (TEXT, {"prompt": "a", "regex": "a{1}" * 13_000}),
        (TEXT, {"prompt": "a", "json_schema": json.dumps(texts({"pattern": CUBE}))}),
        (GENERATE, {"text": "a", "sampling_params": {"regex": CUBE}}),
        (GENERATE, {"text": "a", "sampling_params": {"structural_tag": tagged({"type": "regex", "pattern": CUBE})}}),
    ],
)  # fmt: skip
async def test_what_compiles_for_long_is_refused_with_a_remedy(rig, path: str, body: Any) -> None:
    got = await rig.post(path, body)
    assert (got.status, got.code) == (400, "invalid_request"), got.body
    assert "long to compile" in got.error["message"]
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    "schema",
    [
        texts(*({"maxLength": 500, "minLength": 1} for _ in range(100))),
        texts(*({"maxLength": 1 << at} for at in range(16))),
        texts(*({"enum": [f"value {at} {one}" for one in range(300)]} for at in range(5))),
        texts({"pattern": "^[^\\n\\r]{1,300}$", "maxLength": 300}, {"pattern": "^\\S{1,200}$"}),
        {"type": "array", "items": texts({"maxLength": 200}), "maxItems": 500},
        {"anyOf": [texts(*({} for _ in range(10))) for _ in range(60)]},
        {"properties": {"maxLength": {"type": "integer"}, "pattern": {"type": "string"}}},
    ],
)
async def test_honest_schemas_pass(rig, schema: Any) -> None:
    got = await rig.post(CHAT, formed(schema))
    assert got.status == 200, got.body


ROWS = [
    # what may be left out in a row; seconds of one core (xgrammar 0.2.1, 151,669 tokens)
    (".?" * 10, 3.1),
    (".?" * 20, 22.4),
    ("(.?)" * 20, 24.4),
    (".?[^b]?[^c]?[^d]?" * 5, 23.3),
    ("[a-z]?" * 20, 3.7),
    (".*" * 20, 1.5),
]


@pytest.mark.parametrize(("pattern", "seconds"), ROWS)
def test_sets_in_a_row_that_may_be_left_out_are_told(pattern: str, seconds: float) -> None:
    assert seconds / 1.5 <= repeats.check([pattern]) <= 4 * seconds


@pytest.mark.parametrize(
    "pattern",
    [
        "(.?a)" * 20,  # 0.10 s: a letter ends the row
        ".?a" * 20,
        "(.b)?" * 20,  # 0.05 s
        ".{0,1}" * 20,  # 0.03 s
        "a?" * 200,  # 0.6 s
        "([a-z]\\d?)" * 20,
        r"^\s*[a-z]*\s*,?\s*(\d+)?(Z|\+\d\d)?$",
        r"^[+-]?\d*\.?\d*(?:[eE][+-]?\d+)?$",
    ],
)
def test_what_is_in_no_row_costs_no_more_than_its_places(pattern: str) -> None:
    assert repeats.check([pattern]) < 1.0


@pytest.mark.parametrize(
    "pattern", [".?" * 40, "(.|ab)?" * 40, "(|.)" * 40, "(.?.?)" * 20, "\\w*" * 60]
)
def test_longer_rows_are_refused(pattern: str) -> None:
    """Thirty of `.?` were not done after 80 s."""
    with pytest.raises(TooMany):
        repeats.check([pattern])


def test_names_in_a_row_are_sets_in_a_row() -> None:
    rules = "\na ::= [^x]\n"
    assert repeats.check([], "root ::= " + "a? " * 20 + rules) > 20.0
    assert repeats.check([], "root ::= " + '"x"? ' * 20 + rules) < 0.1
    with pytest.raises(TooMany):
        repeats.check([], "root ::= " + "a ? " * 40 + rules)


@pytest.mark.parametrize(
    "ebnf", ["a" * 250_000, "a " * 125_000, "a" + " " * 250_000, "a" * 250_000 + " "]
)
def test_names_are_read_once(ebnf: str) -> None:
    before = time.process_time()
    with suppress(TooMany):
        repeats.check([], ebnf)
    assert time.process_time() - before < 1.0
