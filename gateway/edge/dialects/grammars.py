"""Grammars that a body has the engine follow, wherever they stand in it: none that ends it.

Each check tells the seconds of one core that the engine likely takes to compile what it looked at: how much of that
goes on at once is bounded at admission (`core.compiling`).
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.core.model import Grammar
from gateway.edge.dialects import Invalid, guard, one_grammar, repeats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANY_JSON: Final = "$$ANY$$"
"""SGLang's own word for any JSON, where a schema is expected."""

_FIELDS: Final = (
    "response_format",
    "regex",
    "ebnf",
    "json_schema",
    "structural_tag",
)
"""Where grammars stand in bodies and in sampling parameters, beside tools and what has a `format`."""

_CHOICE: Final = ("tool_choice", "parallel_tool_calls")
"""Of the same tools a grammar is made for the one that is named, or for all, and for one call or several."""

_HOLDERS: Final = ("text", "output_config")

MOST_TOGETHER_S: Final = 10.0
"""Seconds of one core for the different grammars of one batch: the default of `backends[].compile_s`, and half the
time for which eight large ones stopped all streams."""

_KEY: Final = secrets.token_bytes(16)

_SCHEMAS: Final = ("parameters", "input_schema")
"""Where a tool has its schema, in OpenAI's words and in Anthropic's."""


def check(params: Mapping[str, Any], *fields: str) -> float:
    """The grammars that are told as texts, in the fields that the route reads. Raises Invalid."""
    seconds = 0.0
    for field in fields:
        text = _text(params, field)
        if text is None:
            continue
        seconds += repeats.size_s(len(text))
        if field in {"regex", "ebnf"}:
            seconds += one_grammar.check_pattern(text, field)
        elif text and text != ANY_JSON:
            schema = one_grammar.parsed(text, field)
            if field == "structural_tag":
                seconds += one_grammar.check_tag(schema, field)
            else:
                seconds += one_grammar.check_schema(schema, field)
    return seconds


def check_format(body: Mapping[str, Any]) -> float:
    """`response_format` is an object: of a text or a list the engine answers 500. Raises Invalid."""
    field = "response_format"
    given = body.get(field)
    if given is None:
        return 0.0
    if not isinstance(given, dict):
        msg = f'{field} must be an object, such as {{"type": "json_object"}}'
        raise Invalid(msg, field)
    seconds = one_grammar.check_size(given, field)
    if given.get("type") == "structural_tag":
        return seconds + one_grammar.check_tag(given, field)
    one_grammar.check_depth(given, field)
    holder = given.get("json_schema")
    if isinstance(holder, dict):
        seconds += one_grammar.check_schema(holder.get("schema"), field)
    return seconds


def check_within(body: Mapping[str, Any], field: str) -> float:
    """The `format` in an object of that name: of responses it is `text`, of which 0.5.23 makes a grammar and 0.5.17
    does not; Anthropic has it in `output_config`. Raises Invalid."""
    given = _format(body, field)
    if given is None:
        return 0.0
    seconds = one_grammar.check_size(given, field)
    one_grammar.check_depth(given, field)
    if isinstance(given, dict):
        seconds += one_grammar.check_schema(given.get("schema"), field)
    return seconds


def check_tools(body: Mapping[str, Any]) -> float:
    """Tools of which a grammar is made: where the model must call one, or keep to one strictly.

    Those it may call or not are text to it, however deep. Raises Invalid.
    """
    bound = _bound_tools(body)
    if not bound:
        return 0.0
    seconds = one_grammar.check_size(bound, "tools")
    one_grammar.check_depth(bound, "tools")
    schemas = [
        holder.get(name)
        for tool in bound
        for holder in ((tool, tool.get("function")) if isinstance(tool, dict) else ())
        if isinstance(holder, dict)
        for name in _SCHEMAS
    ]
    return seconds + one_grammar.check_schemas(schemas, "tools")


def check_each(many: Sequence[Mapping[str, Any]], *fields: str) -> float:
    """The grammars of the sampling parameters of a batch: each different one is compiled, all at once. Raises
    Invalid."""
    each = {repr([params.get(field) for field in fields]): params for params in many}
    seconds = [check(params, *fields) for params in each.values()]
    if sum(one >= repeats.LIGHT_S for one in seconds) > 1 and sum(seconds) > MOST_TOGETHER_S:
        msg = (
            f"sampling_params has different grammars that together take some {sum(seconds):.0f} s to compile, at most "
            f"{MOST_TOGETHER_S:.0f} in one batch, as the engine compiles them all at once. Send these prompts as "
            "requests of their own, or with one grammar"
        )
        raise Invalid(msg, "sampling_params")
    return sum(seconds)


def check_least(params: Mapping[str, Any], field: str) -> None:
    """A least number of tokens rules out the ends of an answer. Where a grammar has come to its end nothing
    else may come, and a scheduler that finds nothing ends (0.5.17). One of 1 is sent as 0: see `least`.
    Raises Invalid."""
    number = guard.whole(params.get(field), field)
    if number is not None and number > 1 and asked(params):
        msg = (
            f"{field} beside a grammar (a response_format, a regex, tools that must be called) is not allowed: "
            "where the grammar ends before that many tokens, none is left to write, which ends SGLang. Leave out one of the two; "
            "a minLength in a schema, or `{5,}` in a pattern, asks for longer texts"
        )
        raise Invalid(msg, field)


def least(params: Mapping[str, Any], number: int, cap: int) -> int:
    """The least number of tokens that is sent: no more than the cap, as the engine refuses more, and none
    beside a grammar. What is below 0 stays, for the engine to judge."""
    if number < 0:
        return number
    return 0 if asked(params) else min(number, cap)


def asked(params: Mapping[str, Any]) -> bool:
    """Whether a body, or sampling parameters, have the engine follow a grammar."""
    form = params.get("response_format")
    formed = isinstance(form, dict) and form.get("type") not in {None, "text"}
    fields = ("regex", "ebnf", "json_schema", "structural_tag")
    return formed or any(params.get(field) for field in fields) or bool(_bound_tools(params))


def of(body: Mapping[str, Any], seconds: float) -> Grammar | None:
    """What is to be compiled for a body that the engine gets; None where that takes less than is worth a thought.
    Told apart by all that its grammars are made of, under a key that never leaves the process."""
    if seconds < repeats.LIGHT_S:
        return None
    params = body.get("sampling_params")
    many = params if isinstance(params, list) else [params]
    made_of = [
        holder.get(field)
        for holder in (body, *many)
        if isinstance(holder, dict)
        for field in _FIELDS
    ]
    made_of += [_format(body, field) for field in _HOLDERS]
    try:
        told = orjson.dumps([*made_of, _bound_tools(body), *(body.get(field) for field in _CHOICE)])
    except orjson.JSONEncodeError:  # in a field that this route does not read; deeper than it goes
        told = secrets.token_bytes(16)
    mark = hashlib.blake2b(told, key=_KEY, digest_size=8).digest()
    return Grammar(int.from_bytes(mark), seconds)


def _format(body: Mapping[str, Any], field: str) -> object:
    holder = body.get(field)
    return holder.get("format") if isinstance(holder, dict) else None


def _bound_tools(body: Mapping[str, Any]) -> list[Any]:
    tools = body.get("tools")
    if not isinstance(tools, list):
        return []
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    must = kind not in {None, "auto", "none"} if isinstance(kind, str | None) else True
    return [tool for tool in tools if must or _is_strict(tool)]


def _is_strict(tool: object) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    holders = (tool, function)
    return any(isinstance(one, dict) and bool(one.get("strict")) for one in holders)


def _text(params: Mapping[str, Any], field: str) -> str | None:
    """A grammar that is told as text. Of anything else the scheduler makes a key of its cache, where an
    object or a list is a TypeError, and its end (0.5.6-0.5.17)."""
    given = params.get(field)
    if given is None:
        return None
    if not isinstance(given, str):
        msg = f"{field} must be a text"
        raise Invalid(msg, field)
    if len(given) > one_grammar.MOST_BYTES:
        raise one_grammar.too_large(field)
    return given
