"""Pydantic's findings in plain words, each with a remedy and, for unknown keys, the likely one."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from gateway.policy import checks
from gateway.policy.problems import ABSENT, Finding, dotted
from gateway.policy.section import Section, section_in
from gateway.policy.types import OWN_ERROR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from gateway.policy.problems import Loc

_INLINE_KEYS = frozenset({"key", "keys", "api_key", "apikey", "token", "secret", "password"})

_DIGITS = "write it in digits, such as 60, without quotes, unit or exponent"
"""YAML takes 1h for text, and 1e6 as well."""

_WORDS: Mapping[str, tuple[str, str]] = {
    "missing": ("is missing", "add the line"),
    "int_type": ("must be a whole number", f"{_DIGITS} and without a fraction"),
    "int_from_float": ("must be a whole number", "write it without a fraction"),
    "float_type": ("must be a number", _DIGITS),
    "string_type": ("must be text", "put it into quotes"),
    "string_too_short": ("must not be empty", "write a value or leave the line out"),
    "too_short": ("must not be empty", "write at least one, or leave the line out"),
    "bool_type": ("must be true or false", "write true or false"),
    "greater_than": ("must be above {gt}", "raise it or leave the line out"),
    "greater_than_equal": ("must be at least {ge}", "raise it or leave the line out"),
    "less_than_equal": ("must be at most {le}", "lower it or leave the line out"),
    "finite_number": ("must be a finite number", "write a number or leave the line out"),
    "literal_error": ("must be {expected}", "write one of these"),
    "tuple_type": ("must be a list", "start each item with '- '"),
    "model_type": ("must be a mapping", "write indented lines NAME: VALUE below it"),
    "path_type": ("must be a path", "write it as text"),
}

_CONSEQUENCES = frozenset({checks.CROSS_ERROR, "default_factory_not_called"})
"""Errors that only follow from others, or that `load` finds with more detail by itself."""


def explain(error: ValidationError, model: type[Section]) -> list[Finding]:
    """Every primary mistake in `error`, which came from validating `model`."""
    return [
        _one(detail, model)
        for detail in error.errors(include_url=False)
        if detail["type"] not in _CONSEQUENCES
    ]


def _one(detail: ErrorDetails, model: type[Section]) -> Finding:
    loc, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return Finding(loc, detail["input"], "is not a known key", _unknown(loc, model))
    if kind == OWN_ERROR:
        return Finding(loc, detail["input"], context["wrong"], context["remedy"])
    wrong, remedy = _WORDS.get(kind, (detail["msg"], "see `kvgate schema`"))
    value = ABSENT if kind == "missing" else detail["input"]
    return Finding(loc, value, wrong.format(**context), remedy)


def _unknown(loc: Loc, model: type[Section]) -> str:
    name = str(loc[-1])
    fields = tuple(_model_at(loc[:-1], model).model_fields)
    if name.lower() in _INLINE_KEYS:
        named = [f for f in fields if f.endswith(("key_env", "key_file"))]
        if named:
            return f"keys are never written here: name the place of the key in {' or '.join(named)}"
    close = difflib.get_close_matches(name.lower().replace("-", "_"), fields, n=1)
    if close:
        return f"did you mean {close[0]}?"
    elsewhere = [
        dotted((*path, name)) for path, inner in _sections(model) if name in inner.model_fields
    ]
    if elsewhere:
        return f"it belongs in {' or '.join(elsewhere)}"
    return f"known keys here: {', '.join(fields)}"


def _model_at(loc: Loc, model: type[Section]) -> type[Section]:
    for part in loc:
        if isinstance(part, str):
            model = section_in(model.model_fields[part].annotation) or model
    return model


def _sections(model: type[Section]) -> Iterator[tuple[Loc, type[Section]]]:
    yield (), model
    for name, info in model.model_fields.items():
        if (inner := section_in(info.annotation)) is not None:
            yield (name,), inner
