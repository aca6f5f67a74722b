"""Values that end the engine's scheduler, or make its HTTP side answer a bare 500: refused here.

Ids of tokens that are no prompt (`stop_token_ids` and the like) are held against the vocabulary where
prompts are, in `tokens.request`.
"""

from __future__ import annotations

import difflib
import math
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

from gateway.edge.dialects import Invalid, guard
from gateway.edge.dialects.patterns import may_not_end
from gateway.edge.dialects.ways import BREADTH, MOST, breadth, degree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.edge.dialects import Body, Engine


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


NAMES_KILL: Final = ((0, 5, 10), (0, 5, 23))
"""From, and before which version the scheduler ends where a request that names tokens to be told the
log-probabilities of is in a batch with one that does not: it takes the list of the other for a tensor
(sgl-project/sglang#34719; a genuine 0.5.12 and 0.5.17 end, in the code since 0.5.10, at 0.5.23 no more)."""


def names_kill(engine: Engine) -> bool:
    """Whether a request that names tokens may be the end of that server."""
    first, mended = NAMES_KILL
    return first <= engine.version < mended


HEAVY_TOKENS: Final = 2_048
"""Longest prompt for which log-probabilities over the prompt are allowed: the engine makes rows ×
vocabulary floats, 1.7-2.8 GiB for 2,048 rows, outside every pool (0.5.6 and 0.5.12 unchunked)."""

TOLD_ONCE: Final = (0, 5, 12)
"""Before it the engine's HTTP process, which serves everybody, spells out the alternatives of the whole answer
so far for each piece of a stream (sgl-project/sglang#17005; at 0.5.6 in its code, at 0.5.12 no more)."""

MOST_TOLD: Final = 2_000_000
"""Alternatives, and the token itself, times the square of the tokens, in such a stream. One takes 10 us (Qwen's
vocabulary), so this is 10 s of that process: 577 tokens with 5 alternatives, 1,414 with none."""


def check_told(tops: object, cap: int, engine: Engine, field: str) -> None:
    """Log-probabilities of a stream of up to `cap` tokens, `tops` alternatives each. Raises Invalid."""
    each = _each(tops, field)
    if engine.version >= TOLD_ONCE or each * cap * cap <= MOST_TOLD:
        return
    version, most = ".".join(map(str, engine.version)), math.isqrt(MOST_TOLD // each)
    msg = (
        f"{field} in a stream of up to {cap:,} tokens would hold up everybody on SGLang {version}, which spells "
        f"all of them out again for each token; limit the answer to {most:,} tokens, or do not stream"
    )
    raise Invalid(msg, field)


MOST_SENT: Final = 64_000_000
"""The same in a stream of /generate, where each piece holds the log-probabilities of the whole answer so far, in
every version: some 15 bytes each, so this is 1 GB, for the engine's HTTP process to write and for the gate to
pass on. 8,000 tokens with none, 1,746 with 20."""


def check_sent(tops: object, cap: int, prompt: int, field: str) -> None:
    """`prompt`: how many tokens of it are told of as well, in each piece. Raises Invalid."""
    each = _each(tops, field)
    if each * cap * (cap + 2 * prompt) <= MOST_SENT:
        return
    most = max(1, math.isqrt(MOST_SENT // each + prompt * prompt) - prompt)
    msg = (
        f"{field} in a stream of up to {cap:,} tokens: each piece holds those of all before it, which comes to "
        f"gigabytes; limit the answer to {most:,} tokens, or do not stream"
    )
    raise Invalid(msg, field)


def _each(tops: object, field: str) -> int:
    """Numbers told for one token: its own and its alternatives', of the prompt that asks for most."""
    many = tops if isinstance(tops, list) else [tops]
    return 1 + max(
        (guard.whole(one, field) or 0 for one in many if not isinstance(one, bool)), default=0
    )


REALS: Final = (
    *("temperature", "top_p", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)
WHOLES: Final = {"top_k": 1 << 31, "seed": 1 << 63, "sampling_seed": 1 << 63}
"""Below what: the engine puts them into tensors of 32 and 64 bits, and dies where they are too large."""


def check_numbers(params: Mapping[str, Any], *, native: bool = False) -> None:
    """Sampling parameters that are not finite or too large, whatever they are written as. Raises Invalid.

    `native`: the engine takes them as they come, so a number in quotes is none.
    """
    for field in (*REALS, *WHOLES):
        value = params.get(field)
        if value is None:
            continue
        if native and (isinstance(value, bool) or not isinstance(value, int | float)):
            msg = f"{field} must be a number, without quotes"
            raise Invalid(msg, field)
        if field in WHOLES:
            number = guard.whole(value, field)
            most = WHOLES[field]
            if number is not None and not -most <= number < most:
                msg = f"{field} must be below {most}"
                raise Invalid(msg, field)
            continue
        real = _real(value)
        if real is None:  # the engine's own reader refuses it
            continue
        if not abs(real) <= LARGEST:
            msg = f"{field} must be a finite number"
            raise Invalid(msg, field)
        if field == "repetition_penalty" and 0 <= real < LEAST_DIVISOR:
            msg = f"{field} must be above 0"  # the engine divides by it
            raise Invalid(msg, field)


RANGES: Final = {
    "temperature": (0.0, math.inf),
    "top_p": (math.ulp(0.0), 1.0),
    "min_p": (0.0, 1.0),
    "top_k": (1.0, math.inf),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (math.ulp(0.0), 2.0),
}
"""What each may be (0.5.6-0.5.23), the ends as well."""


def check_ranges(params: Mapping[str, Any]) -> None:
    """Of a stream of responses the engine looks at these once it has begun, and trips: a bare 500 (0.5.17).
    One of messages it breaks off (0.5.12). Elsewhere it says 400 itself. Raises Invalid."""
    for field, (least, most) in RANGES.items():
        real = _real(params.get(field))
        if real is None or least <= real <= most or (field == "top_k" and real == -1):
            continue
        low = "above 0" if 0.0 < least < 1.0 else f"at least {least:g}"
        high = "" if math.isinf(most) else f", and at most {most:g}"
        msg = f"{field} must be {low}{high}"
        raise Invalid(msg, field)


LARGEST: Final = 3.4028234663852886e38
"""The largest number of 32 bits: the engine's tensors have such, and what is above is infinite there."""

LEAST_DIVISOR: Final = 1e-6
"""What is far smaller is 0 in 32 bits; and scores of some dozens, divided by this and by the least
temperature that the engine divides by (1e-6 too), are still numbers."""


def _real(value: object) -> float | None:
    """A number as pydantic reads it, in quotes too; None where it is none."""
    if not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except ValueError:
        return None


MOST_BIASED: Final = 1_024
"""Tokens with a bias. The scheduler writes them into a row one by one, again for each batch that it makes."""


LARGEST_BIAS: Final = 1e20
"""Added to a score, which is then divided by the temperature, and by a penalty in some versions: each 1e-6
at least. 3e38 at a temperature of 0.5 is infinite, all of the row is no number then, and the scheduler ends
(0.5.17); -3.4e38 as well, for the only tokens that a grammar lets through. OpenAI allows 100."""


def check_bias(params: Mapping[str, Any], *, native: bool = False) -> None:
    """`logit_bias`: it is added to the scores of the whole vocabulary, and where one of them is not finite,
    in 32 bits, the scheduler ends (0.5.17, at a number of 1e39 or a text). Raises Invalid.
    """
    field = "logit_bias"
    given = params.get(field)
    if given is None:
        return
    if not isinstance(given, dict) or len(given) > MOST_BIASED:
        msg = f"{field} must be an object of token ids with numbers, {MOST_BIASED:,} at most"
        raise Invalid(msg, field)
    for value in given.values():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        real = _real(value) if number or not native else None
        if real is None or not abs(real) <= LARGEST_BIAS:
            msg = f"{field} must have finite numbers, of at most {LARGEST_BIAS:g} above or below 0"
            raise Invalid(msg, field)


MOST_STOPS: Final = 128
"""Ids in `stop_token_ids` beside a least number of tokens, which rules all of them out until then. No
vocabulary of bytes has as few; with all 151,936 of one the scheduler finds nothing to write, and ends (0.5.17)."""


def check_stop_ids(params: Mapping[str, Any], least: str) -> None:
    """`least`: the field with that number. Raises Invalid."""
    field = "stop_token_ids"
    given = params.get(field)
    if (
        isinstance(given, list)
        and len(given) > MOST_STOPS
        and guard.whole(params.get(least), least)
    ):
        msg = f"{field} has more than {MOST_STOPS} ids, all of which {least} rules out for a while; leave out one of the two"
        raise Invalid(msg, field)


MOST_STOP_TEXTS: Final = 32
"""Texts in `stop`, as 0.5.23 has it (sgl-project/sglang#37029). Before it there is no bound, and the scheduler
looks for each in all that was written, after each token of everybody: with 16,000 tokens of Qwen's, 32 take
3 ms a token, 1,000 take 77 and 10,000 take 676."""

LONGEST_STOPS: Final = 2_000
"""Characters of all of them. The scheduler decodes as many tokens again at each step as the longest has, and
holds the end of the text against each of its beginnings (0.5.6-0.5.23): 0.5 ms a token for one of 2,000, and
117 ms for one of 60,000. People stop at words and lines."""


def check_stops(params: Mapping[str, Any], field: str = "stop") -> None:
    """Raises Invalid. What is no text is left to the engine's reader, or to `check_sampling`."""
    given = params.get(field)
    texts = given if isinstance(given, list) else [given]
    if len(texts) > MOST_STOP_TEXTS:
        msg = f"{field} has {len(texts):,} texts; send {MOST_STOP_TEXTS} at most"
        raise Invalid(msg, field)
    if sum(len(text) for text in texts if isinstance(text, str)) > LONGEST_STOPS:
        msg = f"{field} is longer than {LONGEST_STOPS:,} characters in all; send what the texts begin with"
        raise Invalid(msg, field)


LONGEST_PATTERN: Final = 1_000
"""Characters, of all patterns of a request together. People write a few dozen; a thousand are read
in 50 ms at most, wide ranges apart (`ways.BREADTH`)."""


def check_stop_patterns(*params: Mapping[str, Any]) -> None:
    """`stop_regex`, which the scheduler searches for with Python's backtracking matcher after each
    token: one search that does not end stops everybody's answers. Raises Invalid.

    `params`: all that one request brings; of a batch they are mostly alike.
    """
    field = "stop_regex"
    given = (one.get(field) for one in params)
    lists = [one if isinstance(one, list) else [one] for one in given if one is not None]
    left, broad = LONGEST_PATTERN, BREADTH
    known: set[tuple[str, ...]] = set()
    for patterns in lists:
        if not all(isinstance(one, str) for one in patterns):
            raise Invalid(_NO_PATTERN, field)
        if (one := tuple(patterns)) in known:
            continue
        known.add(one)
        for pattern in patterns:
            if len(pattern) > left:
                raise Invalid(_NO_PATTERN, field)
            left -= len(pattern) + 1
            broad -= _check_pattern(pattern, field, broad)


_NO_PATTERN: Final = (
    f"stop_regex must be a pattern, or a list of them, of at most {LONGEST_PATTERN} characters in all of a "
    "request"
)


def _check_pattern(pattern: str, field: str, broad: int) -> int:
    """How broad it is, `broad` at most. Raises Invalid."""
    if may_not_end(pattern):
        msg = (
            f"{field} repeats a group that has a repeat, a `?` or alike alternatives in it, which may "
            "search for ever; write it without that"
        )
        raise Invalid(msg, field)
    try:
        with warnings.catch_warnings(action="ignore"):  # of what another Python may read otherwise
            grows = degree(pattern)
            takes = breadth(pattern) if grows < MOST else 0
            if takes <= broad:
                re.compile(pattern)
    except (re.error, ValueError, RecursionError, OverflowError):
        msg = f"{field} is no regular expression of Python's"
        raise Invalid(msg, field) from None
    if grows >= MOST:
        msg = (
            f"{field} has repeats that can take the same text, one after the other (such as `.*.*=` or "
            r"`\s*\n\s*=`), or begins with one that takes everything (`[\s\S]*=`), which search longer "
            "and longer; write it with fewer, or with something between them that neither can take"
        )
        raise Invalid(msg, field)
    if takes > broad:
        msg = (
            f"{field} names more than {BREADTH:,} characters in its ranges (such as `[Ā-\uffff]`), which "
            "are looked at one by one; write it with fewer ranges, or narrower ones"
        )
        raise Invalid(msg, field)
    return takes


def check_keys(body: Body) -> None:
    """What keeps a prompt apart in the prefix cache is a text; of a list, which the engine's reader takes as
    well, it makes a 500. Raises Invalid."""
    for field in ("cache_salt", "extra_key"):
        if not isinstance(body.get(field), str | None):
            msg = f"{field} must be a text"
            raise Invalid(msg, field)


SAMPLING: Final = frozenset(
    (
        *("max_new_tokens", "min_new_tokens", "n", "ignore_eos", "stream_interval"),
        *("stop", "stop_token_ids", "stop_regex", "no_stop_trim"),
        *("temperature", "top_p", "top_k", "min_p", "sampling_seed", "logit_bias"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty"),
        *("json_schema", "regex", "ebnf", "structural_tag"),
        *("skip_special_tokens", "spaces_between_special_tokens", "custom_params"),
        *("beam_width", "watermark"),  # 0.5.23 only
    )
)
"""What /generate's `sampling_params` may hold, in any of 0.5.6, 0.5.12, 0.5.17 and 0.5.23. Another name is
an unexpected keyword there: a bare 500. From 0.5.17 on the engine's own notes stand among them
(`is_normalized`, `stop_strs`, `stop_regex_strs` and their like). They are not here: with them a client would
set aside what is made of the others, and have a pattern searched for that nobody has looked at."""

LONGEST_NAME: Final = 40
"""Characters of a name that is told again; the longest known has 29."""


def check_names(params: Mapping[str, Any]) -> None:
    """Names that no version knows in `sampling_params`. Raises Invalid."""
    for name in params.keys() - SAMPLING:
        if (
            not name.isidentifier() or len(name) > LONGEST_NAME
        ):  # whatever it is, it is not told again
            msg = "sampling_params has a name that SGLang does not know"
            raise Invalid(msg, "sampling_params")
        close = difflib.get_close_matches(name, SAMPLING, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        msg = f"sampling_params.{name} is nothing that SGLang knows{hint}"
        raise Invalid(msg, "sampling_params")


def check_sampling(params: Mapping[str, Any]) -> None:
    """What /generate takes as it comes, and its tokenizer then stumbles over. Raises Invalid."""
    check_names(params)
    check_numbers(params, native=True)
    check_bias(params, native=True)
    check_stops(params)
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
