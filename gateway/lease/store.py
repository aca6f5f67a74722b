"""What the lease protocol asks of a store: one compare-and-swap of one document a pool.

The store may lose everything, come back with an older state, be slow or be gone. It must only be one
thing at a time: of two swaps that expect the same document, one is refused. `run` names its life: it is
another one after every restart and in every copy of it, so that a table that was lost or went back in
time is noticed (see `core.lease`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """The store did not answer, or not so that it could be understood; in words, without secrets.

    Whether the swap was made is not known then.
    """


@dataclass(frozen=True, slots=True)
class Answer:
    """`taken`: whether the swap was made. If not, `document` is what stands there (None: nothing)."""

    taken: bool
    run: str
    document: bytes | None = None


class Store(Protocol):
    """One store for all pools of a fleet."""

    async def swap(self, key: str, run: str, expects: bytes | None, new: bytes) -> Answer:
        """Put `new` at `key` if `expects` stands there in life `run` of the store. Raises StoreError."""

    async def close(self) -> None:
        """Let go of connections."""
