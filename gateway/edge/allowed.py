"""What a request may ask for here, beyond what its API allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.edge.dialects import Invalid, pointers
from gateway.edge.dialects.hazards import HEAVY_TOKENS

if TYPE_CHECKING:
    from gateway.edge.dialects import Body, Dialect, Intent
    from gateway.policy.schema import Limits
    from gateway.tokens import Counted


def intent(dialect: Dialect, body: Body, limits: Limits) -> Intent:
    """What a body asks for. Raises Invalid; before its prompts are counted."""
    read = dialect.read(body)
    if read.n > limits.max_n:
        msg = f"n is {read.n}; the most this gate allows is {limits.max_n}"
        raise Invalid(msg, "n")
    if read.prompts > limits.max_prompts:
        msg = (
            f"{read.prompts} prompts in one request; the most this gate allows is "
            f"{limits.max_prompts}"
        )
        raise Invalid(msg)
    pointers.check(read.kind, read.put(body), limits)
    return read


def check(asked: Intent, counted: Counted, limits: Limits) -> None:
    """Whether its prompts may be so long, and its images so large. Raises Invalid."""
    if counted.pixels > limits.image_pixels:
        msg = (
            f"the images have {counted.pixels:,} pixels in all; the most this gate allows is "
            f"{limits.image_pixels:,}. {_remedy(counted.unsized)}"
        )
        raise Invalid(msg)
    if not counted.prompts:
        raise Invalid("there is no prompt")
    if not all(counted.prompts):  # a sequence of none in a batch ends the scheduler
        raise Invalid("a prompt is empty: it has no token, and the engine can not begin with none")
    if asked.heavy is not None and counted.total > HEAVY_TOKENS:
        msg = (
            f"{asked.heavy} over a prompt of {counted.total} tokens takes memory outside the "
            f"KV pool; it is allowed up to {HEAVY_TOKENS} tokens"
        )
        raise Invalid(msg, asked.heavy.partition(" ")[0])


def _remedy(unsized: int) -> str:
    if not unsized:
        return "Make them smaller: the model sees few of them"
    return (
        f"{unsized} of them are of no size that is known here, and count as the largest there may be. Send them as "
        "plain PNG, JPEG, GIF, WebP or BMP"
    )
