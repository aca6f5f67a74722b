"""What all parts of a policy have in common."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen and strict; unknown keys are errors; a docstring under a field is its description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # a mistyped line may hold a key
    )


def section_in(annotation: Any) -> type[Section] | None:  # noqa: ANN401  # any type expression
    """The section that a field holds, or holds a list of; None where it holds none."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (section_in(inner) for inner in get_args(annotation))
    return next((inner for inner in found if inner is not None), None)
