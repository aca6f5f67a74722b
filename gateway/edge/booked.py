"""What a relay tells whoever holds the reservation: a lease, its shadow, or nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.core.model import Outcome


class Booked(Protocol):
    """See `gate.Lease`."""

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        ...

    def first_token(self) -> None:
        """The first output came."""
        ...

    def true_up(self, generated: int) -> None:
        """So many tokens so far."""
        ...

    def cached(self, tokens: int) -> None:
        """So many prompt tokens lay in the server's cache."""
        ...

    def end(self, outcome: Outcome) -> None:
        """The engine is done."""
        ...

    def abandon(self, outcome: Outcome) -> None:
        """It is over for the client, and the engine may not know."""
        ...
