"""The pieces of one stream: each is looked at and passed on in the step in which it comes.

Every piece of every stream comes by here, so what is the same for all of them is looked up once. What
each one says, that its server is alive and how far its answer is, goes to watch and ledger at once: the
next decision sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.edge.backends import Backend
    from gateway.edge.booked import Booked
    from gateway.edge.dialects import Teller
    from gateway.edge.wire import Wire
    from gateway.upstream.reply import Reply
    from gateway.upstream.sse import SseTap


class Pieces:
    """Of `reply`, as `tap` reads them. `on_first` is called at the first output, `on_end` when the whole
    answer has come, which its client may have read or not."""

    __slots__ = (
        "_alive",
        "_backend",
        "_feed",
        "_on_end",
        "_on_first",
        "_reply",
        "_speaking",
        "_tap",
        "_teller",
        "_true_up",
        "_wire",
        "put",
    )

    def __init__(
        self,
        tap: SseTap,
        reply: Reply,
        *,
        backend: Backend,
        lease: Booked,
        teller: Teller | None,
        wire: Wire,
        on_first: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._tap, self._feed = tap, tap.feed
        self._reply = reply
        self._backend, self._alive = backend, backend.alive
        self._true_up = lease.true_up
        self._teller = teller
        self._wire, self.put = wire, wire.put
        self._on_first, self._on_end = on_first, on_end
        self._speaking = False

    def look(self, data: bytes) -> bytes:
        """Take in a piece; what the client gets of it, or instead of it, now."""
        forward = self._feed(data)
        self._alive()
        if tokens := self._tap.tokens:
            if not self._speaking:
                self._speaking = True
                self._on_first()
            elif self._backend.on_trial:  # a stream from before it was reached anew
                self._backend.prefilled()
            self._true_up(tokens)
        if self._reply.ended:
            self._on_end()
        return forward if self._teller is None else self._teller.feed(data)

    def pass_on(self, data: bytes) -> bool:
        """... and write it to the client; whether it takes more at once."""
        return not (forward := self.look(data)) or self.put(forward)

    def said(self) -> int | None:
        """How many events the client has had; None where nothing may be put between them now: inside one,
        or while bytes wait for it already."""
        whole = self._teller is not None or not self._tap.gap()
        return self._tap.events if whole and self._wire.empty else None
