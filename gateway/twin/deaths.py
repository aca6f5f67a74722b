"""The ways a scheduler dies, and what its log says then.

- A chunk of a long prompt must go on while nothing is free: "Prefill out of memory". The chunk is
  scheduled at full size although the pool cannot hold it (`Budget.chunk_size`). Plain scheduling
  does not get there, because decode waits while a prompt is in chunks; with mixed chunks the others
  keep growing, unchecked, into the room that the rest of the prompt needs.
- A prefill step's activations exceed the headroom: torch.OutOfMemoryError (`steps`).
- Until 0.5.6, the last request of the batch finds no page: an assertion.
- `Profile.dry_pool_kills`: a pool that runs dry in decode ends the process instead of retracting.
  This is given to a box, not derived. Incident A records that over-committing the pool with a third
  request ended in CUDA out of memory and a dead scheduler, not which allocation failed; the genuine
  CPU server only ever retracts. The profile reproduces the recorded outcome at the moment at which
  the over-commit becomes real.

Admissions whose prompts and caps fit the pool together reach none of these but the second.
"""

from __future__ import annotations

DECODE = "RuntimeError: Decode out of memory. Try to lower your batch size."
LAST_ONE = "AssertionError: No space left for only one request"
_GIB = 1 << 30


def prefill(size: int, free: int) -> str:
    """A chunk of `size` tokens, `free` tokens in the pool."""
    return (
        "RuntimeError: Prefill out of memory. Try to lower your batch size. "
        f"Try to allocate {size} tokens. Available tokens: {free}"
    )


def activations(computed: int, context: int, need: float, free: float) -> str:
    """A prefill step of `computed` tokens over `context`; bytes it needs and bytes there are."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory: a prefill step of {computed} tokens over "
        f"{context} needs {need / _GIB:.2f} GiB, {free / _GIB:.2f} GiB are free"
    )


def dry(capacity: int, running: int) -> str:
    """A pool of `capacity` tokens with no page left for `running` requests."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory: the KV pool of {capacity} tokens is dry with "
        f"{running} requests running"
    )
