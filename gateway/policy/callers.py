"""What a policy may say about those who call: how each is known, and what is theirs.

Nothing here is a secret: keys are named (an environment variable, a file) or stand as digests.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gateway.policy.section import Section
from gateway.policy.types import (
    Count,
    EnvName,
    FilePath,
    HeaderName,
    KeyDigest,
    ModelName,
    Name,
    Network,
    Overflow,
    Seconds,
    listed,
)


class HeaderMatch(Section):
    """A header whose value tells the client. Anyone can send a header: use it behind a proxy that
    sets it, not on an open port."""

    name: HeaderName
    """Header name, any case. No default: it depends on the proxy in front."""

    value: str = Field(min_length=1, repr=False)
    """The exact value that means this client. No default: it depends on the proxy in front."""


class Quota(Section):
    """Tokens a client may use in each window of time, prompts and answers together."""

    tokens: Count
    """How many. A request is let in while there is something left, counting what is under way by
    what the KV ledger holds for it, and is charged by what it used when it ends: its prompt for
    each of n, cached or not, and what was generated. So a client may pass its quota by less than
    one request, and with several workers or gates by what the others let in within some two
    seconds. When nothing is left it gets 429 quota_exceeded, with the end of the window in
    Retry-After. No default: it is somebody's budget."""

    window_s: Seconds = 3600.0
    """How long a window lasts, seconds, from the first request after the last one closed. Default
    3,600: who has used up an hour is back within it; a day's quota leaves people idle until
    tomorrow for one mistake in a loop. What was used is forgotten when the gate starts again, all
    workers of it; gates that share leases tell each other and keep it in their store."""


Route = Literal[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/classify",
    "/v1/rerank",
    "/v1/score",
    "/generate",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
]
"""Routes that a client may be held to. The model lists are open to all."""


class Client(Section):
    """One client, known by any of its keys, else by a header, else by its address. The entry named
    `anyone` has none of these and stands for everybody else; with clients listed and no `anyone`,
    unknown callers get 401."""

    name: Name
    """How logs, records and metrics call this client. No default: a label nobody chose helps
    nobody."""

    key_env: EnvName | None = None
    """Environment variable with this client's key, taken as a bearer token, x-api-key or api-key. Default
    none. Only a SHA-256 of the key is kept in memory."""

    key_file: FilePath | None = None
    """File with this client's keys, one a line, so that a new key can be handed out before the old
    one is withdrawn. Default none."""

    key_sha256: Annotated[
        tuple[KeyDigest, ...],
        BeforeValidator(listed, json_schema_input_type=str | list[str]),
        Field(strict=False),
    ] = ()
    """SHA-256 of this client's keys in hexadecimal, one or a list: then the gate's machine never
    holds the key itself. printf %s "$KEY" | sha256sum makes one. For keys that are random (openssl
    rand -hex 24): the digest of a word can be guessed. Default none."""

    header: Annotated[
        tuple[HeaderMatch, ...],
        BeforeValidator(listed, json_schema_input_type=HeaderMatch | list[HeaderMatch]),
        Field(strict=False),
    ] = ()
    """Header that tells this client instead of a key, or a list of which any does. Default none: a
    header proves nothing by itself."""

    address: Annotated[
        tuple[Network, ...],
        BeforeValidator(listed, json_schema_input_type=str | list[str]),
        Field(strict=False),
    ] = ()
    """Network this client calls from (10.1.0.0/16, or one address), or a list; the narrowest that
    holds the caller wins. It is the address of whoever connects: behind a proxy that is the proxy's.
    Default none."""

    weight: float = Field(default=1.0, gt=0, le=1000)
    """Share of the server where clients compete: 2 gets twice the tokens of 1. Default 1: equals
    until somebody says otherwise. A client that is alone may use everything."""

    max_inflight: Count | None = None
    """Requests of this client running at once. Default none: the pool is the limit, and an idle
    server helps nobody."""

    max_held_tokens: Count | None = None
    """KV tokens this client's running requests may reserve together, at all workers and at all
    gates that share leases, as far as these have heard of each other. Default none, for the same
    reason."""

    max_waiting: Count | None = None
    """Requests of this client waiting at once; more get 429 client_limit. Default none: the queue
    has bounds of its own."""

    priority: int = Field(default=0, ge=-10, le=10)
    """Who goes first where clients wait: a higher number before a lower one, weights only among
    equals. Whoever has waited 30 s counts as one higher, so nobody waits for ever. Default 0: the
    same for all."""

    default_output_tokens: Count | None = None
    """Output cap given to this client's requests that send none, tokens; it replaces the server's
    default and stays below both maxima. Default none: the server's default holds."""

    max_output_tokens: Count | None = None
    """Largest output cap of this client per sequence, tokens; the smaller of this and the server's
    max_output_tokens holds. Default none: the server's alone."""

    quota: Quota | None = None
    """Tokens this client may use in a window of time. Default none: shares and queues divide a
    server fairly while it is busy, and an idle server helps nobody."""

    overflow: Overflow | None = None
    """What becomes of a conversation of this client that fits no server it may go to. refuse: 400
    context_length_exceeded, with the numbers. trim: the oldest turns go until the rest fits and leaves
    an answer room; system messages, each tool call with its results and the last request stay, and
    x-kvgate-trimmed tells how much went. Default none: what the route says, and refuse where it says
    nothing, because a model that has forgotten the beginning should be somebody's decision."""

    models: Annotated[
        tuple[ModelName, ...],
        BeforeValidator(listed, json_schema_input_type=str | list[str]),
        Field(strict=False),
    ] = ()
    """Models this client may ask for, by the name it sends or the one that an alias stands for;
    others, and requests that name none, get 403 forbidden. Not looked at while admission is off or
    shadow, when bodies pass unread. Default none: all."""

    routes: Annotated[
        tuple[Route, ...],
        BeforeValidator(listed, json_schema_input_type=Route | list[Route]),
        Field(strict=False),
    ] = ()
    """Routes this client may call; others get 403 forbidden. Default none: all that are open."""
