"""One grammar: that it does not end the engine, and how long it takes to compile.

Grammars are compiled within the scheduler's process, by a parser that goes as deep as the text does. At
0.5.6 (xgrammar 0.1.27) and 0.5.17 (0.2.1) 100,000 brackets in a row, 200 kB, overrun its stack, and the
process is gone; 3,000 nested `anyOf` are not done in half a minute. What is refused here is deeper or
larger than anything people write. Of the rest each check tells the seconds of one core that compiling likely
takes (see `repeats`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from gateway.edge.dialects import Invalid, dead_ends, repeats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MOST_BYTES: Final = 256 << 10
"""Of one grammar. A schema of 100 fields has some 3 kB, all tools of a coding agent together 64 kB; a choice
of 10,000 words (209 kB) takes 8 s to compile."""

DEEPEST: Final = 64
"""Lists and objects within each other; a field of a field is two of them. OpenAI takes ten fields deep."""

MOST_GROUPS: Final = 1_000
"""Round brackets in a pattern or EBNF, whether they are within each other or not: what stands in quotes is
told apart by the parser alone. 1,000 within each other compile at once in all versions; xgrammar
0.1.27 dies of 100,000."""

NUL: Final = "\x00"
"""A pattern that begins with it ends the process with a segmentation fault (xgrammar 0.1.27 and 0.2.1, so
0.5.6 and 0.5.17; 0.2.7 says no), and patterns stand at many places of a schema, as names as well. The
escape `\\x00` in a pattern is another thing, and passes."""

DISPATCH: Final = "TagDispatch"
"""What structural tags are made of. Repeated, where its rules go round, it is a segmentation fault while it is
compiled (xgrammar 0.1.27)."""

MOST_EXCLUDED: Final = 128
"""Tokens that one place of a grammar rules out. No vocabulary of bytes has as few; with all of one's there nothing
is left to write (0.2.1), and those of a vocabulary of 32,000 fit into MOST_BYTES."""

_EXCLUDED: Final = re.compile(r"\bExcludeToken\s*+\(([^()]*+)")

_QUOTED: Final = re.compile(
    r'"(?:[^"\\\n]++|\\.)*+"?|\[(?:[^\]\\\n]++|\\.)*+\]?|#[^\n]*+|//[^\n]*+|/(?:[^/\\\n]++|\\.)++/?'
)
"""Texts, classes, patterns and comments, ended or not: each is read once. A letter of several bytes
anywhere else is told as its first byte in an error that then cannot be read: no RuntimeError, and the
engine waits for no other (0.5.6)."""

_NESTED: Final = (list, dict)


def check_pattern(text: str, field: str) -> float:
    """A regular expression or EBNF, as `field` says. Raises Invalid."""
    if not text:  # generation hangs for ever
        msg = f"{field} is empty: leave it out, or send a grammar"
        raise Invalid(msg, field)
    if NUL in text:
        raise _has_nul(field)
    if max(text.count("("), text.count(")")) > MOST_GROUPS:
        msg = f"{field} has more than {MOST_GROUPS:,} groups"
        raise Invalid(msg, field)
    if field == "ebnf":
        _check_ebnf(text, field)
        return _check_repeats([], field, text)
    return _check_repeats([text], field)


def _check_repeats(patterns: list[str], field: str, ebnf: str = "") -> float:
    try:
        return repeats.check(patterns, ebnf)
    except repeats.TooMany:
        msg = (
            f"{field} has patterns whose repeats spell out more than {repeats.MOST_PLACES:,} places (such as "
            "`[^a]{1,300}` ten times, each of other letters), or repeats within repeats that come to "
            f"{repeats.MOST_NESTED:,} (`(.{{1,100}},){{1,100}}`), or more than {repeats.MOST_ROW:.0f} sets in a row that "
            f"may each be left out (`.?.?.?`), or more than {repeats.MOST_PIECES:,} pieces, which "
            "take long to compile. Write `*` or `+` for large numbers, and `{0,n}` for `?` n times"
        )
        raise Invalid(msg, field) from None


def _check_ebnf(text: str, field: str) -> None:
    """What ends the scheduler in EBNF: of 0.5.6 (xgrammar 0.1.27) by what it is made of, of all by where it
    leads to. Raises Invalid."""
    if dead_ends.has_more(text, repeats.MOST_PIECES):
        msg = f"{field} has more than {repeats.MOST_PIECES:,} texts, names and signs; use fewer"
        raise Invalid(msg, field)
    if DISPATCH in text:
        msg = f"{field} has a {DISPATCH}: send a structural tag instead"
        raise Invalid(msg, field)
    bare = _QUOTED.sub("", text)
    if not bare.isascii():
        msg = f"{field} has a letter that is not ASCII outside of quotes and brackets"
        raise Invalid(msg, field)
    if dead_ends.TOKEN.search(bare):
        raise _names_token(field)
    if any(ids[1].count(",") >= MOST_EXCLUDED for ids in _EXCLUDED.finditer(bare)):
        raise _excludes_many(field)
    if (rule := dead_ends.rule_without_beginning(text)) is not None:
        msg = (
            f"{field} has a part that nothing can be written for, {rule[:_TOLD]}: a rule that begins with "
            "itself, or an empty choice of letters. Give it another way to begin"
        )
        raise Invalid(msg, field)


_TOLD: Final = 40
"""Letters of a rule's name that are told again."""


def parsed(text: str, field: str) -> object:
    """JSON that is told as a text. Raises Invalid."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("depth limit"):
            raise _too_deep(field) from None
        msg = f"{field} is not valid JSON: {error}"
        raise Invalid(msg, field) from None


def check_size(given: object, field: str) -> float:
    """Of a grammar told as JSON. Raises Invalid."""
    try:
        size = len(orjson.dumps(given))
    except orjson.JSONEncodeError:  # deeper than it goes, or a number of more than 64 bits
        raise _too_deep(field) from None
    if size > MOST_BYTES:
        raise too_large(field)
    return repeats.size_s(size)


def check_depth(given: object, field: str) -> None:
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


def check_schema(schema: object, field: str) -> float:
    """A JSON schema by itself. Raises Invalid."""
    return check_schemas([schema], field)


def check_schemas(
    schemas: Sequence[object], field: str, patterns: Sequence[str] = (), ebnf: str = ""
) -> float:
    """JSON schemas, and what else one grammar is made of: how deep, where references lead to, and the patterns
    of all together, as the engine compiles them together. Raises Invalid."""
    for schema in schemas:
        check_depth(schema, field)
        if dead_ends.ref_without_end(schema):
            msg = f"{field} has a $ref that leads back to itself, so that nothing can be written for it"
            raise Invalid(msg, field)
    found = [*patterns, *(text for schema in schemas for text in dead_ends.patterns(schema))]
    seconds = _check_repeats(found, field, ebnf)
    lengths = {bounds for schema in schemas for bounds in dead_ends.lengths(schema)}
    if len(lengths) > repeats.MOST_LENGTHS:
        msg = (
            f"{field} has texts of more than {repeats.MOST_LENGTHS} different lengths (minLength, maxLength), each "
            "of which takes long to compile; use fewer, such as the next power of two"
        )
        raise Invalid(msg, field)
    left_out = repeats.optional_s(n for schema in schemas for n in dead_ends.optional(schema))
    if left_out > repeats.MOST_OPTIONAL_S:
        msg = (
            f"{field} has objects with so many fields that may be left out that they take some {left_out:.0f} s to "
            f"compile, at most {repeats.MOST_OPTIONAL_S:.0f}; list fields in `required`, or use fewer"
        )
        raise Invalid(msg, field)
    return seconds + repeats.lengths_s(lengths) + left_out


def _within(one: object) -> Iterator[object]:
    if isinstance(one, dict):
        yield from one
        yield from one.values()
    elif isinstance(one, list):
        yield from one


def check_tag(given: object, field: str) -> float:
    """A structural tag, of both forms. What is missing in one is a KeyError or an assertion in the
    scheduler, and its end (0.5.6; sgl-project/sglang#13068)."""
    check_depth(given, field)
    if isinstance(given, dict) and given.get("structures") is None:
        if isinstance(given.get("format"), dict):
            made = _Made([], [], [])
            _look_at(given["format"], field, made)
            return check_schemas(made.schemas, field, made.patterns, "\n".join(made.ebnf))
    elif isinstance(given, dict) and _is_legacy(given["structures"], given.get("triggers")):
        return check_schemas([one.get("schema") for one in given["structures"]], field)
    msg = (
        f"{field} must have a format, an object; or structures, each with begin and end as texts and a "
        "schema, and triggers, a list of texts"
    )
    raise Invalid(msg, field)


class _Made(NamedTuple):
    """What a grammar is made of."""

    schemas: list[object]
    patterns: list[str]
    ebnf: list[str]


def _look_at(form: object, field: str, made: _Made) -> None:
    """The parts of a format, as far as the engine walks through them itself before its parser looks: a list
    for a type, or none where it has parts, is a TypeError there, and at 0.5.6 the scheduler's end. What
    stands in a `json_schema` is no part. `form` is no deeper than `DEEPEST`. Raises Invalid."""
    if not isinstance(form, dict):
        return
    if not isinstance(form.get("type"), str | None):
        msg = f"{field} has a part whose type is no text"
        raise Invalid(msg, field)
    _check_tokens(form, field)
    for name in ("content", "begin", "end"):
        _look_at(form.get(name), field, made)
    if isinstance(text := form.get("grammar"), str):
        _check_ebnf(text, field)
        made.ebnf.append(text)
    if isinstance(text := form.get("pattern"), str):
        made.patterns.append(text)
    made.schemas.append(form.get("json_schema"))
    for name in ("elements", "tags"):
        parts = form.get(name, [])
        if not isinstance(parts, list):
            msg = f"{field} has {name} that are no list"
            raise Invalid(msg, field)
        for part in parts:
            _look_at(part, field, made)


def _check_tokens(part: dict[str, Any], field: str) -> None:
    if part.get("type") == "token":
        raise _names_token(field)
    if isinstance(ids := part.get("exclude_tokens"), list) and len(ids) > MOST_EXCLUDED:
        raise _excludes_many(field)


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


def _names_token(field: str) -> Invalid:
    msg = (
        f"{field} names single tokens, by a token id or a name. One that ends answers, or that the tokenizer does "
        "not have, would leave nothing to write, which ends SGLang; write its text in quotes"
    )
    return Invalid(msg, field)


def _excludes_many(field: str) -> Invalid:
    msg = (
        f"{field} rules out more than {MOST_EXCLUDED} tokens in one place: of all that there are, none would be "
        "left to write, which ends SGLang"
    )
    return Invalid(msg, field)


def _has_nul(field: str) -> Invalid:
    return Invalid(f"{field} has a character U+0000 in it", field)


def too_large(field: str) -> Invalid:
    """It has more bytes than MOST_BYTES."""
    return Invalid(f"{field} has more than {MOST_BYTES:,} bytes", field)


def _too_deep(field: str) -> Invalid:
    return Invalid(f"{field} is nested more than {DEEPEST} levels deep", field)
