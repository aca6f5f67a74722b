"""A request that was handed to a server: what must be known of it until its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.edge.backends import Backend
    from gateway.edge.dialects import Body
    from gateway.gate import Lease
    from gateway.observe.record import Record
    from gateway.upstream.reply import Reply


@dataclass(slots=True)
class Flight:
    """`reply` is there once the request was written."""

    backend: Backend
    rid: str
    lease: Lease
    record: Record
    body: Body
    named: bool = True  # the engine knows it by `rid`; else by its connection alone
    at: float = 0.0  # when it was written, loop's clock
    reply: Reply | None = None
    missed: int = 0  # snapshots in a row of an engine that should run it and runs nothing
    mark: tuple[bytes, bytes] | None = None  # see `Marks.of_flight`, with what it was made by

    @property
    def answer(self) -> Reply:
        """The reply. Raises RuntimeError before the request was written."""
        if self.reply is None:
            msg = "not written"
            raise RuntimeError(msg)
        return self.reply
