"""The HTTP server of the data plane: aiohttp's, with our words for bytes that are no HTTP.

A scanner, a TLS hello or a broken client is no error of ours: it gets a 400 in the shape of all
other refusals, the connection ends, and the log hears of it at debug level only; on the control
plane too. Clients that vanish without a word (a pulled cable, a NAT that forgets) are noticed by the
kernel.

A client that hangs up and one that has merely finished sending (`nc -N`) look alike: a FIN. It is taken
for gone, so that a cancelled request gives its memory back at once, unless it can be asked: while
nothing of an answer is out, HTTP/1.1 lets a server say `100 Continue`, which every client skips. One
that is gone answers that with a reset; one that only listens gets its answer.

A gate that goes down takes connections to the end, to refuse in words what comes. A client, or a proxy,
that keeps its connections would ask here again and again while another gate answers: so from then on
each answer is the last on its connection.
"""

from __future__ import annotations

import logging
import math
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiohttp import EMPTY_PAYLOAD, HttpVersion11, web
from aiohttp.hdrs import CONTENT_LENGTH
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.http_exceptions import (
    BadHttpMethod,
    ContentEncodingError,
    HttpProcessingError,
    LineTooLong,
)
from aiohttp.log import server_logger

from gateway.core.model import Code, Refusal
from gateway.edge import cors, ids, replies
from gateway.edge.relay import STALLED_S
from gateway.edge.serial import Serial
from gateway.edge.turnstile import LOST, Portions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from aiohttp import StreamReader
    from aiohttp.web_protocol import RequestHandler

KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", int(STALLED_S * 1000)),
)
"""A client that waits and is not there any more is noticed after 30 + 3 × 10 s of silence. One that
is written to answers nothing: keep-alive does not ask then, and the kernel would try for a quarter
of an hour; bytes that nobody takes for `STALLED_S` end the connection."""

HEAD_ENDS: Final = b"\r\n\r\n"

STILL_THERE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

ASKS_S: Final = (0.005, 0.02, 0.1, 0.3, 1.0)
"""Before each such question; the last for ever. The first one brings out a reset, which the second
finds: a client that has hung up is noticed after 25 ms, or, further away, after a round trip. Behind a
tunnel that passes on the end of one direction at a time it takes some more."""


NOT_HTTP = (HttpProcessingError, web.RequestPayloadError)
"""What aiohttp raises for a head, and for a body nobody asked for that is dropped."""

TOO_MANY_HEADERS: Final = "Too many headers received"
"""aiohttp's words for it, which has no type of its own (3.14)."""

LOOK_S: Final = 0.1
"""Between two searches for idle connections: one takes a millisecond where there are ten thousand."""

REFUSED_S: Final = 1.0
"""How long one that was told that there are too many is listened to: to close with bytes unread sends a
reset, which overtakes the words. A client sends its request as soon as it is connected."""

MOST_REFUSED: Final = 32
"""Such connections at once, a quarter of the files beside those of clients: one more is closed at once."""

URI_TOO_LONG: Final = 414
HEADERS_TOO_LARGE: Final = 431


class ClientsApart(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log, for which bytes of clients that are no HTTP are no error."""

    def __init__(self) -> None:
        super().__init__(server_logger)

    def exception(self, msg: object, *args: object, **how: Any) -> None:  # noqa: ANN401 - its own
        error = how.get("exc_info")
        if isinstance(error, NOT_HTTP):
            self.debug("not HTTP: %s", type(error).__name__)
        else:
            super().exception(msg, *args, **how)


class Face(web.Server):
    """See the module. Takes the arguments of `web.Server`, how many connections at most there may be at
    once (one more ends those that have been idle for longest, or is told that there are too many), and
    what tells that the gate goes down."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        most: float = math.inf,
        leaving: Callable[[], bool] = lambda: False,
        **options: Any,  # noqa: ANN401 - aiohttp's
    ) -> None:
        super().__init__(handler, request_factory=cors.asked, **options)
        self._most = most
        self.leaving = leaving
        self._looked_at = -math.inf
        self._idle: list[
            _Talk
        ] = []  # at the last search; the one that is idle for longest at the end
        self.lost = Portions(LOST)
        self.refused: set[RequestHandler] = set()
        """Connections that were told so and are listened to for a moment yet."""

    def has_room(self, newcomer: RequestHandler) -> bool:
        """Whether there is room for a connection that has just come; made where that can be."""
        if len(self._connections) - len(self.refused) <= self._most:
            return True
        now, others = self._loop.time(), len(self._connections)
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            others = self._look(newcomer)
        while self._idle:
            one = self._idle.pop()
            if one.is_open and one.is_idle:
                one.force_close()
                return True
        return others < self._most

    def _look(self, newcomer: RequestHandler) -> int:
        """Search for those that are idle, which makes room until the next search; how many are open."""
        talks = [one for one in self._connections if isinstance(one, _Talk) and one is not newcomer]
        others = [one for one in talks if one.is_open]
        idle = (one for one in others if one.is_idle)
        self._idle = sorted(idle, key=lambda one: one.idle_until, reverse=True)
        self._loop.call_later(LOOK_S, self._idle.clear)  # it would keep those that have gone
        return len(others)

    def __call__(self) -> RequestHandler:
        """The handler of one connection."""
        return _Talk(self, loop=self._loop, **self._kwargs)


def rest(request: web.BaseRequest) -> None:
    """A request that was read waits: its connection lets go of what that does not need."""
    if isinstance(talk := request.protocol, _Talk):
        talk.rest(request)


def goes_down(request: web.BaseRequest) -> bool:
    """Whether the gate that is asked goes down."""
    talk = request.protocol
    return isinstance(talk, _Talk) and talk.goes_down


def _left_of(data: bytes, message: object, body: StreamReader) -> int | None:
    """How many bytes of a request are still to come whose head began with `data` and was read; None
    where that cannot be told for certain, or where more than it has come."""
    if not isinstance(message, RawRequestMessage):
        return None
    if message.chunked or message.compression is not None or message.upgrade:
        return None
    length = message.headers.get(CONTENT_LENGTH, "0")
    come = len(data) - data.find(HEAD_ENDS) - len(HEAD_ENDS)
    # The parser counts as well: a head that does not begin or end there has another body.
    if not (length.isascii() and length.isdigit()) or come != body.total_bytes:
        return None
    left = int(length) - come
    return None if left < 0 else left


class _Heads(list[Any]):
    """What aiohttp keeps between the parser and the handler of a connection, a request or two, in a
    deque of 760 bytes. Heads lose their raw headers here: no one asks for them."""

    __slots__ = ()

    def append(self, item: tuple[Any, Any]) -> None:
        """One more head, with its body."""
        message, body = item
        if isinstance(message, RawRequestMessage):
            message = message._replace(raw_headers=())
        super().append((message, body))

    def popleft(self) -> tuple[Any, Any]:
        """The first one."""
        first: tuple[Any, Any] = self.pop(0)
        return first


class _Talk(Serial):
    """One connection."""

    __slots__ = ("_to_come",)

    def __init__(self, manager: web.Server, **how: Any) -> None:  # noqa: ANN401 - its own
        super().__init__(manager, **how)
        self._messages = _Heads()  # type: ignore[assignment]  # as much of a deque as is used
        self._to_come: int | None = 0
        """Bytes until the parser stands between two requests and holds nothing of either; None where
        that is not known, and then for the rest of the connection."""

    def data_received(self, data: bytes) -> None:
        if self._parser is None and not (self._close or self._force_close):
            self._parser = self._new_parser()
        to_come, before = self._to_come, len(self._messages)
        super().data_received(data)
        if to_come == 0 and data:
            alone = len(self._messages) == before + 1
            self._to_come = _left_of(data, *self._messages[-1]) if alone else None
        elif to_come is not None:
            self._to_come = None if len(data) > to_come else to_come - len(data)

    def _new_parser(self) -> HttpRequestParser:
        return HttpRequestParser(
            self,
            self._loop,
            self._read_bufsize,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            max_headers=self.max_headers,
            payload_exception=web.RequestPayloadError,
            max_msg_queue_size=self._max_msg_queue_size,
        )

    def rest(self, request: web.BaseRequest) -> None:
        """See the function of that name. What comes next on this connection gets a new parser."""
        self.keep_alive(val=True)  # without the timer: the next one is set with the answer
        self._cache.clear()  # addresses and the like: made again when the next request asks
        if "url" not in request._cache:  # noqa: SLF001 - likewise, but for parts of a whole address
            request._cache.clear()  # noqa: SLF001
        request._transport_sockname = request._transport_peername = None  # noqa: SLF001 - it was seen
        if not request._payload.is_eof():  # noqa: SLF001 - `content` would be kept
            return
        request._cache.pop("content", None)  # noqa: SLF001
        request._payload = EMPTY_PAYLOAD  # noqa: SLF001 - one that is read takes 1.3 KB
        if self._to_come == 0 and not self._messages:
            self._parser = None  # with the last head, which it keeps in two forms: 3 KB

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if isinstance(self._manager, Face) and not self._manager.has_room(self):
            self._refuse(transport, self._manager)  # type: ignore[arg-type]  # a stream's
            return
        sock = transport.get_extra_info("socket")
        for name, value in KEEPALIVE:
            if sock is not None and (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def _refuse(self, transport: asyncio.Transport, face: Face) -> None:
        """One too many: told so, and let go once it has heard that."""
        transport.write(_too_many())
        if len(face.refused) >= MOST_REFUSED or not transport.can_write_eof():
            self.force_close()
            return
        transport.write_eof()
        self.close()  # what comes is read, and dropped
        face.refused.add(self)
        self._loop.call_later(REFUSED_S, self.force_close)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if self.goes_down:
            resp.force_close()  # says so in its head where that is not out yet
        return await super().finish_response(request, resp, start_time)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Thousands may go in one moment, and each ends a request."""
        if isinstance(self._manager, Face):
            self._manager.refused.discard(self)
            self._manager.lost.call(partial(super().connection_lost, exc))
        else:
            super().connection_lost(exc)

    @property
    def goes_down(self) -> bool:
        """Whether no other request should come."""
        return isinstance(self._manager, Face) and self._manager.leaving()

    @property
    def is_open(self) -> bool:
        """Whether it is not on its way out."""
        manager, transport = self._manager, self.transport
        refused = isinstance(manager, Face) and self in manager.refused
        return not refused and transport is not None and not transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way on it."""
        waiter = self._waiter
        return self._current_request is None and waiter is not None and not waiter.done()

    @property
    def idle_until(self) -> float:
        """When it would end by itself, loop's clock."""
        return self._next_keepalive_close_time

    def eof_received(self) -> bool | None:  # type: ignore[override]  # True keeps the other direction
        request, waiter = self._current_request, self._waiter
        idle = waiter is not None and not waiter.done()
        encrypted = (
            self.transport is None or self.transport.get_extra_info("sslcontext") is not None
        )
        started = request is not None and request.writer.output_size > 0
        refused = isinstance(self._manager, Face) and self in self._manager.refused
        if idle or encrypted or started or refused or len(self._messages) > (request is None):
            return None  # gone
        self.close()  # after the answer: no other request can come
        self._ask_again(0)
        return True

    def _ask_again(self, asked: int) -> None:
        wait_s = ASKS_S[min(asked, len(ASKS_S) - 1)]
        self._loop.call_later(wait_s, self._ask_whether_there, asked)

    def _ask_whether_there(self, asked: int) -> None:
        request, transport = self._current_request, self.transport
        if transport is None or transport.is_closing() or self._task_handler is None:
            return  # it is gone, or has its answer
        if request is None:  # it came with its end behind it, and nobody has looked at it yet
            self._ask_again(asked)
        elif request.version < HttpVersion11 or not request.content.is_eof():
            transport.close()  # it cannot be asked, or half a request is none
        elif not request.writer.output_size:  # else the answer itself asks
            transport.write(STILL_THERE)
            self._ask_again(asked + 1)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        self.logger.debug("not HTTP: %s", type(exc).__name__)
        answer = self._no(exc)
        response = web.Response(
            status=answer.status,
            body=answer.body,
            headers=answer.headers,
            content_type=replies.JSON,
        )
        response.force_close()
        return response

    def _no(self, exc: HttpProcessingError) -> replies.Answer:
        """What is said to a head that cannot be read: what was wrong with it, and the limit."""
        if isinstance(exc, LineTooLong) and exc.args[1] == self.max_line_size:
            words = f"the address, query included, has more than {self.max_line_size} bytes"
            return replies.invalid(words, status=URI_TOO_LONG)
        if isinstance(exc, LineTooLong):
            words = f"one of the request's headers has more than {self.max_field_size} bytes"
            return replies.invalid(words, status=HEADERS_TOO_LARGE)
        if exc.message == TOO_MANY_HEADERS:
            words = f"the request has more than {self.max_headers} headers"
            return replies.invalid(words, status=HEADERS_TOO_LARGE)
        if isinstance(exc, ContentEncodingError):  # one whose library is not installed
            return replies.coded()
        words = "the request is not well-formed HTTP/1.1"
        if isinstance(exc, BadHttpMethod):
            words += (
                ": it does not begin with a method of HTTP, as TLS, HTTP/2 or the PROXY protocol"
            )
        return replies.invalid(words)


def _too_many() -> bytes:
    """A whole answer, in OpenAI's shape: what would have been asked for is not known yet."""
    words = "too many connections are open here, and none of them is idle"
    answer = replies.refused(Refusal(Code.QUEUE_FULL, words, retry_after_s=1.0), status=503)
    fields = {
        **answer.headers,
        ids.NAME: ids.drawn(),
        "content-type": replies.JSON,
        "content-length": str(len(answer.body)),
        "connection": "close",
    }
    lines = ["HTTP/1.1 503 Service Unavailable", *(f"{n}: {v}" for n, v in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + answer.body
