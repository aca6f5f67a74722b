"""Field values as clients really send them, and fields no client may set.

A written rule for every odd value, so that whatever a client sends, the engine is told a number
and the ledger knows the same number:

| sent | chat max_tokens / max_completion_tokens | /v1/completions max_tokens | max_new_tokens |
|---|---|---|---|
| absent, null | unset | unset (the endpoint's 16) | unset (the endpoint's 128) |
| 0 | unset | 0 (scoring with echo) | 0 |
| -1 | unset | unset | unset |
| other negatives | 400 | 400 | 400 |
| "7", 7.0 | 7 | 7 | 7 |
| 7.5, true, "many", [], {} | 400 | 400 | 400 |
| huge | clamped | clamped | clamped |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from gateway.edge.dialects import Invalid

if TYPE_CHECKING:
    from gateway.edge.dialects import Body

STRIPPED: Final = (
    "rid",  # ids are matched by prefix upstream: a client's "a" would abort all that begin with it
    "priority",  # decided here
    "bootstrap_host",  # routes into disaggregation; one value crashes the scheduler
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "disagg_prefill_dp_rank",
    "decode_tp_size",
    "encoder_urls",  # addresses that the engine would ask
    "kv_router_hint",
    "kv_hints",  # an orchestrator's orders to what stores KV memory (0.5.23)
    "need_wait_for_mm_inputs",  # for what no encoder will send
    "num_items_assigned",
    "mm_data_mooncake",
    "multi_item_delimiter_indices",  # made for /v1/score, of prompts that are checked there
    "token_indices_to_pool",  # likewise: one beyond what is read ends the scheduler (0.5.23)
    "decision_layout",
    "http_worker_ipc",  # another process that would get the answer
    "routing_key",
    "received_time",  # the engine's own clock, and metrics made from it
    "external_trace_header",
    "custom_labels",  # labels of its metrics
    "log_metrics",
    "background",  # the engine no longer looks whether the client is there
    "mm_hashes",  # under which an image is kept, for others as well
    "mm_content_hashes",
    "session_id",  # ties requests to KV memory that outlives them (0.5.17)
    "data_parallel_rank",  # the ledger decided the rank
    "routed_dp_rank",
    "return_hidden_states",  # megabytes per token, never in these APIs' answers
    "return_routed_experts",
    "return_indexer_topk",
)
"""Removed in silence: they change nothing a client could want from this API."""

REFUSED: Final = {
    "session_params": "server-side sessions hold KV memory that no ledger sees",
    "custom_logit_processor": "it runs code in the engine",
    "lora_path": "an adapter is named in model, as in `model:adapter`",
    "beam_width": "each beam of a search holds memory that was not counted",
    "lora_id": "an adapter is named in model, as in `model:adapter`",
    "positional_embed_overrides": "prompts as embeddings can not be counted",
    "input_embeds": "prompts as embeddings can not be counted",
}
"""Refused in words: silently dropping them would change the answer."""

TAKEN: Final = frozenset(
    (
        *("conversation", "messages", "tools", "tokenize", "return_dict", "add_generation_prompt"),
        *("continue_final_message", "return_tensors", "return_assistant_tokens_mask"),
        *("padding", "truncation", "max_length", "tokenizer_kwargs"),
    )
)
"""What is no variable of a template: the function that renders it has parameters of these names. The engine
gives the first six itself, and given twice they are a bare 500; the others decide how the tokenizer is called
where the prompt is made in one go (0.5.6), so that it would be another than was counted."""

HUGE = 1 << 40
"""No cap is told apart above this: a million times any context, and still a number that every JSON
writer takes (64 bits)."""

LONGEST_NUMBER = 20
"""Digits of the longest number read from a string: every 64-bit one. int() of more is quadratic."""

TRUE: Final = frozenset({"true", "1", "on", "yes", "y", "t"})
FALSE: Final = frozenset({"false", "0", "off", "no", "n", "f"})


def check(body: Body) -> None:
    """Refuse what is not allowed and cheap nonsense that hangs the engine. Raises Invalid."""
    for field, why in REFUSED.items():
        if body.get(field) is not None:
            msg = f"{field} is not allowed through this gate: {why}"
            raise Invalid(msg, field)
    kwargs = body.get("chat_template_kwargs")
    if isinstance(kwargs, dict) and "chat_template" in kwargs:
        msg = "chat_template_kwargs.chat_template is not allowed through this gate: it replaces the prompt that was counted"
        raise Invalid(msg, "chat_template_kwargs")
    if isinstance(kwargs, dict) and (taken := sorted(TAKEN & kwargs.keys())):
        msg = f"chat_template_kwargs.{taken[0]} is set by SGLang itself"
        raise Invalid(msg, "chat_template_kwargs")
    whole(body.get("min_tokens"), "min_tokens")


def strip(body: Body) -> Body:
    """A copy without the fields that no client may set."""
    return {key: value for key, value in body.items() if key not in STRIPPED}


def dump(body: Body) -> bytes:
    """The body as bytes. Raises Invalid where it is nested deeper (254 levels) than can be written, or
    holds a whole number of more than 64 bits."""
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        large = "64-bit" in str(error)
        what = (
            "a number in the body has more than 64 bits"
            if large
            else "the body is nested too deeply"
        )
        raise Invalid(what) from None


def whole(value: object, field: str) -> int | None:
    """An integer however it was written; None for absent. Raises Invalid."""
    if value is None:
        return None
    if isinstance(value, bool):
        msg = f"{field} must be a number, not {str(value).lower()}"
        raise Invalid(msg, field)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        msg = f"{field} must be a whole number"
        raise Invalid(msg, field)
    if isinstance(value, str):
        digits = value.strip()
        if (
            len(digits) <= LONGEST_NUMBER
            and digits.removeprefix("-").isascii()
            and digits.removeprefix("-").isdigit()
        ):
            return int(digits)
    msg = f"{field} must be a whole number"
    raise Invalid(msg, field)


def cap(value: object, field: str, *, zero_is_unset: bool) -> int | None:
    """An output cap by the table above; None for unset. Raises Invalid."""
    number = whole(value, field)
    if number is None or number == -1 or (number == 0 and zero_is_unset):
        return None
    if number < 0:
        msg = f"invalid {field}: {number}. Leave it out for the default, or send a positive number"
        raise Invalid(msg, field)
    return min(number, HUGE)


def count(value: object, field: str) -> int:
    """How many answers per prompt; absent and null are one. Raises Invalid."""
    number = whole(value, field)
    if number is None:
        return 1
    if number < 1:
        msg = f"{field} must be at least 1"
        raise Invalid(msg, field)
    return number


def positive(value: object, field: str) -> int:
    """A cap that has to be there, as Anthropic has it. Raises Invalid."""
    number = whole(value, field)
    if number is None:
        msg = f"{field}: Field required"
        raise Invalid(msg, field)
    if number <= 0:
        msg = f"{field} must be positive"
        raise Invalid(msg, field)
    return min(number, HUGE)


def prompts(value: object) -> int:
    """How many prompts a field holds: a list of texts or of id lists; a text or its ids are one."""
    many = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
    return len(value) if many and isinstance(value, list) else 1


def flag(value: object, field: str) -> bool:
    """A boolean as the engine's own parser takes it. Raises Invalid."""
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    word = str(value).lower() if isinstance(value, int | str) else ""
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    msg = f"{field} must be true or false"
    raise Invalid(msg, field)


def untagged(model: str) -> str:
    """A model's name without the tag that Ollama's clients put behind every name that has none."""
    return model.removesuffix(":latest")


def name(value: object) -> str | None:
    """The model asked for; None where it says nothing. Raises Invalid."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        msg = "model must be a string"
        raise Invalid(msg, "model")
    return value
