"""What one gate of several processes on one port has for itself, and which part of the policy is its.

Without a seat a gate is alone and has everything. Bounds on how many wait or run are divided, so that
together they are what the policy says; what would refuse a request for ever, were it divided, is counted
by all in common (see docs/scale.md). Files have one writer: each process has its own, by its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.lease.store import Store


@dataclass(frozen=True, slots=True)
class Seat:
    """Of worker `number` (from 0) of `of`."""

    number: int
    of: int
    listen: tuple[str, int]
    """The address that all of them listen on; its port is known already."""
    control: Path
    """The socket of this one's control plane."""
    store: Store | None = None
    """What budgets are shared by, where the policy does not name a store for several gates."""
    ttl_s: float = 0.0
    """Of its leases there."""
    replica: str = ""
    """Its name there, in this life."""
    patience_s: float = 0.0
    """How long it leaves its connections to the others until a server takes its work."""

    def to_dict(self) -> dict[str, int]:
        """The `worker` of /status."""
        return {"number": self.number, "of": self.of}

    def file(self, path: Path | None) -> Path | None:
        """records.jsonl → records.w1.jsonl."""
        return None if path is None else path.with_name(f"{path.stem}.w{self.number}{path.suffix}")

    def folder(self, path: Path | None) -> Path | None:
        """collected → collected/w1."""
        return None if path is None else path / f"w{self.number}"

    def part(self, whole: int) -> int:
        """Its part of a bound: together they are `whole`, but at least one each."""
        return max(1, whole // self.of + (self.number < whole % self.of))
