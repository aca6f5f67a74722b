"""Request bodies into jobs: what SGLang reads of them, and what it refuses at the door.

Four dialects: chat, completion, generate and Anthropic's messages, which become a chat. A refusal
here is immediate (the tokenizer's side of SGLang); what the scheduler refuses comes later, as an
event.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gateway.tokens.anthropic import chat_from_messages
from gateway.twin import sampling, shapes, tokenizer
from gateway.twin.refusals import Broken, Invalid

if TYPE_CHECKING:
    from gateway.twin.versions import Traits


_NOT_ANTHROPICS = frozenset(
    (
        *("n", "rid", "tools", "tool_choice"),
        *("max_completion_tokens", "min_tokens", "input_ids", "ignore_eos", "lora_path"),
        *("logit_bias", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
    )
)
"""Fields of a chat that the Anthropic body has not, or has in a shape of its own."""


class Dialect(StrEnum):
    """Whose body and whose answer."""

    CHAT = "chat"
    COMPLETION = "completion"
    GENERATE = "generate"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence to generate. `prompt_index` and `choice` say which answer it becomes."""

    rid: str
    prompt: bytes
    cap: int | None
    prompt_index: int
    choice: int
    ignore_eos: bool
    want: int | None  # the body's `twin_output_tokens`: tests script lengths with it


@dataclass(frozen=True, slots=True)
class Ask:
    """One parsed request."""

    dialect: Dialect
    rid: str
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    listed: bool  # the prompt was a list: /generate answers with a list
    sequences: tuple[Sequence, ...]

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens as `usage` counts them: each prompt once, whatever `n`."""
        prompts = {item.prompt_index: item.prompt for item in self.sequences}
        return sum(tokenizer.count(prompt) for prompt in prompts.values())


def parse(
    dialect: Dialect,
    body: dict[str, Any],
    traits: Traits,
    *,
    model: str,
    context: int,
    images: bool,
) -> Ask:
    """Read `body`. Raises what `refusals` holds where SGLang would not serve it: `context` is the
    longest sequence in tokens, `images` whether the model sees."""
    shape, route = _SHAPES[dialect]
    body = shapes.fit(shape, dict(body), route)
    if dialect is Dialect.MESSAGES:
        body = _as_chat(body)
    wanted = _READERS[dialect](body, traits, images=images)
    sampling.verify(wanted.fields, wanted.cap, wanted.least)
    for prompt in wanted.prompts:
        _check_length(tokenizer.count(prompt), wanted.cap, traits, context)
    cap = sampling.whole(wanted.cap)
    rid = _rid(body, batch=wanted.listed, generate=dialect is Dialect.GENERATE)
    options = body.get("stream_options") or {}
    n = _copies(wanted, dialect, stream=bool(body.get("stream")))
    want = body.get("twin_output_tokens", wanted.fields.get("twin_output_tokens"))
    many = len(wanted.prompts) * n > 1
    return Ask(
        dialect=dialect,
        rid=rid,
        model=str(body.get("model") or model),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        listed=wanted.listed,
        sequences=tuple(
            Sequence(
                rid=f"{rid}_{uuid.uuid4().hex}" if many else rid,
                prompt=prompt,
                cap=cap,
                prompt_index=index,
                choice=index * n + copy,
                ignore_eos=bool(wanted.fields.get("ignore_eos")),
                want=int(want) if want is not None else None,
            )
            for index, prompt in enumerate(wanted.prompts)
            for copy in range(n)
        ),
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a dialect's reader found: `fields` hold the sampling parameters."""

    prompts: list[bytes]
    cap: float | None
    fields: dict[str, Any]
    least: int = 0
    listed: bool = False  # the prompt was a list


def _copies(wanted: Wanted, dialect: Dialect, *, stream: bool) -> int:
    n = int(wanted.fields.get("n") or 0) if wanted.fields.get("n") is not None else 1
    if n == 0 and not stream and dialect in {Dialect.CHAT, Dialect.COMPLETION}:
        raise Invalid("range() arg 3 must not be zero", kind="BadRequest")
    return max(1, n)


def _rid(body: dict[str, Any], *, batch: bool, generate: bool) -> str:
    rid = body.get("rid")
    if isinstance(rid, list) and not batch:
        raise Broken(None if generate else "Internal server error: unhashable type: 'list'")
    if isinstance(rid, list):
        rid = rid[0] if rid else None
    return str(rid) if rid is not None else uuid.uuid4().hex


def _chat(body: dict[str, Any], traits: Traits, *, images: bool) -> Wanted:
    messages = body["messages"]
    if not messages:
        raise Invalid("Messages cannot be empty.")
    for part in (part for message in messages for part in _parts(message.get("content"))):
        if part.get("type", "text") != "text" and not images:
            message = (
                f"Model only supports text input; received unsupported content type "
                f"{part['type']!r}."
            )
            raise Invalid(message)
    # Which field binds is Python's `or` in SGLang's source, and its order changed in 0.5.12: a zero
    # in the first field falls through to the second, a zero in the second stays zero.
    new, old = body.get("max_completion_tokens"), body.get("max_tokens")
    cap = (new or old) if traits.max_completion_tokens_wins else (old or new)
    tools = None if body.get("tool_choice") == "none" else body.get("tools")
    ids = body.get("input_ids")
    if ids is not None and not ids:
        raise Invalid("input_ids cannot be empty.")
    sampling.vocabulary(ids or ())
    prompt = tokenizer.from_ids(ids) if ids else tokenizer.render(messages, tools)
    return Wanted([prompt], cap, body, least=body.get("min_tokens") or 0)


def _parts(content: object) -> list[dict[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """An Anthropic body as the chat SGLang makes of it; a `rid` has no place in it."""
    if not body["messages"]:
        raise Invalid("Messages cannot be empty.", kind="invalid_request_error")
    kept = {key: value for key, value in body.items() if key not in _NOT_ANTHROPICS}
    return kept | chat_from_messages(body) | {"stream": bool(body.get("stream"))}


def _prompts(value: Any) -> tuple[list[bytes], bool]:  # noqa: ANN401 - one of four shapes
    """A string, a list of strings, token ids, or a list of token id lists; and: was it a list?"""
    if isinstance(value, str):
        return [value.encode()], False
    if value and isinstance(value[0], int):
        sampling.vocabulary(value)
        return [tokenizer.from_ids(value)], False
    return [prompt for item in value for prompt in _prompts(item)[0]], True


def _completion(body: dict[str, Any], traits: Traits, *, images: bool) -> Wanted:  # noqa: ARG001
    prompt = body["prompt"]
    if not prompt or any(isinstance(item, str | list) and not item for item in prompt):
        raise Invalid("Prompt cannot be empty")
    prompts, listed = _prompts(prompt)
    return Wanted(prompts, body.get("max_tokens", 16), body, body.get("min_tokens") or 0, listed)


def _generate(body: dict[str, Any], traits: Traits, *, images: bool) -> Wanted:  # noqa: ARG001
    text, ids = body.get("text"), body.get("input_ids")
    if text is None and ids is None:
        raise Invalid("Either text, input_ids or input_embeds should be provided.")
    if ids is not None and not ids:
        raise Invalid("input_ids cannot be empty.")
    if text == "" or (isinstance(text, list) and "" in text):
        raise Invalid("texts cannot be empty and tokenizer must be initialized")
    prompts, listed = _prompts(text if ids is None else ids)
    params = body.get("sampling_params")
    if isinstance(params, list):
        if not listed:
            raise Broken
        params = params[0] if params else {}
    fields = {**(params or {})}
    sampling.known(fields)
    if (adapter := body.get("lora_path")) is not None:
        fields["lora_path"] = adapter
    cap = fields.get("max_new_tokens", 128)
    return Wanted(prompts, cap, fields, fields.get("min_new_tokens") or 0, listed)


def _check_length(prompt: int, cap: float | None, traits: Traits, context: int) -> None:
    if prompt >= context:
        message = (
            f"The input ({prompt} tokens) is longer than the model's context length "
            f"({context} tokens)."
        )
        raise Invalid(message, length=True)
    total = prompt + (cap or 0)
    over = total > context if traits.total_may_equal_context else total >= context
    if cap is not None and over:
        message = (
            f"Requested token count exceeds the model's maximum context length of {context} "
            f"tokens. You requested a total of {total} tokens: {prompt} tokens from the input "
            f"messages and {cap} tokens for the completion. Please reduce the number of tokens in "
            "the input messages or the completion to fit within the limit."
        )
        raise Invalid(message, length=True)


_SHAPES: dict[Dialect, tuple[type[shapes.Shape], str]] = {
    Dialect.CHAT: (shapes.Chat, "/v1/chat/completions"),
    Dialect.COMPLETION: (shapes.Completion, "/v1/completions"),
    Dialect.GENERATE: (shapes.Generate, "/generate"),
    Dialect.MESSAGES: (shapes.Messages, "/v1/messages"),
}

_READERS = {
    Dialect.CHAT: _chat,
    Dialect.COMPLETION: _completion,
    Dialect.GENERATE: _generate,
    Dialect.MESSAGES: _chat,
}
