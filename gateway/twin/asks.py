"""Request bodies into jobs: what SGLang reads of them, and what it refuses at the door.

Three dialects: chat, completion and generate. A refusal here is immediate (the tokenizer's side of
SGLang); what the scheduler refuses comes later, as an event.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gateway.twin import tokenizer

if TYPE_CHECKING:
    from gateway.twin.versions import Traits


class Dialect(StrEnum):
    """Whose body and whose answer."""

    CHAT = "chat"
    COMPLETION = "completion"
    GENERATE = "generate"


class Invalid(Exception):
    """A body refused with 400. `pydantic` marks the shape of a validation error, `length` a
    request that is too long."""

    def __init__(self, message: str, *, pydantic: bool = False, length: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.pydantic = pydantic
        self.length = length


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


def _integer(body: dict[str, Any], name: str, route: str) -> int | None:
    value = body.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    try:
        return int(value)
    except (TypeError, ValueError):
        detail = (
            f"{{'type': 'int_parsing', 'loc': ('body', '{name}'), 'msg': 'Input should be a valid "
            f"integer, unable to parse string as an integer', 'input': {value!r}}}"
        )
        raise Invalid(pydantic_message(detail, route), pydantic=True) from None


def pydantic_message(detail: str, route: str) -> str:
    """A validation error as FastAPI prints it in SGLang's answers."""
    return (
        f'1 validation error:\n  {detail}\n\n  File "sglang/srt/entrypoints/http_server.py", '
        f"line 1, in handler\n    POST {route} [{detail}]"
    )


def missing(field: str, body: dict[str, Any], route: str) -> Invalid:
    """The refusal of a body without `field`."""
    shown = dict.fromkeys(body, "...")
    detail = f"{{'type': 'missing', 'loc': ('body', '{field}'), 'msg': 'Field required', 'input': {shown}}}"
    return Invalid(pydantic_message(detail, route), pydantic=True)


def parse(
    dialect: Dialect, body: dict[str, Any], traits: Traits, *, model: str, context: int
) -> Ask:
    """Read `body`. Raises Invalid with SGLang's sentence when it would answer 400."""
    prompts, cap, listed = _read(dialect, body, traits)
    if cap is not None and cap < 0:
        message = f"max_new_tokens must be at least 0, got {cap}."
        raise Invalid(message)
    sampling = body.get("sampling_params") if dialect is Dialect.GENERATE else body
    sampling = sampling if isinstance(sampling, dict) else {}
    for prompt in prompts:
        _check_length(tokenizer.count(prompt), cap, traits, context)
    rid = _rid(body)
    options = body.get("stream_options") or {}
    n = max(1, _integer(sampling, "n", "") or 1)
    want = body.get("twin_output_tokens", sampling.get("twin_output_tokens"))
    many = len(prompts) * n > 1
    return Ask(
        dialect=dialect,
        rid=rid,
        model=str(body.get("model") or model),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        listed=listed,
        sequences=tuple(
            Sequence(
                rid=f"{rid}_{uuid.uuid4().hex}" if many else rid,
                prompt=prompt,
                cap=cap,
                prompt_index=index,
                choice=index * n + copy,
                ignore_eos=bool(sampling.get("ignore_eos")),
                want=int(want) if want is not None else None,
            )
            for index, prompt in enumerate(prompts)
            for copy in range(n)
        ),
    )


def _read(
    dialect: Dialect, body: dict[str, Any], traits: Traits
) -> tuple[list[bytes], int | None, bool]:
    """Prompts, cap, and whether the prompt was a list."""
    match dialect:
        case Dialect.CHAT:
            return _chat(body, traits)
        case Dialect.COMPLETION:
            return _completion(body)
        case Dialect.GENERATE:
            return _generate(body)


def _rid(body: dict[str, Any]) -> str:
    rid = body.get("rid")
    if isinstance(rid, list):
        rid = rid[0] if rid else None
    return str(rid) if rid is not None else uuid.uuid4().hex


def _chat(body: dict[str, Any], traits: Traits) -> tuple[list[bytes], int | None, bool]:
    route = "/v1/chat/completions"
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise missing("messages", body, route)
    # Which field binds is Python's `or` in SGLang's source, and its order changed in 0.5.12: a zero
    # in the first field falls through to the second, a zero in the second stays zero.
    new = _integer(body, "max_completion_tokens", route)
    old = _integer(body, "max_tokens", route)
    cap = (new or old) if traits.max_completion_tokens_wins else (old or new)
    input_ids = body.get("input_ids")
    if isinstance(input_ids, list):
        return [tokenizer.from_ids(input_ids)], cap, False
    tools = None if body.get("tool_choice") == "none" else body.get("tools")
    return [tokenizer.render(messages, tools)], cap, False


def _prompts(value: object) -> tuple[list[bytes], bool]:
    """A string, a list of strings, token ids, or a list of token id lists; and: was it a list?"""
    if isinstance(value, str):
        return [value.encode()], False
    if isinstance(value, list) and value and isinstance(value[0], int):
        return [tokenizer.from_ids(value)], False
    if isinstance(value, list) and value:
        return [prompt for item in value for prompt in _prompts(item)[0]], True
    raise Invalid("The prompt must be a string, a list of strings or token ids.")


def _completion(body: dict[str, Any]) -> tuple[list[bytes], int | None, bool]:
    route = "/v1/completions"
    if "prompt" not in body:
        raise missing("prompt", body, route)
    prompts, listed = _prompts(body["prompt"])
    cap = _integer(body, "max_tokens", route) if "max_tokens" in body else 16
    return prompts, cap, listed


def _generate(body: dict[str, Any]) -> tuple[list[bytes], int | None, bool]:
    value = body.get("input_ids") if body.get("input_ids") is not None else body.get("text")
    if value is None:
        raise Invalid("Either text, input_ids or input_embeds should be provided.")
    prompts, listed = _prompts(value)
    sampling = body.get("sampling_params")
    if isinstance(sampling, list):
        sampling = sampling[0] if sampling else {}
    sampling = sampling or {}
    cap = _integer(sampling, "max_new_tokens", "/generate") if "max_new_tokens" in sampling else 128
    return prompts, cap, listed


def _check_length(prompt: int, cap: int | None, traits: Traits, context: int) -> None:
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
