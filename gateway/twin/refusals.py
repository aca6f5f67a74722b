"""The ways SGLang does not serve a body, as exceptions; `faces` makes answers of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Invalid(Exception):
    """A body refused with 400. `pydantic` marks the shape of a validation error, `length` a
    request that is too long, `kind` an error type other than the usual."""

    def __init__(
        self, message: str, *, pydantic: bool = False, length: bool = False, kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.pydantic = pydantic
        self.length = length
        self.kind = kind


class Broken(Exception):
    """SGLang's handler fails on this body: 500. With `message` in its error object, else bare."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or "Internal Server Error")
        self.message = message


class Fatal(Exception):
    """SGLang's scheduler dies of this body: no answer, and nothing else answered either."""


def pydantic_message(details: Sequence[Any], route: str) -> str:
    """Validation errors as FastAPI prints them in SGLang's answers."""
    listed = list(details)
    plural = "" if len(listed) == 1 else "s"
    lines = "".join(f"  {detail}\n" for detail in listed)
    return (
        f"{len(listed)} validation error{plural}:\n{lines}\n"
        f'  File "sglang/srt/entrypoints/http_server.py", line 1, in handler\n'
        f"    POST {route} {listed}"
    )
