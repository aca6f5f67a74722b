"""Anthropic's messages, as SGLang serves them since 0.5.12.

The engine makes a chat of them. Of the body it takes the fields of Anthropic's API and no others:
our request id has no place in it, so such a request is ended by hanging up (see `reaper`).

`thinking.budget_tokens` is part of `max_tokens`, in Anthropic's API and in SGLang's, which does not
enforce it: it is forwarded as it came and reserves nothing of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.edge import voices
from gateway.edge.dialects import Body, Engine, Intent, Invalid, grammars, guard, hazards
from gateway.tokens import Kind

if TYPE_CHECKING:
    from gateway.core.model import Grant

CAP = "max_tokens"


class Messages:
    """POST /v1/messages."""

    voice: voices.Voice = voices.ANTHROPIC
    since = (0, 5, 12)
    named = False
    steered = True

    def read(self, body: Body) -> Intent:
        """See `Dialect.read`."""
        check(body)
        compile_s = grammars.check_tools(body) + grammars.check_within(body, "output_config")
        hazards.check_numbers(body)
        hazards.check_ranges(body)
        hazards.check_stops(body, "stop_sequences")
        return Intent(
            kind=Kind.MESSAGES,
            cap=guard.positive(body.get(CAP), CAP),
            usual=None,
            n=1,  # the engine's shape has no n, and drops one
            stream=guard.flag(body.get("stream"), "stream"),
            model=guard.name(body.get("model")),
            compile_s=compile_s,
        )

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:  # noqa: ARG002
        """See `Dialect.write`. The rank goes in a header."""
        out = guard.strip(body)
        out[CAP] = grant.demand.cap
        if "stream" in out:
            out["stream"] = intent.stream
        return guard.dump(out)


def check(body: Body) -> None:
    """What a message and a count of one must have. Raises Invalid."""
    guard.check(body)
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        raise Invalid("messages must be a list with at least one message", "messages")
