"""One HTTP/1.1 connection to an engine, and one exchange at a time on it.

Bytes come from the loop into `Connection.data_received`, through the parser, into the buffer of
the current `Exchange`; a reader takes everything that lies there in one piece. The buffer
belongs to the exchange, not to the connection: as soon as the last byte of a body has arrived
the connection is free for the next request, however slow the reader is.

Backpressure: over `high_water` unread bytes the transport stops reading, so the kernel's window
closes and the engine waits; it reads on once the reader has taken the lot. What one exchange
can hold is therefore the mark plus one network read (256 KiB on both loops).

Timeouts cost nothing per chunk: a wait moves a deadline, and one timer per connection looks at
it when it happens to fire.

The parser is llhttp (through httptools). It refuses Content-Length next to Transfer-Encoding
and a second Content-Length; what it is lenient about (other codings, HTTP/1.0, endless heads)
is checked here.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

import httptools

from gateway.tasks import LATE_S, ROOM_S
from gateway.upstream.errors import Failure, UpstreamError
from gateway.upstream.exchange import Exchange

HEAD_LIMIT = 64 * 1024
"""Bytes of status line and fields. Engines send under 1 KiB; h11 and nginx stop at 16–64 KiB."""

_COPY_LIMIT = 64 * 1024
"""Up to here joining head and body into one write (one system call) is cheaper than two."""

# A vanished machine or a dead NAT entry is noticed after 30 + 3 × 10 s of silence. The kernel's
# own default is over two hours, which a non-streamed generation would wait for.
_KEEPALIVE_OPTIONS = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

_HEAD_TOO_LONG = f"its response head is over {HEAD_LIMIT} bytes"
_AGAIN_S = 5.0
"""How often a silence beyond its limit is looked at, where somebody knows better: so soon after the
engine has lost a request its client is told."""

_BODILESS = frozenset((204, 304))
_SWITCHING_PROTOCOLS = 101
_FIRST_FINAL_STATUS = 200


class Owner(Protocol):
    """Who is told what becomes of a connection."""

    def reusable(self, connection: Connection) -> None:
        """The exchange is over and the connection may carry another."""

    def lost(self, connection: Connection) -> None:
        """The connection is gone, whoever closed it."""


class Connection(asyncio.Protocol):
    """The protocol object of one socket. `idle_since` is the pool's note on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner, high_water: int) -> None:
        self.loop = loop
        self.idle_since = 0.0
        self.sent_at = 0.0  # loop time of the last request
        self._owner = owner
        self._high_water = high_water
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._paused = False
        self._exchange: Exchange | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answered = False
        self._head_bytes = 0
        self._complete = False
        self._keep = False
        self._until_eof = False
        self._fault: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._deadline: float | None = None
        self._silent_from = 0.0  # when the silence that goes on was beyond its limit
        self._prolonged: float | None = None  # the deadline that this was moved to

    @property
    def usable(self) -> bool:
        """Whether a request can be written to it as far as this side knows."""
        transport = self._transport
        return not self._closed and transport is not None and not transport.is_closing()

    # ---- a request --------------------------------------------------------------------------

    def start(self, head: bytes, body: bytes, *, without_body: bool) -> Exchange:
        """Write a request on a `usable` connection; the answer arrives in the exchange."""
        exchange = Exchange(self, without_body=without_body)
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._answered = self._complete = self._keep = self._until_eof = False
        self._head_bytes = 0
        self._fault = None
        self.sent_at = self.loop.time()
        transport = self._transport
        if transport is None:
            raise RuntimeError("the connection has not been made")
        if len(body) <= _COPY_LIMIT:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        return exchange

    def fail(self, kind: Failure, message: str) -> None:
        """End the current exchange with an error and drop the socket."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.fail(UpstreamError(kind, message, sent=True, answered=self._answered))
        self.close()

    def close(self) -> None:
        """Drop the socket at once: nothing is flushed, nothing lingers. Idempotent."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def drained(self) -> None:
        """The reader has taken everything: read on."""
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # ---- waiting no longer than asked -------------------------------------------------------

    def watch(self, seconds: float) -> None:
        """Fail the exchange unless `unwatch` is called within `seconds`."""
        self._deadline = self.loop.time() + seconds
        if self._timer is not None and self._timer_at > self._deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._arm(self._deadline)

    def unwatch(self) -> None:
        """The wait is over. The timer is left to find that out by itself."""
        self._deadline = None

    def _arm(self, at: float) -> None:
        self._timer_at = at
        self._timer = self.loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        deadline = self._deadline
        if deadline is None:
            return
        now = self.loop.time()
        if now < deadline:
            self._arm(deadline)
        elif now - self._timer_at > LATE_S:  # we were away: what came meanwhile is not read yet
            self._deadline = now + ROOM_S
            self._arm(self._deadline)
        elif self._at_work(deadline, now):
            self._deadline = self._prolonged = now + _AGAIN_S
            self._arm(self._deadline)
        elif self._exchange is not None and self._exchange.head_done:
            self.fail(Failure.IDLE_TIMEOUT, "The engine went silent in the middle of its answer.")
        else:
            self.fail(Failure.FIRST_BYTE_TIMEOUT, "The engine did not begin to answer in time.")

    def _at_work(self, deadline: float, now: float) -> bool:
        """Whether a body that has been silent for too long is waited on all the same."""
        exchange = self._exchange
        if exchange is None or not exchange.head_done or exchange.at_work is None:
            return False
        if deadline != self._prolonged:  # another silence than the last
            self._silent_from = deadline
        return exchange.at_work(now - self._silent_from)

    # ---- asyncio.Protocol -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        sock = stream.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE_OPTIONS:
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if self._closed:
            stream.abort()

    def data_received(self, data: bytes) -> None:
        exchange, parser = self._exchange, self._parser
        if exchange is None or parser is None:
            self.close()  # bytes nobody asked for: this connection is out of step
            return
        self._answered = True
        if not exchange.head_done:
            self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # Bytes after a complete body concern only whether the connection is used again.
            self._keep = False
            if not self._complete:
                self._fault = self._fault or str(error)
        if not exchange.head_done and self._head_bytes > HEAD_LIMIT:
            self._fault = self._fault or _HEAD_TOO_LONG
        if self._fault is not None:
            self.fail(Failure.PROTOCOL, f"The engine did not speak HTTP: {self._fault}.")
        elif self._complete:
            self._finish(exchange)
        elif exchange.head_done:
            exchange.wake()
            if exchange.unread > self._high_water:
                self._pause()

    def eof_received(self) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.head_done and self._until_eof:
            self._keep = False
            self._finish(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._exchange is not None:
            if self._answered and exc is None:
                self.fail(Failure.TRUNCATED, "The engine closed in the middle of its answer.")
            elif self._answered:
                self.fail(Failure.RESET, "The connection broke in the middle of the answer.")
            else:
                self.fail(Failure.RESET, "The engine closed the connection without an answer.")
        self._transport = None
        self._owner.lost(self)

    def _pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _finish(self, exchange: Exchange) -> None:
        self._exchange = None
        transport = self._transport
        # A body still being written belongs to this request: the next would go out behind it.
        keep = self._keep and transport is not None and not transport.get_write_buffer_size()
        if not keep:
            self.close()
        self.drained()
        exchange.end()
        if keep:
            self._owner.reusable(self)

    # ---- parser callbacks -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self._keep = False

    def on_status(self, part: bytes) -> None:
        if self._exchange is not None and not self._complete:
            self._exchange.reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._exchange
        if exchange is None or exchange.head_done:  # a trailer, or bytes after the end
            return
        # UTF-8 as the edge writes it; nothing an engine sends may fail on its way out again.
        exchange.headers.append((name.decode("ascii", "replace"), value.decode("utf-8", "replace")))

    def on_headers_complete(self) -> None:
        exchange, parser = self._exchange, self._parser
        if exchange is None or parser is None or self._complete:
            return
        status = parser.get_status_code()
        if status < _FIRST_FINAL_STATUS:
            if status == _SWITCHING_PROTOCOLS:
                self._fault = "it switched protocols unasked"
            exchange.headers.clear()
            exchange.reason = b""
            return
        lengths, codings = _framing(exchange.headers)
        # What was fed may be mostly body; only then are the fields worth adding up.
        if self._head_bytes > HEAD_LIMIT and _size(exchange.headers) > HEAD_LIMIT:
            self._fault = _HEAD_TOO_LONG
        elif lengths + len(codings) > 1:
            self._fault = "more than one body framing"
        elif codings and codings != ["chunked"]:
            self._fault = "a transfer coding other than chunked"
        if self._fault is not None:
            return
        exchange.status = status
        exchange.head_done = True
        if exchange.without_body:
            self._complete = True
        self._until_eof = not (lengths or codings or self._complete or status in _BODILESS)
        self._keep = (
            not self._until_eof
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
        )

    def on_body(self, data: bytes) -> None:
        if self._complete or self._exchange is None:
            self._keep = False
        else:
            self._exchange.put(data)

    def on_message_complete(self) -> None:
        if self._exchange is not None and self._exchange.head_done:
            self._complete = True


def _framing(headers: list[tuple[str, str]]) -> tuple[int, list[str]]:
    """How many Content-Length fields there are, and the transfer codings."""
    lengths, codings = 0, []
    for name, value in headers:
        lowered = name.lower()
        if lowered == "content-length":
            lengths += 1
        elif lowered == "transfer-encoding":
            codings.append(value.strip().lower())
    return lengths, codings


def _size(headers: list[tuple[str, str]]) -> int:
    """Bytes on the wire, each field with its colon, space and line end."""
    return sum(len(name) + len(value) + 4 for name, value in headers)
