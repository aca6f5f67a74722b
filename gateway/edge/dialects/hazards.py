"""Values that end the engine's scheduler, or make its HTTP side answer a bare 500: refused here.

Ids of tokens that are no prompt (`stop_token_ids` and the like) are held against the vocabulary where
prompts are, in `tokens.request`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.edge.dialects import Invalid, guard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.edge.dialects import Body

MOST_TOP: Final = 256
"""Alternatives told for each token. The engine takes the k largest of a row as wide as the vocabulary
and dies where there are not as many (0.5.6-0.5.23); no vocabulary of bytes is smaller than this, and
OpenAI allows 20."""


def check_top(value: object, field: str) -> None:
    """How many alternatives are asked for, once or for each prompt. Raises Invalid."""
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, bool):
            continue  # on chats `logprobs` is a switch
        number = guard.whole(one, field)
        if number is not None and not 0 <= number <= MOST_TOP:
            msg = f"{field} must be from 0 to {MOST_TOP}"
            raise Invalid(msg, field)


def check_format(body: Body) -> None:
    """`response_format` is an object: of a text or a list the engine answers 500. Raises Invalid."""
    given = body.get("response_format")
    if given is not None and not isinstance(given, dict):
        msg = 'response_format must be an object, such as {"type": "json_object"}'
        raise Invalid(msg, "response_format")


def check_sampling(params: Mapping[str, Any]) -> None:
    """What /generate takes as it comes, and its tokenizer then stumbles over. Raises Invalid."""
    stop = params.get("stop")
    texts = stop if isinstance(stop, list) else [stop]
    if stop is not None and not all(isinstance(text, str) for text in texts):
        raise Invalid("stop must be a text or a list of texts", "stop")


def check_number(params: object, prompts: int | None) -> None:
    """A list of `sampling_params` has one for each prompt of a list; `prompts` is None where there is
    no list. Raises Invalid."""
    if not isinstance(params, list) or len(params) == prompts:
        return
    given = "one prompt that is no list" if prompts is None else f"{prompts} prompts"
    msg = f"sampling_params has {len(params)} entries for {given}; send one object, or one for each"
    raise Invalid(msg, "sampling_params")
