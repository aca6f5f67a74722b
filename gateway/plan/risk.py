"""Whether a headroom will hold: measured against what is known to live in it.

A prefill step's activations grow with its chunk; what else grows (with the context, with the batch
in the sampler) has no formula that holds for all models, so two bounds come from incidents A and B:

- below chunk + 0.5 GiB: high. The sampler took 512 MiB at once and failed; the box of incident B had
  0.65 GiB with a chunk of 0.28, and a long report killed it.
- from chunk + 0.8 GiB: low. The same box at 1.09 GiB has been in production since.
"""

from __future__ import annotations

from enum import StrEnum

SAMPLER_GIB = 0.5
SAFE_GIB = 0.8


class Risk(StrEnum):
    """That a long prompt kills the server."""

    LOW = "low"
    SOME = "some"
    HIGH = "high"


def risk(headroom_gib: float, chunk: float) -> Risk:
    """The risk of a headroom; `chunk` is the activations of one prefill step, GiB."""
    if headroom_gib < chunk + SAMPLER_GIB:
        return Risk.HIGH
    return Risk.LOW if headroom_gib >= chunk + SAFE_GIB else Risk.SOME
