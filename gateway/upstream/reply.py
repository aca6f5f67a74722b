"""An answer of an engine on its way: its head, its body as it comes, its end.

A request that lost the race with the engine's closing of an idle connection is sent once more here,
on a fresh one: this is where it is known that not a byte has come back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.upstream.errors import Failure, UpstreamError
from gateway.upstream.headers import strip_hop_by_hop

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.upstream.client import Client
    from gateway.upstream.exchange import Exchange

_RACE_S = 1.0
"""How long after the write a failure may still be the keep-alive race. The engine's FIN was on
its way when we wrote, so the reset is back within a round trip. A connection that breaks later
broke under the request (a crash, mostly), and to send that again would crash the next start."""


class Reply:
    """An answer on its way. Wait for its `head`, then read it to the end or `close` it.

    A wait that is cancelled leaves the exchange as it was, so that whoever stops waiting for an
    answer can still see its end.
    """

    __slots__ = (
        "_at_work",
        "_client",
        "_exchange",
        "_first_byte_s",
        "_foreign",
        "_headers",
        "_idle_s",
        "_on_write",
        "_resend",
        "_sent_at",
    )

    def __init__(
        self,
        client: Client,
        exchange: Exchange,
        *,
        sent_at: float,
        first_byte_s: float | None,
        idle_s: float | None,
        resend: tuple[bytes, Callable[[], bytes], bool] | None,
        on_write: Callable[[], None] | None,
        at_work: Callable[[float], bool] | None = None,
    ) -> None:
        """`resend` is the request, where its connection had been used before."""
        self._at_work = exchange.at_work = at_work
        self._client = client
        self._exchange = exchange
        self._foreign = False
        self._headers: list[tuple[str, str]] | None = None
        self._sent_at = sent_at
        self._first_byte_s = first_byte_s
        self._idle_s = idle_s
        self._resend = resend
        self._on_write = on_write

    def __repr__(self) -> str:
        return f"<Reply {self.status} ended={self.ended}>"

    @property
    def status(self) -> int:
        """The HTTP status; 0 before the head has come."""
        return self._exchange.status

    @property
    def reason(self) -> str:
        """The reason phrase."""
        return self._exchange.reason.decode("ascii", "replace")

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The end-to-end headers; those that have come, before `head`."""
        if self._headers is None or not self._exchange.head_done:
            self._headers = strip_hop_by_hop(self._exchange.headers)
        return self._headers

    @property
    def is_events(self) -> bool:
        """Whether its body is a stream of events that can be read as it passes: packed, it cannot."""
        events, plain = False, True
        for name, value in self.headers:  # of two, any: what is odd is looked at as a stream
            low = name.lower()
            if low == "content-type":
                events |= value.lower().startswith("text/event-stream")
            elif low == "content-encoding":
                plain = value.lower() == "identity"
        return events and plain

    async def head(self) -> None:
        """Wait until status and headers are there.

        Raises:
            UpstreamError: RESET, TRUNCATED, FIRST_BYTE_TIMEOUT or PROTOCOL; as `Client.send` where a
                kept connection was found closed and no new one could be made.
        """
        try:
            await self._exchange.head(self._first_byte_s)
        except UpstreamError as error:
            resend, on_write = self._resend, self._on_write
            self.forget()
            raced = not error.answered and error.kind is Failure.RESET
            late = asyncio.get_running_loop().time() - self._sent_at > _RACE_S
            if resend is None or not raced or late or self._client.closed:
                raise
            self._exchange = await self._client.again(*resend, on_write)
            self._exchange.at_work = self._at_work
            self._headers = None
            await self._exchange.head(self._first_byte_s)
        self.forget()

    def forget(self) -> None:
        """Never send the request a second time: its answer has begun, or nobody wants it any more.

        Its bytes may be many; and what is called at a write knows this reply, so that only the
        collector of cycles would ever find both.
        """
        self._resend = self._on_write = None

    @property
    def ended(self) -> bool:
        """The whole body has arrived and the connection is free; some may still be unread. Never of an
        answer that is not the engine's: its end says nothing of the request."""
        return self._exchange.ended and not self._foreign

    def disown(self) -> None:
        """This is not the engine's answer: somebody in between spoke for it."""
        self._foreign = True

    @property
    def unread(self) -> int:
        """Body bytes that have arrived and not been read."""
        return self._exchange.unread

    async def read(self) -> bytes:
        """The body bytes that have come since the last read, without chunk framing.

        Waits until there are any; `b""` is the end.

        Raises:
            UpstreamError: TRUNCATED, RESET, IDLE_TIMEOUT or PROTOCOL, after all bytes that
                came before the failure have been read.
        """
        return await self._exchange.read(self._idle_s)

    async def pour(self, sink: Callable[[bytes], bool]) -> bool:
        """Give the body bytes to `sink` as they come, in the step in which they come.

        True at the end of the body; False as soon as `sink` returned False: it takes no more now,
        and the server is slowed down until `pour` or `read` is called again.

        Raises:
            UpstreamError: as `read`.
            Exception: whatever `sink` raised.
        """
        return await self._exchange.pour(sink, self._idle_s)

    def read_nowait(self) -> bytes | None:
        """Like `read`, but None where it would have to wait."""
        return self._exchange.read_nowait()

    async def read_all(self, limit: int) -> bytes:
        """The rest of the body, of at most `limit` bytes.

        Raises:
            UpstreamError: as `read`; TOO_LARGE over the limit, and the connection is dropped.
        """
        parts: list[bytes] = []
        size = 0
        while data := await self.read():
            size += len(data)
            if size > limit:
                self.close()
                message = f"The engine's answer is larger than the limit of {limit} bytes."
                raise UpstreamError(Failure.TOO_LARGE, message, sent=True, answered=True)
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(
        self,
        why: str = "The exchange was closed on this side.",
        kind: Failure = Failure.RESET,
    ) -> None:
        """Drop the connection now, unless the body has ended. Idempotent; never blocks.

        Whoever reads gets an UpstreamError that says `why`."""
        self.forget()  # a connection dropped on purpose has not lost a race
        self._exchange.close(why, kind)
