"""One HTTP/1.1 connection to a server: bytes through httptools into the reply that waits for them.

The parser refuses what a proxy must not guess about (both framings at once, two lengths, bad
chunks), and such an answer is a PROTOCOL failure. A connection goes back to its pool only after an
answer that ended by its own framing, with keep-alive, and with nothing after it.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import httptools

from gateway.upstream.errors import Failure
from gateway.upstream.headers import end_to_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.upstream.reply import Reply

MAX_HEAD = 64 * 1024
"""Bytes of one answer's head. SGLang's own is below 300; uvicorn and nginx stop at 64 and 32 KiB."""

INFORMATIONAL = range(100, 200)
SWITCHING = 101


class Connection(asyncio.Protocol):
    """See the module. `idle` is called when it can carry another request, `gone` when it is lost."""

    def __init__(
        self, idle: Callable[[Connection], None], gone: Callable[[Connection], None]
    ) -> None:
        self.reused = False
        self.idle_since = 0.0
        self._idle = idle
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._paused = False
        self._lost = False
        self._reset_message()

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it."""
        return not self._lost and self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, reply: Reply) -> None:
        """Write a request; its answer goes to `reply`."""
        if self._transport is None or self._reply is not None:
            msg = "the connection is not free"
            raise RuntimeError(msg)
        self._reply = reply
        reply.connection = self
        self._parser = httptools.HttpResponseParser(self)
        self._reset_message()
        self._transport.write(request)

    def pause(self) -> None:
        """Stop reading: the reply holds enough unread bytes."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def drop(self) -> None:
        """Close at once, whatever was under way."""
        self._reply = None
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            # A peer that vanished without a word is noticed by the kernel, not by us.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        reply = self._reply
        if reply is None:
            self.drop()  # an idle server has nothing to say: a late answer, or a broken one
            return
        reply.answered = True
        if not self._in_body:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD + len(data):
                self._fail(Failure.PROTOCOL, f"the answer's head is over {MAX_HEAD} bytes")
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(Failure.PROTOCOL, "the server wants to switch protocols")
        except httptools.HttpParserError:
            self._fail(Failure.PROTOCOL, "what came is not an HTTP/1.1 answer")

    def eof_received(self) -> bool:
        """The server will send no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed: the end of an answer without framing, or a failure of any other."""
        self._lost = True
        reply, self._reply = self._reply, None
        if reply is not None:
            if self._until_close and self._in_body and exc is None:
                reply.got_end()
            elif exc is not None:
                reply.failed(Failure.RESET, "the server reset the connection")
            elif reply.answered:
                reply.failed(Failure.TRUNCATED, "the server closed the connection mid-answer")
            else:
                reply.failed(Failure.RESET, "the server closed the connection without an answer")
        self._gone(self)

    # ---- httptools callbacks -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins; one that nobody asked for spoils the connection."""
        if self._reply is None and self._transport is not None:
            self._transport.abort()

    def on_status(self, status: bytes) -> None:
        """The reason phrase."""
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        if status in INFORMATIONAL:
            self._informational = True
            if status == SWITCHING:
                self._fail(Failure.PROTOCOL, "the server wants to switch protocols")
            return
        names = {name.lower() for name, _ in self._headers}
        self._keep_alive = self._parser.should_keep_alive()
        self._until_close = not names & {"content-length", "transfer-encoding"} and status not in {
            204,
            304,
        }
        self._in_body = True
        if self._reply is not None:
            self._reply.got_head(status, self._reason.decode("latin-1"), end_to_end(self._headers))

    def on_body(self, data: bytes) -> None:
        """Bytes of the body, unframed."""
        if self._reply is not None:
            self._reply.got_body(data)

    def on_message_complete(self) -> None:
        """One answer is complete; an informational one only announces the next."""
        if self._informational:
            self._reset_message()
            return
        reply, self._reply = self._reply, None
        if reply is None:
            return
        self.resume()
        reply.connection = None
        reply.got_end()
        if self._keep_alive and not self._until_close:
            self._idle(self)
        elif self._transport is not None:
            self._transport.abort()

    # ---- inside --------------------------------------------------------------------------------

    def _reset_message(self) -> None:
        self._headers: list[tuple[str, str]] = []
        self._reason = b""
        self._head_size = 0
        self._in_body = False
        self._until_close = False
        self._informational = False
        self._keep_alive = False

    def _fail(self, kind: Failure, message: str) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.failed(kind, message)
        if self._transport is not None:
            self._transport.abort()
