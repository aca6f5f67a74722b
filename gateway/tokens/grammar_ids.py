"""Ids of tokens that a grammar names: xgrammar since 0.2 (SGLang 0.5.17) has grammars of tokens too.

`root ::= Token(151936)` where there are 151,936, from 0 on, and `{"type": "token", "token": 151936}` in a
structural tag, read beyond a table while the grammar is compiled: a segmentation fault, and all of the
scheduler's process is gone (xgrammar 0.2.1). What is found here may be too much, never too little.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WORD: Final = "Token"
"""In the names of all that takes ids in EBNF: Token(…), ExcludeToken(…), TokenTagDispatch(…)."""

_NUMBER: Final = re.compile(r"\d+")
_LONGEST: Final = 19
"""Digits of the largest number of 64 bits. What is longer is beyond any vocabulary, and slow to read."""
_BEYOND: Final = 1 << 62

_IDS: Final = frozenset({"token", "exclude_tokens", "trigger_tokens", "rules"})
_SCHEMAS: Final = frozenset({"json_schema", "schema"})
"""Of JSON that is to be written: whatever stands in them is no token."""


def largest(params: Mapping[str, Any]) -> int:
    """The largest id in the grammars of a body or of sampling parameters; -1 where there is none."""
    found = [-1]
    if isinstance(text := params.get("ebnf"), str):
        found.extend(_in_text(text))
    if isinstance(text := params.get("structural_tag"), str):
        found.extend(_in_tag(_parsed(text)))
    found.extend(_in_tag(params.get("response_format")))
    return max(found)


def _parsed(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _in_text(text: str) -> Iterator[int]:
    """All numbers, where any of them may be an id: what stands in quotes is told apart by the parser alone."""
    if WORD in text:
        for digits in _NUMBER.findall(text):
            yield int(digits) if len(digits) <= _LONGEST else _BEYOND


def _in_tag(tag: object) -> Iterator[int]:
    left = [tag]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left.extend(one)
        elif isinstance(one, dict):
            for name, value in one.items():
                if name in _IDS:
                    yield from _numbers(value)
                if name == "grammar" and isinstance(value, str):
                    yield from _in_text(value)
                if name not in _SCHEMAS and isinstance(value, list | dict):
                    left.append(value)


def _numbers(value: object) -> Iterator[int]:
    """One id, a list of them, or a list of pairs that each begin with one."""
    for one in value if isinstance(value, list) else [value]:
        for inner in one if isinstance(one, list) else [one]:
            if isinstance(inner, int | float) and abs(inner) < _BEYOND:
                yield int(inner)
            elif isinstance(inner, int | float):
                yield _BEYOND
