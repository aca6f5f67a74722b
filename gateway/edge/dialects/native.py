"""Types of what /generate takes as it comes: `sampling_params`, and lists with one entry for each prompt.

No reader of the engine looks at the former: a switch that is none ends its detokenizer, a text where a
number is meant its scheduler, and everybody's answers with it. The latter it hands on as they are where
there is a single prompt, and its scheduler compares a list with a number. All seen at a genuine 0.5.17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.edge.dialects import Invalid, guard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.edge.dialects import Body

SWITCHES: Final = (
    *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"),
)
NUMBERS: Final = ("n", "min_new_tokens", "top_k", "sampling_seed", "stream_interval")
"""Whole ones; the cap is written anyway."""

LISTED: Final = (
    *("return_logprob", "logprob_start_len", "top_logprobs_num", "return_sampling_mask"),
    "extra_key",
)
"""One value for all prompts, or a list with one for each."""


def understood(params: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which switches are switches and numbers numbers, however they were written. Raises
    Invalid for what is neither."""
    out = dict(params)
    for field in SWITCHES:
        if params.get(field) is not None:
            out[field] = guard.flag(params[field], field)
    for field in NUMBERS:
        if (number := guard.whole(params.get(field), field)) is not None:
            out[field] = number
    if params.get("n") is None:  # the engine compares it with 1, absent or not: a bare 500
        out.pop("n", None)
    if not isinstance(params.get("custom_params"), dict | None):
        raise Invalid("custom_params must be an object", "custom_params")
    return out


def check_both(body: Body) -> None:
    """Texts and ids beside each other are for as many prompts, or for one that is no list: how many there are
    the engine takes from the texts, and runs the ids. Else it answers a bare 500, or runs another number than
    was counted. Raises Invalid."""
    text, ids = body.get("text"), body.get("input_ids")
    if text is None or ids is None:
        return
    texts = len(text) if isinstance(text, list) else None
    lists = len(ids) if isinstance(ids, list) and ids and isinstance(ids[0], list) else None
    if texts != lists:
        raise Invalid(
            "text and input_ids are for different numbers of prompts; send one of the two",
            "input_ids",
        )


def check_media(body: Body, prompts: int | None, n: int) -> None:
    """Videos, sounds and modalities of a batch: a list has one for each prompt. One that is shorter the engine
    finds out in the middle of a stream, and hangs up (0.5.17). Raises Invalid."""
    if prompts is None and n == 1:
        return
    each = 1 if prompts is None else prompts
    for field in ("video_data", "audio_data"):
        given = body.get(field)
        if isinstance(given, list) and len(given) != each:
            msg = f"{field} has {len(given)} entries for {each} prompts; send one for each, or null"
            raise Invalid(msg, field)
    field = "modalities"
    given = body.get(field)
    if isinstance(given, list) and 0 < len(given) < each * n and not body.get("image_data"):
        msg = f"{field} has {len(given)} entries for {each * n} answers; leave it out"
        raise Invalid(msg, field)


def check_start(body: Body) -> None:
    """`logprob_start_len`, of one prompt or of each: before the first token there is none, and -1 means none
    of the prompt. Below that the scheduler ends (0.5.17). Raises Invalid."""
    field = "logprob_start_len"
    given = body.get(field)
    for one in given if isinstance(given, list) else [given]:
        number = guard.whole(one, field)
        if number is not None and number < -1:
            msg = f"{field} must be -1 or more"
            raise Invalid(msg, field)


def check_lists(body: Body, prompts: int | None) -> None:
    """Lists are for a list of prompts, each with one entry. `prompts` is None where there is none.
    Raises Invalid."""
    for field in LISTED:
        given = body.get(field)
        if isinstance(given, list) and len(given) != prompts:
            one = "one prompt that is no list" if prompts is None else f"{prompts} prompts"
            msg = f"{field} has {len(given)} entries for {one}; send one value, or one for each"
            raise Invalid(msg, field)
