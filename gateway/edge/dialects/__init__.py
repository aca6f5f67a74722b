"""What each API calls things: the fields that decide cost, where the cap goes, how errors look.

A dialect reads an `Intent` from a parsed body and writes the body that goes upstream. It changes
the cap, our own request id and what the gate needs to see (usage); everything else, known or not,
passes through. Fields that would let a client step around the ledger, touch other requests or
kill the engine are removed or refused here (`guard`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.core.model import Grant
    from gateway.edge.voices import Voice
    from gateway.tokens import Kind

FIRST = (0, 0, 0)
"""Since when a route exists that every version in use has (0.5.6-0.5.23)."""

Body = dict[str, Any]
"""A parsed JSON object: Any, since clients send what they like."""


class Invalid(Exception):
    """The body is one the engine would refuse, or asks for what is not allowed here. A 400."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Times:
    """When what happened to one request, for an API whose answers tell it. `now` is the clock that
    the others were read from, seconds; `wall` is the time of day in UTC, as ISO 8601 writes it."""

    arrived: float
    granted: float
    now: Callable[[], float]
    wall: Callable[[], str]


class Teller(Protocol):
    """Tells the engine's answer to one request in the words of another API. Pure, and never raises:
    what it does not understand it leaves out, but for what makes the answer another one.
    `most_bytes` is the largest whole answer it takes."""

    most_bytes: int

    def feed(self, data: bytes) -> bytes:
        """What to send on for the next bytes of the engine's event stream."""
        ...

    def finish(self) -> bytes:
        """What is still to be sent once that stream has ended in good order."""
        ...

    def whole(self, body: bytes) -> bytes | None:
        """A whole answer; None where the engine's is not one."""
        ...


@dataclass(frozen=True, slots=True)
class Instead:
    """What the engine is asked for a request of an API that it is not asked in."""

    target: str  # the engine's own route
    body: Body  # in the words of that route
    teller: Callable[[Times], Teller]


class Known(Exception):
    """The answer needs no engine: this is it, a JSON document."""

    def __init__(self, body: bytes) -> None:
        super().__init__("known")
        self.body = body


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
    compile_s: float = 0.0  # that its grammars likely take to compile, of one core
    instead: Instead | None = None  # None: the engine is asked in the client's own words
    known: bytes | None = None  # the answer, where none is to be generated
    tools_left_out: str | None = None  # which are not sent on, by kind and number, in words of ours

    def put(self, body: Body) -> Body:
        """The body that is counted and written: `body`, unless the engine is asked another one."""
        return body if self.instead is None else self.instead.body


@dataclass(frozen=True, slots=True)
class Engine:
    """What a dialect must know of the server it writes for."""

    version: tuple[int, int, int]
    ranks: int = 1
    talks: bool = False  # it has been asked for words here, not for scores alone


class Dialect(Protocol):
    """One API.

    `since` is the first SGLang version that has the route. `named` tells whether its body takes our
    request id: where it does not, the engine knows the request by its connection alone. `steered`
    tells whether the engine lets us choose the data-parallel rank.
    """

    voice: Voice
    since: tuple[int, int, int]
    named: bool
    steered: bool

    def read(self, body: Body) -> Intent:
        """What the body wants. Raises Invalid."""
        ...

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
        """The body to send, made of `intent.put(…)`: the cap in force, our rid, usage asked for."""
        ...
