"""The answer to one request while it arrives: what the connection fills and the reader empties.

The buffer belongs to the exchange, not to the connection: as soon as the last byte of a body
has arrived the connection is free for the next request, however slow the reader is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gateway.upstream.connection import Connection
    from gateway.upstream.errors import Failure, UpstreamError


class Exchange:
    """One request's answer as it arrives: the head, then a buffer of body bytes.

    One reader at a time. After a failure the bytes that came before it are still read first.
    """

    __slots__ = (
        "_chunks",
        "_connection",
        "_error",
        "_idle_s",
        "_sink",
        "_sink_error",
        "_waiter",
        "at_work",
        "ended",
        "head_done",
        "headers",
        "reason",
        "status",
        "unread",
        "without_body",
    )

    def __init__(self, connection: Connection, *, without_body: bool) -> None:
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[str, str]] = []
        self.head_done = False
        self.ended = False  # the last body byte has arrived; it may still be unread
        self.unread = 0
        self.without_body = without_body  # the answer to a HEAD
        self.at_work: Callable[[float], bool] | None = None
        """Asked where the body has been silent for longer than it may, by so many seconds: whether the
        engine is known to be at work on it, so that it is waited on."""
        self._connection: Connection | None = connection
        self._chunks: list[bytes] = []
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._sink_error: Exception | None = None
        self._idle_s: float | None = None

    # ---- what the connection does -----------------------------------------------------------

    def put(self, data: bytes) -> None:
        """Take body bytes from the parser."""
        self._chunks.append(data)
        self.unread += len(data)

    def wake(self) -> None:
        """Let the waiting reader look again, or its sink have what came."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._sink is not None and self._chunks and self._goes_on(self._sink, self._chunks):
            return
        if not waiter.done():
            waiter.set_result(None)

    def _goes_on(self, sink: Callable[[bytes], bool], chunks: list[bytes]) -> bool:
        """Hand over what came; whether nobody need be woken for it. Every piece of every stream
        comes by here, so it is `read_nowait` once more, without what cannot be."""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.unread = 0
        try:
            takes_more = sink(data)
        except Exception as error:  # noqa: BLE001  # it is the reader's, not the connection's
            self._sink_error = error
            return False
        connection = self._connection
        if not takes_more:
            self._sink = None
            return False
        if self.ended or connection is None:
            return False
        if self._idle_s is not None:
            connection.watch(self._idle_s)
        return True

    def end(self) -> None:
        """The body is whole; the connection is no longer ours."""
        self.ended = True
        self._connection = None
        self.wake()

    def fail(self, error: UpstreamError) -> None:
        """The exchange will not end well; what was buffered stays readable."""
        if self._error is None and not self.ended:
            self._error = error
        self._connection = None
        self.wake()

    # ---- what the reader does ---------------------------------------------------------------

    async def head(self, timeout_s: float | None) -> None:
        """Wait until status and headers are there.

        Raises:
            UpstreamError: RESET, TRUNCATED, FIRST_BYTE_TIMEOUT or PROTOCOL.
        """
        while not self.head_done:
            if self._error is not None:
                raise self._error.afresh()
            await self._wait(timeout_s)

    async def read(self, timeout_s: float | None) -> bytes:
        """The body bytes that have come; waits for at least one; `b""` at the end.

        Raises:
            UpstreamError: RESET, TRUNCATED, IDLE_TIMEOUT or PROTOCOL.
        """
        while (data := self.read_nowait()) is None:
            await self._wait(timeout_s)
        return data

    def read_nowait(self) -> bytes | None:
        """Like `read`, but None where it would wait."""
        chunks = self._chunks
        if chunks:
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self._chunks = []
            self.unread = 0
            if self._connection is not None:
                self._connection.drained()
            return data
        if self._error is not None:
            raise self._error.afresh()
        return b"" if self.ended else None

    async def pour(self, sink: Callable[[bytes], bool], timeout_s: float | None) -> bool:
        """Give the body bytes to `sink` in the very step in which they come, without a task's turn.

        True at the end of the body; False as soon as `sink` returned False: it takes no more now.

        Raises:
            UpstreamError: as `read`.
            Exception: whatever `sink` raised.
        """
        while (data := self.read_nowait()) != b"":
            if data is not None:
                if not sink(data):
                    return False
                continue
            self._sink, self._idle_s = sink, timeout_s
            try:
                await self._wait(timeout_s)
                stopped, error = self._sink is None, self._sink_error
            finally:
                self._sink = self._sink_error = None
            if error is not None:
                raise error
            if stopped:
                return False
        return True

    def close(self, why: str, kind: Failure) -> None:
        """Drop the connection, unless the exchange has ended and it is someone else's by now."""
        if self._connection is not None:
            self._connection.fail(kind, why)

    async def _wait(self, timeout_s: float | None) -> None:
        connection = self._connection
        if connection is None or self._waiter is not None:
            raise RuntimeError("an exchange has one reader at a time")
        self._waiter = connection.loop.create_future()
        if timeout_s is not None:
            connection.watch(timeout_s)
        try:
            await self._waiter
        finally:
            # Whoever is cancelled here still holds the exchange: it may be read on, or closed.
            self._waiter = None
            connection.unwatch()
