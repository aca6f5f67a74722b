"""One answer on its way in: head, then body bytes as they come, with backpressure.

A `Reply` is fed by its connection and drained by one reader. What is not yet read is bounded: above
`HIGH_WATER` the connection stops reading, below half of it it goes on, so that a slow client slows
the server's socket down instead of growing this process. Silence is timed only while the reader
waits, and by one timer in all, re-armed when it fires: a stream of a thousand chunks sets it once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from gateway.upstream.errors import Failure, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.upstream.connection import Connection

HIGH_WATER = 256 * 1024
"""Unread bytes at which the connection stops reading: about a second of the fastest stream there
is (a thousand events of 250 bytes), and 256 MB for a thousand stalled clients."""


class Reply:
    """See the module. `status`, `reason` and `headers` are valid once `head` has returned."""

    def __init__(
        self,
        *,
        first_byte_s: float | None,
        idle_s: float | None,
        again: Callable[[Reply], Awaitable[None]] | None = None,
    ) -> None:
        self.status = 0
        self.reason = ""
        self.headers: list[tuple[str, str]] = []
        self.ended = False  # the whole answer has come (it may not all be read yet)
        self.answered = False  # a byte of it has come
        self.connection: Connection | None = None
        self._first_byte_s = first_byte_s
        self._idle_s = idle_s
        self._again = again
        self._has_head = False
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # ---- for its reader ------------------------------------------------------------------------

    async def head(self) -> None:
        """Wait for status and headers. Raises UpstreamError.

        A kept connection that breaks before any byte of the answer had most likely been closed by
        the server before it saw the request: that is tried once more on a fresh one.
        """
        try:
            await self._until_head()
        except UpstreamError as error:
            again, self._again = self._again, None
            reused = self.connection is not None and self.connection.reused
            broke = error.kind in {Failure.RESET, Failure.TRUNCATED}
            if again is None or not reused or not broke or error.answered:
                raise
            self._error = None
            await again(self)
            await self._until_head()

    async def read(self) -> bytes:
        """The next bytes of the body, all that are there; b"" at its end. Raises UpstreamError."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.ended:
                return b""
            await self._wait(self._idle_s, Failure.IDLE)
        return self._take()

    def read_nowait(self) -> bytes:
        """What is there now without waiting; b"" for nothing."""
        return self._take() if self._chunks else b""

    async def read_all(self, limit: int) -> bytes:
        """The rest of the body. Raises UpstreamError, TOO_LARGE over `limit` bytes."""
        parts: list[bytes] = []
        size = 0
        while data := await self.read():
            size += len(data)
            if size > limit:
                self.close()
                raise UpstreamError(
                    Failure.TOO_LARGE, f"the answer is over {limit} bytes", sent=True, answered=True
                )
            parts.append(data)
        return b"".join(parts)

    def close(self) -> None:
        """Done with it. If it has not ended its connection is dropped at once, never reused."""
        self._stop_timer()
        connection, self.connection = self.connection, None
        if connection is not None and not self.ended:
            connection.drop()
        self._chunks.clear()
        self._unread = 0

    # ---- for its connection --------------------------------------------------------------------

    def got_head(self, status: int, reason: str, headers: list[tuple[str, str]]) -> None:
        """Status and headers are complete."""
        self.status, self.reason, self.headers = status, reason, headers
        self._has_head = True
        self._stop_timer()  # that was the head's; the next wait sets the body's
        self._wake()

    def got_body(self, data: bytes) -> None:
        """Bytes of the body."""
        self._chunks.append(data)
        self._unread += len(data)
        if self._unread > HIGH_WATER and self.connection is not None:
            self.connection.pause()
        self._wake()

    def got_end(self) -> None:
        """The body is complete; the connection is no longer ours."""
        self.ended = True
        self._stop_timer()
        self._wake()

    def failed(self, kind: Failure, message: str) -> None:
        """The connection broke. What was read before is still there to read."""
        if self._error is None and not self.ended:
            self._error = UpstreamError(kind, message, sent=True, answered=self.answered)
            self._stop_timer()
            self._wake()

    # ---- inside --------------------------------------------------------------------------------

    async def _until_head(self) -> None:
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait(self._first_byte_s, Failure.TIMEOUT)

    def _take(self) -> bytes:
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._unread = 0
        if self.connection is not None:
            self.connection.resume()
        return data

    async def _wait(self, limit_s: float | None, silence: Failure) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._waiting_since = loop.time()
        if limit_s is not None and self._timer is None:
            self._timer = loop.call_later(limit_s, self._check_silence, limit_s, silence)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _check_silence(self, limit_s: float, silence: Failure) -> None:
        """One timer for the life of a reply: has its reader waited too long by now?"""
        self._timer = None
        loop = asyncio.get_running_loop()
        quiet = loop.time() - self._waiting_since if self._waiter is not None else 0.0
        if self._waiter is not None and quiet >= limit_s:
            what = "no answer came" if silence is Failure.TIMEOUT else "the answer fell silent"
            self.failed(silence, f"{what} for {limit_s:g} s")
            if self.connection is not None:
                self.connection.drop()
            return
        self._timer = loop.call_later(limit_s - quiet, self._check_silence, limit_s, silence)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
