"""What each API calls things: the fields that decide cost, where the cap goes, how errors look.

A dialect reads an `Intent` from a parsed body and writes the body that goes upstream. It changes
the cap, our own request id and what the gate needs to see (usage); everything else, known or not,
passes through. Fields that would let a client step around the ledger, touch other requests or
kill the engine are removed or refused here (`guard`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gateway.core.model import Grant
    from gateway.tokens import Kind

Body = dict[str, Any]
"""A parsed JSON object: Any, since clients send what they like."""


class Usage(StrEnum):
    """Where the engine reports the tokens of a request."""

    CHUNK = "chunk"  # a last stream chunk, if stream_options asks for it
    META = "meta"  # meta_info of every answer


class Invalid(Exception):
    """The body is one the engine would refuse, or asks for what is not allowed here. A 400."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Intent:
    """The few things a body says that decide what happens to it."""

    kind: Kind
    cap: int | None  # per sequence; None: left to us
    usual: int | None  # what this endpoint takes an absent cap for, where that is a number
    n: int
    stream: bool
    model: str | None
    strip_usage: bool = False  # we ask for usage on a stream whose client did not
    prompts: int = 1  # as many as are counted and charged, each n times
    heavy: str | None = None  # the field that makes the engine compute over every prompt position


@dataclass(frozen=True, slots=True)
class Engine:
    """What a dialect must know of the server it writes for."""

    version: tuple[int, int, int]
    ranks: int = 1


class Dialect(Protocol):
    """One API."""

    def read(self, body: Body) -> Intent:
        """What the body wants. Raises Invalid."""
        ...

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
        """The body to send: the cap in force, our rid, usage asked for."""
        ...
