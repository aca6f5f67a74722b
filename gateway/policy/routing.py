"""Which servers a request may go to: rules read from the top, the first that matches decides."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from gateway.policy.callers import HeaderMatch
from gateway.policy.section import Section
from gateway.policy.types import Count, ModelName, Name, Overflow, listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class When(Section):
    """What a request must be for a rule to hold: all that is named. Nothing named: every request."""

    client: Annotated[
        tuple[Name, ...],
        BeforeValidator(listed, json_schema_input_type=str | list[str]),
        Field(strict=False),
    ] = ()
    """One of these clients asks. Default: any."""

    model: Annotated[
        tuple[ModelName, ...],
        BeforeValidator(listed, json_schema_input_type=str | list[str]),
        Field(strict=False),
    ] = ()
    """One of these models is asked for, by its real name (see `models`). Default: any."""

    header: Annotated[
        tuple[HeaderMatch, ...],
        BeforeValidator(listed, json_schema_input_type=HeaderMatch | list[HeaderMatch]),
        Field(strict=False),
    ] = ()
    """One of these headers was sent. Default: none is needed."""

    prompt_tokens_over: Count | None = None
    """The prompt, all prompts of the request together, has more tokens than this. Default: any
    length."""

    images: bool | None = None
    """true: pictures come with it; false: none do. Default: either."""

    stream: bool | None = None
    """true: the answer is streamed; false: it comes whole. Default: either."""


class RouteRule(Section):
    """Where requests of one kind go."""

    when: When = When()
    """What they are. Default: all requests that no earlier rule took."""

    to: Annotated[
        tuple[Name, ...],
        BeforeValidator(listed, json_schema_input_type=str | list[str]),
        Field(strict=False, min_length=1),
    ]
    """Servers they may go to, by name. The one with most room of those takes it, and one for whose
    context or pool it is too long is none of them; where none is ready the request is refused or
    waits, it does not go elsewhere. No default: it is the rule."""

    overflow: Overflow | None = None
    """What becomes of a conversation that fits none of these servers: refuse or trim, as with a
    client's `overflow`, which counts first. Default none: refuse, for the reason told there."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What rules look at. `headers` must find lower-case names."""

    client: str
    model: str | None
    headers: Mapping[str, str]
    prompt_tokens: int
    images: bool
    stream: bool


def servers(rules: Sequence[RouteRule], kind: Kind) -> tuple[str, ...] | None:
    """The names of the servers a request of this kind may go to; None: any."""
    found = rule(rules, kind)
    return None if found is None else found.to


def rule(rules: Sequence[RouteRule], kind: Kind) -> RouteRule | None:
    """The rule that decides about a request of this kind; None: no rule does."""
    return next((one for one in rules if _matches(one.when, kind)), None)


def _matches(when: When, kind: Kind) -> bool:
    over = when.prompt_tokens_over
    return (
        (not when.client or kind.client in when.client)
        and (not when.model or kind.model in when.model)
        and (not when.header or any(_sent(header, kind.headers) for header in when.header))
        and (over is None or kind.prompt_tokens > over)
        and when.images in {None, kind.images}
        and when.stream in {None, kind.stream}
    )


def _sent(header: HeaderMatch, headers: Mapping[str, str]) -> bool:
    sent = headers.get(header.name)
    if sent is None:
        return False
    wanted = header.value.encode("utf-8", "surrogatepass")
    return hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), wanted)
