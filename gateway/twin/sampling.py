"""What SGLang checks of a request that has the right shape: ranges, and what it cannot take.

The sentences are those of a genuine 0.5.17. What kills the scheduler was seen there too: nothing
looks at token ids outside the vocabulary, nor at a cap that is no whole number on /generate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gateway.twin import tokenizer
from gateway.twin.refusals import Broken, Fatal, Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Json = dict[str, Any]

# The names /generate knows in `sampling_params`; another one is an unexpected keyword to SGLang.
KNOWN = frozenset(
    (
        *("max_new_tokens", "min_new_tokens", "ignore_eos", "n", "stream_interval"),
        *("stop", "stop_token_ids", "stop_regex", "no_stop_trim", "custom_params"),
        *("temperature", "top_p", "top_k", "min_p", "logit_bias", "sampling_seed"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty"),
        *("json_schema", "regex", "ebnf", "structural_tag"),
        *("skip_special_tokens", "spaces_between_special_tokens"),
        "twin_output_tokens",  # the twin's own
    )
)

LORA = (
    "LoRA adapter {!r} was requested, but LoRA is not enabled. Please launch the server with "
    "--enable-lora flag and preload adapters using --lora-paths or /load_lora_adapter endpoint."
)

_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (
        "temperature",
        lambda value: value >= 0 and math.isfinite(value),
        "temperature must be a non-negative finite number",
    ),
    ("top_p", lambda value: 0 < value <= 1, "top_p must be in (0, 1]"),
    ("min_p", lambda value: 0 <= value <= 1, "min_p must be in [0, 1]"),
    (
        "top_k",
        lambda value: value == -1 or value >= 1,
        "top_k must be -1 (disable) or at least 1",
    ),
    ("frequency_penalty", lambda value: abs(value) <= 2, "frequency_penalty must be in [-2, 2]"),  # noqa: PLR2004
    ("presence_penalty", lambda value: abs(value) <= 2, "presence_penalty must be in [-2, 2]"),  # noqa: PLR2004
    (
        "repetition_penalty",
        lambda value: 0 < value <= 2,  # noqa: PLR2004
        "repetition_penalty must be in (0, 2] (1.0 = no penalty)",
    ),
)


def verify(fields: Json, cap: float | None, least: int) -> None:
    """Check the ranges of sampling `fields`. Raises Invalid with SGLang's sentence."""
    for name, good, rule in _RANGES:
        value = fields.get(name)
        if value is not None and not good(value):
            message = f"{rule}, got {value}."
            raise Invalid(message)
    if cap is not None and cap < 0:
        message = f"max_new_tokens must be at least 0, got {cap}."
        raise Invalid(message)
    if least < 0:
        message = f"min_new_tokens must be in [0, max_new_tokens], got {least}."
        raise Invalid(message)
    if cap is not None and least > cap:
        message = f"min_new_tokens must be in [0, max_new_tokens({cap})], got {least}."
        raise Invalid(message)
    for key in fields.get("logit_bias") or ():
        try:
            int(key)
        except ValueError as error:
            raise Invalid(str(error)) from None
    if (adapter := fields.get("lora_path")) is not None:
        raise Invalid(LORA.format(adapter))


def known(params: Json) -> None:
    """Check the types of /generate's `sampling_params`. Raises Broken where SGLang's handler fails
    of them."""
    wrong = params.keys() - KNOWN
    numbers = (params.get("max_new_tokens"), params.get("n"), params.get("temperature"))
    texts = params.get("stop")
    if (
        wrong
        or any(number is not None and not isinstance(number, int | float) for number in numbers)
        or not isinstance(texts, str | list | None)
    ):
        raise Broken


def whole(cap: float | None) -> int | None:
    """A cap as the scheduler counts to it. Raises Fatal for one it never meets."""
    if isinstance(cap, float) and not cap.is_integer():
        message = f"TypeError: max_new_tokens is {cap}, and tokens are counted in whole numbers"
        raise Fatal(message)
    return None if cap is None else int(cap)


def vocabulary(ids: Iterable[int]) -> None:
    """Raises Fatal for a token id that the embedding does not have."""
    for token in ids:
        if not 0 <= token < tokenizer.VOCABULARY:
            message = f"IndexError: token id {token} is out of range in the embedding"
            raise Fatal(message)
