"""What several processes ask of a store: one compare-and-swap of one document a pool, for leases, and a
board where each pins up a document of its own and reads those of the others.

The store may lose everything, come back with an older state, be slow or be gone. It must only be one
thing at a time: of two swaps that expect the same document, one is refused. `run` names its life: it is
another one after every restart and in every copy of it, so that a table that was lost or went back in
time is noticed (see `core.lease`).

Of the board less is asked: what hangs there may be old, lost or gone (see `core.others`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_S = 7 * 86_400.0
"""How long one hangs there at most, like the table of a pool that nobody asks for: over a long weekend."""

LONGEST_DOCUMENT = 256 * 1024
"""Bytes of one on the board; what is longer is nobody's, and not read. All that one process says at most has
some 100 kB (`core.others`)."""


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


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody has pinned up, and how long ago by the store's clock."""

    age_s: float
    document: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """What somebody had pinned up and the store has lost; `lasts_s` is how long it would hang there yet."""

    said: Said
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """What hangs on the board beside one's own. `salt`: the first that anybody brought who had it from
    a board before, else the first that anybody brought."""

    salt: bytes
    of: Mapping[str, Said] = field(default_factory=dict)


class Store(Protocol):
    """One store for all pools of a fleet."""

    async def swap(self, key: str, run: str, expects: bytes | None, new: bytes) -> Answer:
        """Put `new` at `key` if `expects` stands there in life `run` of the store. Raises StoreError."""

    async def post(
        self, me: str, salt: bytes, document: bytes, lasts_s: float, *, kept: bool = False
    ) -> Heard:
        """Pin up `document` in place of the last one of `me`, for so long; `kept`: the salt is one that
        was used before. Raises StoreError."""

    async def restore(self, lost: Mapping[str, Lost]) -> None:
        """Pin up again what others had pinned up, where nothing of theirs hangs there. Raises StoreError."""

    async def close(self) -> None:
        """Let go of connections."""
