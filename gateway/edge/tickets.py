"""What a request looks like to the core: sizes, pools, kind of answer, and how long it is of use."""

from __future__ import annotations

import hashlib
import math
import secrets
from typing import TYPE_CHECKING, Any

from gateway.core.model import Ask, Ticket
from gateway.edge.dialects import grammars
from gateway.tokens import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.core.model import ClientRule, Lead, PoolId, RequestId
    from gateway.edge.dialects import Body, Intent
    from gateway.tokens import Counted

TIMEOUTS = ("x-stainless-read-timeout", "x-stainless-timeout")
"""Seconds after which a client gives up, as the OpenAI and Anthropic SDKs say it with each request
(Claude Code 2.1: 600)."""

LEAST_TIMEOUT_S, MOST_TIMEOUT_S = 1.0, 86_400.0
"""What lies outside is not a timeout anybody set for a generation."""

SESSIONS = (
    "x-session-id",  # opencode 1.18
    "x-claude-code-session-id",  # Claude Code 2.1
    "x-kvgate-session",  # anybody else's
)
"""Headers by which agents name a session."""

_KEY = secrets.token_bytes(16)
"""Made anew at each start: what a session is called cannot be found out by trying names, and is no
name beyond one run of the gate."""

MARK_BYTES = 6
"""Of the mark of a session: among a million of them two are alike once in 560 runs."""

SCORES = frozenset({Kind.SCORE, Kind.RERANK})
"""What a server that generates answers out of log-probabilities of tokens it is told."""

OFF = frozenset({"none", "off", "disabled", "false", "minimal"})


def ticket(
    ident: RequestId,
    rule: ClientRule,
    intent: Intent,
    counted: Counted,
    *,
    body: Body,
    size: int,
    pools: Iterable[PoolId],
    headers: Mapping[str, str],
    session: str | None,
    arrived: float,
    first_token_s: float | None,
    stretch: float = 1.0,
) -> Ticket:
    """The ticket of a counted request. `size` is the body's bytes, `first_token_s` the policy's."""
    return Ticket(
        id=ident,
        client=rule,
        ask=Ask(counted.prompts, intent.n, intent.cap, intent.usual, images=counted.media > 0),
        pools=tuple(pools),
        body_bytes=size,
        streamed=intent.stream,
        deadline=deadline(headers, arrived, first_token_s),
        kind=kind_of(body),
        lead=_lead(counted.lead, intent.model),
        session=session,
        stretch=stretch,
        grammar=grammars.of(body, intent.compile_s),
        adapter=_adapter(intent.model),
        scores=intent.kind in SCORES,
    )


def _lead(lead: Lead, model: str | None) -> Lead:
    """How a prompt begins, of what its adapter has read."""
    adapter = _adapter(model)
    if not adapter or not lead:
        return lead
    digest = hashlib.blake2b(
        adapter.encode(errors="surrogatepass"), key=_KEY, digest_size=8
    ).digest()
    return lead.apart(int.from_bytes(digest, signed=True))


def _adapter(model: str | None) -> str:
    return (model or "").partition(":")[2]


def session(headers: Mapping[str, str]) -> str | None:
    """A mark of the conversation that an agent says a request belongs to; None: it does not say.

    Twelve hexadecimal digits, of which nobody can tell what the header said.
    """
    for name in SESSIONS:
        if said := headers.get(name):
            text = f"{name}:{said}".encode(errors="surrogateescape")
            return hashlib.blake2b(text, key=_KEY, digest_size=MARK_BYTES).hexdigest()
    return None


def deadline(
    headers: Mapping[str, str], arrived: float, first_token_s: float | None
) -> float | None:
    """When a first token is of no use any more: the client's own timeout, or the policy's if sooner."""
    limits = [] if first_token_s is None else [first_token_s]
    for name in TIMEOUTS:
        try:
            seconds = float(headers.get(name, ""))
        except ValueError:
            continue
        if math.isfinite(seconds) and LEAST_TIMEOUT_S <= seconds <= MOST_TIMEOUT_S:
            limits.append(seconds)
    return arrived + min(limits) if limits else None


def kind_of(body: Body) -> str:
    """Whose lengths stand in while a client is new, see `core.lengths`.

    A request that asks for thought is answered at length; one that offers tools mostly calls one.
    """
    if _thinks(body):
        return "reasoning"
    return "tools" if body.get("tools") else "chat"


def _thinks(body: Body) -> bool:
    effort = body.get("reasoning_effort")
    if isinstance(reasoning := body.get("reasoning"), dict):  # of OpenAI's responses
        effort = reasoning.get("effort", effort)
    if isinstance(effort, str):
        return effort.lower() not in OFF
    thinking = body.get("thinking")  # Anthropic's
    if isinstance(thinking, dict):
        return str(thinking.get("type")).lower() not in OFF
    kwargs: Any = body.get("chat_template_kwargs")
    if isinstance(kwargs, dict):
        return kwargs.get("enable_thinking") is True or kwargs.get("thinking") is True
    return False
