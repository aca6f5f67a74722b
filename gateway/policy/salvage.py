"""What can be read of a part of a policy that has mistakes, so that one of them hides no other.

Each field is read by itself. One that cannot be is `Broken`: it was written, so it is there for whoever
asks whether it is, and nothing is known of its value but those items of a list that are well formed.
Whoever compares values asks `is_read` first.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError, create_model

from gateway.policy.section import Section, section_in
from gateway.policy.types import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pydantic.fields import FieldInfo

S = TypeVar("S", bound=Section)


class Broken:
    """Stands for a value that cannot be read. Iterating it gives what of it can."""

    __slots__ = ("_good", "_said")

    def __init__(self, said: object = None, good: tuple[object, ...] = ()) -> None:
        self._said = said
        self._good = good

    def __bool__(self) -> bool:
        return bool(self._said)

    def __iter__(self) -> Iterator[object]:
        return iter(self._good)

    def __str__(self) -> str:
        return str(self._said)


def is_read(*values: object) -> bool:
    """Whether these are values, and not what stands for some that cannot be read."""
    return not any(isinstance(value, Broken) for value in values)


def salvaged(kind: type[S], raw: object, context: Mapping[str, Path]) -> S | None:
    """The fields of `raw` as `kind`; None where it is nothing that has fields."""
    if not isinstance(raw, dict):
        return None
    try:
        return kind.model_validate(raw, context=context)
    except ValidationError:
        pass
    values: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        known = {other: value for other, value in values.items() if is_read(value)}
        said = name in raw
        values[name] = _field(kind, name, raw[name], context) if said else _default(field, known)
    # What is not known here was meant to be something, too.
    return cast("S", kind.model_construct(_fields_set=set(raw), **values))


def _default(field: FieldInfo, before: Mapping[str, object]) -> object:
    """The value of a field that was not written; `before` are those of the fields above it."""
    if field.is_required():
        return Broken()
    try:
        return field.get_default(call_default_factory=True, validated_data=dict(before))
    except KeyError:  # it is made of one that cannot be read
        return Broken()


def _field(kind: type[Section], name: str, said: object, context: Mapping[str, Path]) -> object:
    """The value of a field that was written."""
    annotation: object = kind.model_fields[name].annotation
    try:
        return _read(kind, name, said, context)
    except ValidationError:
        pass
    inner = section_in(annotation)
    if inner is None:
        return Broken(said, tuple(_items(kind, name, said, context)))
    if inner is annotation:
        part: object = salvaged(inner, said, context)
        return Broken(said) if part is None else part
    parts = (salvaged(inner, entry, context) for entry in listed(said))
    return Broken(said, tuple(part for part in parts if part is not None))


def _items(
    kind: type[Section], name: str, said: object, context: Mapping[str, Path]
) -> Iterator[object]:
    """Those of a list that can be read."""
    for item in said if isinstance(said, list) else ():
        try:
            yield from _read(kind, name, [item], context)
        except (ValidationError, TypeError):  # or the field takes no list
            continue


def _read(kind: type[Section], name: str, said: object, context: Mapping[str, Path]) -> Any:  # noqa: ANN401
    """One field of a kind. Raises ValidationError."""
    return getattr(_alone(kind, name).model_validate({name: said}, context=context), name)


@cache
def _alone(kind: type[Section], name: str) -> type[Section]:
    """A section of that field alone."""
    field = kind.model_fields[name]
    parts: Any = {name: (field.annotation, field)}
    return create_model(f"{kind.__name__}_{name}", __base__=Section, **parts)
