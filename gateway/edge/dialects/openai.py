"""OpenAI chat and text completions, as SGLang serves them.

Two cap fields exist on chat. Up to 0.5.11 `max_tokens or max_completion_tokens` binds, from 0.5.12
`max_completion_tokens or max_tokens`: the one that binds is written, the other removed, and where
the client sent only one, that one is written and nothing is added beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.edge import voices
from gateway.edge.dialects import FIRST, Body, Engine, Intent, Invalid, grammars, guard, hazards
from gateway.tokens import Kind

if TYPE_CHECKING:
    from gateway.core.model import Grant

OLD, NEW = "max_tokens", "max_completion_tokens"
NEW_BINDS_FROM = (0, 5, 12)
RANKS_FROM = (0, 5, 12)
LEAST = "min_tokens"

ECHOES_ALONE_FROM = (0, 5, 23)
"""Before, `echo` with `logprobs` 0 is a bare 500: it looks for those of a prompt that it has not computed."""

TEXT_USUAL = 16
"""What /v1/completions takes an absent max_tokens for (0.5.6-0.5.23, and OpenAI's own API)."""


class Chat:
    """POST /v1/chat/completions."""

    voice: voices.Voice = voices.OPENAI
    since = FIRST
    named = True
    steered = True

    def read(self, body: Body) -> Intent:
        """See `Dialect.read`."""
        guard.check(body)
        if not isinstance(body.get("messages"), list) or not body["messages"]:
            raise Invalid("messages must be a list with at least one message", "messages")
        caps = [
            value
            for field in (NEW, OLD)
            if (value := guard.cap(body.get(field), field, zero_is_unset=True)) is not None
        ]
        _check_continued(body)
        hazards.check_top(body.get("top_logprobs"), "top_logprobs")
        compile_s = grammars.check(body, "regex", "ebnf")
        compile_s += grammars.check_format(body) + grammars.check_tools(body)
        grammars.check_least(body, LEAST)
        hazards.check_stop_ids(body, LEAST)
        hazards.check_bias(body)
        hazards.check_keys(body)
        hazards.check_stops(body)
        hazards.check_stop_patterns(body)
        hazards.check_numbers(body)
        stream = guard.flag(body.get("stream"), "stream")
        return Intent(
            kind=Kind.CHAT,
            # Where both are sent, what the client really wanted is the smaller one.
            cap=min(caps, default=None),
            usual=None,
            n=guard.count(body.get("n"), "n"),
            stream=stream,
            model=guard.name(body.get("model")),
            strip_usage=not _wants_usage(body) and stream,
            compile_s=compile_s,
        )

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
        """See `Dialect.write`."""
        out = guard.strip(body)
        if intent.stream and guard.flag(body.get("logprobs"), "logprobs"):
            hazards.check_told(body.get("top_logprobs"), grant.demand.cap, engine, "logprobs")
        both = OLD in out and NEW in out
        if both:
            field = NEW if engine.version >= NEW_BINDS_FROM else OLD
        else:
            field = NEW if NEW in out else OLD
        out.pop(OLD, None)
        out.pop(NEW, None)
        out[field] = grant.demand.cap
        return _finish(out, intent, grant, rid, engine)


class Text:
    """POST /v1/completions."""

    voice: voices.Voice = voices.OPENAI
    since = FIRST
    named = True
    steered = True

    def read(self, body: Body) -> Intent:
        """See `Dialect.read`."""
        guard.check(body)
        if body.get("prompt") is None:
            raise Invalid("prompt is missing", "prompt")
        hazards.check_top(body.get("logprobs"), "logprobs")
        compile_s = grammars.check(body, "regex", "ebnf", "json_schema")
        compile_s += grammars.check_format(body)
        grammars.check_least(body, LEAST)
        hazards.check_stop_ids(body, LEAST)
        hazards.check_bias(body)
        hazards.check_keys(body)
        hazards.check_stops(body)
        hazards.check_stop_patterns(body)
        hazards.check_numbers(body)
        stream = guard.flag(body.get("stream"), "stream")
        return Intent(
            kind=Kind.COMPLETION,
            cap=guard.cap(body.get(OLD), OLD, zero_is_unset=False),
            usual=TEXT_USUAL,
            n=guard.count(body.get("n"), "n"),
            stream=stream,
            model=guard.name(body.get("model")),
            strip_usage=not _wants_usage(body) and stream,
            prompts=guard.prompts(body["prompt"]),
            heavy="echo with logprobs" if _echoes(body) and _tops(body) else None,
            compile_s=compile_s,
        )

    def write(self, body: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
        """See `Dialect.write`."""
        out = guard.strip(body)
        out[OLD] = grant.demand.cap
        unheard = body.get("logprobs") is not None and not _tops(body)
        if unheard and _echoes(body) and engine.version < ECHOES_ALONE_FROM:
            raise Invalid("logprobs must be at least 1 with echo, or left out", "logprobs")
        if intent.stream and body.get("logprobs") is not None:
            hazards.check_told(body["logprobs"], grant.demand.cap, engine, "logprobs")
        return _finish(out, intent, grant, rid, engine)


def _check_continued(body: Body) -> None:
    """The message to be continued is taken out before the others are put into the template: where there are no
    others the engine trips (a bare 500, 0.5.12-0.5.17). Raises Invalid."""
    field = "continue_final_message"
    first = body["messages"][0]
    alone = (
        len(body["messages"]) == 1 and isinstance(first, dict) and first.get("role") == "assistant"
    )
    if alone and guard.flag(body.get(field), field):
        msg = f"{field} needs a message before the one of the assistant that is continued"
        raise Invalid(msg, field)


def _wants_usage(body: Body) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise Invalid("stream_options must be an object", "stream_options")
    return guard.flag(options.get("include_usage"), "stream_options.include_usage")


def _finish(out: Body, intent: Intent, grant: Grant, rid: str, engine: Engine) -> bytes:
    out["rid"] = rid
    # Told as they were understood: "2" and 2.0 are numbers here, so they are for the engine. Of null, absent here,
    # the engine makes a 400.
    for field, value in (("n", intent.n), ("stream", intent.stream)):
        if field in out:
            out[field] = value
    if intent.strip_usage:
        options: dict[str, Any] = out.get("stream_options") or {}
        out["stream_options"] = {**options, "include_usage": True}
    if (least := guard.whole(out.get(LEAST), LEAST)) is not None:
        out[LEAST] = grammars.least(out, least, grant.demand.cap)
    if engine.ranks > 1:
        out["routed_dp_rank" if engine.version >= RANKS_FROM else "data_parallel_rank"] = (
            grant.pool.rank
        )
    return guard.dump(out)


def _echoes(body: Body) -> bool:
    return guard.flag(body.get("echo"), "echo")


def _tops(body: Body) -> int:
    """Log-probabilities at each token; 0 where none are told, or only what was chosen."""
    asked = body.get("logprobs")
    return 1 if asked is True else guard.whole(asked or 0, "logprobs") or 0
