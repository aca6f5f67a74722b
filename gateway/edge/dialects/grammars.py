"""Grammars that the engine is to follow: none that ends it, or keeps it at compiling for everybody.

They are compiled within the scheduler's process, by a parser that goes as deep as the text does. At
0.5.6 (xgrammar 0.1.27) and 0.5.17 (0.2.1) 100,000 brackets in a row, 200 kB, overrun its stack, and the
process is gone; 3,000 nested `anyOf` are not done in half a minute. What is refused here is deeper or
larger than anything people write. How long the rest takes to compile is not known from its text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.edge.dialects import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_BYTES: Final = 256 << 10
"""Of one grammar. A schema of 100 fields has some 3 kB, all tools of a coding agent together 64 kB; a choice
of 10,000 words (209 kB) takes 8 s to compile."""

DEEPEST: Final = 64
"""Lists and objects within each other; a field of a field is two of them. OpenAI takes ten fields deep."""

MOST_GROUPS: Final = 1_000
"""Round brackets in a pattern or EBNF, whether they are within each other or not: what stands in quotes is
told apart by the parser alone. 1,000 within each other compile at once in all versions; xgrammar
0.1.27 dies of 100,000."""

ANY_JSON: Final = "$$ANY$$"
"""SGLang's own word for any JSON, where a schema is expected."""

NUL: Final = "\x00"
"""A pattern that begins with it ends the process with a segmentation fault (xgrammar 0.1.27 and 0.2.1, so
0.5.6 and 0.5.17; 0.2.7 says no), and patterns stand at many places of a schema, as names as well. The
escape `\\x00` in a pattern is another thing, and passes."""

DISPATCH: Final = "TagDispatch"
"""What structural tags are made of. Repeated, where its rules go round, it is a segmentation fault while it is
compiled (xgrammar 0.1.27)."""

_QUOTED: Final = re.compile(
    r'"(?:\\.|[^"\\\n])*"?|\[(?:\\.|[^\]\\\n])*\]?|#[^\n]*|//[^\n]*|/(?:\\.|[^/\\\n])+/?'
)
"""Texts, classes, patterns and comments, ended or not: each is read once. A letter of several bytes
anywhere else is told as its first byte in an error that then cannot be read: no RuntimeError, and the
engine waits for no other (0.5.6)."""

_NESTED: Final = (list, dict)


def check(params: Mapping[str, Any], *fields: str) -> None:
    """The grammars that are told as texts, in the fields that the route reads. Raises Invalid."""
    for field in fields:
        text = _text(params, field)
        if text is None:
            continue
        if field in {"regex", "ebnf"}:
            _check_pattern(text, field)
        elif text and text != ANY_JSON:
            schema = _parsed(text, field)
            (_check_tag if field == "structural_tag" else _check_depth)(schema, field)


def check_format(body: Mapping[str, Any]) -> None:
    """`response_format` is an object: of a text or a list the engine answers 500. Raises Invalid."""
    field = "response_format"
    given = body.get(field)
    if given is None:
        return
    if not isinstance(given, dict):
        msg = f'{field} must be an object, such as {{"type": "json_object"}}'
        raise Invalid(msg, field)
    _check_size(given, field)
    if given.get("type") == "structural_tag":
        _check_tag(given, field)
    else:
        _check_depth(given, field)


def check_within(body: Mapping[str, Any], field: str) -> None:
    """The `format` in an object of that name: of responses it is `text`, of which 0.5.23 makes a grammar and 0.5.17
    does not; Anthropic has it in `output_config`. Raises Invalid."""
    holder = body.get(field)
    given = holder.get("format") if isinstance(holder, dict) else None
    if given is not None:
        _check_size(given, field)
        _check_depth(given, field)


def check_tools(body: Mapping[str, Any]) -> None:
    """Tools of which a grammar is made: where the model must call one, or keep to one strictly.

    Those it may call or not are text to it, however deep. Raises Invalid.
    """
    tools = body.get("tools")
    if not isinstance(tools, list):
        return
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    must = kind not in {None, "auto", "none"} if isinstance(kind, str | None) else True
    bound = [tool for tool in tools if must or _is_strict(tool)]
    if bound:
        _check_size(bound, "tools")
        _check_depth(bound, "tools")


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
    if len(given) > MOST_BYTES:
        raise _too_large(field)
    return given


def _check_pattern(text: str, field: str) -> None:
    if not text:  # generation hangs for ever
        msg = f"{field} is empty: leave it out, or send a grammar"
        raise Invalid(msg, field)
    if NUL in text:
        raise _has_nul(field)
    if field == "ebnf":
        _check_ebnf(text, field)
    if text.count("(") > MOST_GROUPS:
        msg = f"{field} has more than {MOST_GROUPS:,} groups"
        raise Invalid(msg, field)


def _check_ebnf(text: str, field: str) -> None:
    """What ends the scheduler of 0.5.6 in EBNF (xgrammar 0.1.27). Raises Invalid."""
    if DISPATCH in text:
        msg = f"{field} has a {DISPATCH}: send a structural tag instead"
        raise Invalid(msg, field)
    if not text.isascii() and not _QUOTED.sub("", text).isascii():
        msg = f"{field} has a letter that is not ASCII outside of quotes and brackets"
        raise Invalid(msg, field)


def _parsed(text: str, field: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("depth limit"):
            raise _too_deep(field) from None
        msg = f"{field} is not valid JSON: {error}"
        raise Invalid(msg, field) from None


def _check_size(given: object, field: str) -> None:
    try:
        size = len(orjson.dumps(given))
    except orjson.JSONEncodeError:  # deeper than it goes, or a number of more than 64 bits
        raise _too_deep(field) from None
    if size > MOST_BYTES:
        raise _too_large(field)


def _check_depth(given: object, field: str) -> None:
    """Level by level, so that nothing here is as deep as what is looked at."""
    level = [given]
    for _ in range(DEEPEST + 1):
        inner = [one for outer in level for one in _within(outer)]
        if any(isinstance(one, str) and NUL in one for one in inner):
            raise _has_nul(field)
        level = [one for one in inner if isinstance(one, _NESTED)]
        if not level:
            return
    raise _too_deep(field)


def _within(one: object) -> Iterator[object]:
    if isinstance(one, dict):
        yield from one
        yield from one.values()
    elif isinstance(one, list):
        yield from one


def _check_tag(given: object, field: str) -> None:
    """A structural tag, of both forms. What is missing in one is a KeyError or an assertion in the
    scheduler, and its end (0.5.6; sgl-project/sglang#13068)."""
    _check_depth(given, field)
    if isinstance(given, dict) and given.get("structures") is None:
        if isinstance(given.get("format"), dict):
            _check_parts(given["format"], field)
            return
    elif isinstance(given, dict) and _is_legacy(given["structures"], given.get("triggers")):
        return
    msg = (
        f"{field} must have a format, an object; or structures, each with begin and end as texts and a "
        "schema, and triggers, a list of texts"
    )
    raise Invalid(msg, field)


def _check_parts(form: object, field: str) -> None:
    """The parts of a format, as far as the engine walks through them itself before its parser looks: a list
    for a type, or none where it has parts, is a TypeError there, and at 0.5.6 the scheduler's end. What
    stands in a `json_schema` is no part. `form` is no deeper than `DEEPEST`. Raises Invalid."""
    if not isinstance(form, dict):
        return
    if not isinstance(form.get("type"), str | None):
        msg = f"{field} has a part whose type is no text"
        raise Invalid(msg, field)
    _check_parts(form.get("content"), field)
    if isinstance(text := form.get("grammar"), str):
        _check_ebnf(text, field)
    for name in ("elements", "tags"):
        parts = form.get(name, [])
        if not isinstance(parts, list):
            msg = f"{field} has {name} that are no list"
            raise Invalid(msg, field)
        for part in parts:
            _check_parts(part, field)


def _is_legacy(structures: object, triggers: object) -> bool:
    if not isinstance(structures, list) or not isinstance(triggers, list):
        return False
    return all(isinstance(trigger, str) for trigger in triggers) and all(
        isinstance(one, dict)
        and isinstance(one.get("begin"), str)
        and isinstance(one.get("end"), str)
        and isinstance(one.get("schema"), dict | bool | None)
        for one in structures
    )


def _has_nul(field: str) -> Invalid:
    return Invalid(f"{field} has a character U+0000 in it", field)


def _too_large(field: str) -> Invalid:
    return Invalid(f"{field} has more than {MOST_BYTES:,} bytes", field)


def _too_deep(field: str) -> Invalid:
    return Invalid(f"{field} is nested more than {DEEPEST} levels deep", field)
