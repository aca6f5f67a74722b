"""A small pooled HTTP/1.1 client for one engine.

A general client spends more on a request than the rest of the gate does (half of all CPU in a
trial), and hides what the gate must know: whether the engine may have seen a request, whether
it had begun to answer. This one does one thing: write a request, hand back the head, then body
bytes as they come.

Pool: last in, first out, so that few connections stay warm and the others age out. There is no
limit on connections: admission is the only queue. An idle connection may be closed by the
engine at the very moment a request is written to it; such a request, when it fails at once and
without a single response byte, is sent once more on a fresh connection. Nothing else is ever
retried here.
"""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.upstream.connection import Connection
from gateway.upstream.errors import Failure, UpstreamError, why_none
from gateway.upstream.headers import request_head
from gateway.upstream.reply import Reply
from gateway.upstream.way import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.upstream.exchange import Exchange


@dataclass(frozen=True, slots=True)
class ClientStats:
    """Connections now (`open`, of them `idle`); since the start: `created`, `reused`, `retries`."""

    open: int
    idle: int
    created: int
    reused: int
    retries: int


class Client:
    """All connections to one engine at `base_url` (http or https; a path becomes a prefix)."""

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float = 5.0,
        keepalive_s: float = 4.0,  # uvicorn closes idle connections after 5 s
        ssl: ssl_module.SSLContext | None = None,
        read_high_water: int = 256 * 1024,
    ) -> None:
        """Nothing is connected yet.

        Raises:
            ValueError: `base_url` is not an http(s) URL with a host, or carries credentials.
        """
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("a backend URL is http://HOST[:PORT] or https://HOST[:PORT]")
        if url.username is not None or url.query or url.fragment:
            raise ValueError("a backend URL has no credentials, query or fragment")
        encrypted = url.scheme == "https"
        if not encrypted:
            ssl = None
        elif ssl is None:
            ssl = ssl_module.create_default_context()
        self._way = Way(url.hostname, url.port or (443 if encrypted else 80), ssl)
        self._prefix = url.path.rstrip("/")
        self._fixed = f"host: {url.netloc}\r\naccept-encoding: identity\r\n"
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._high_water = read_high_water
        self._idle: dict[Connection, None] = {}  # oldest first
        self._open: set[Connection] = set()
        self._created = self._reused = self._retries = 0
        self._gone: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def stats(self) -> ClientStats:
        """Counts, for metrics."""
        return ClientStats(
            len(self._open), len(self._idle), self._created, self._reused, self._retries
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called: no request can be sent any more."""
        return self._closed

    async def send(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: bytes = b"",
        *,
        first_byte_timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        on_write: Callable[[], None] | None = None,
        anew: Callable[[], bytes] | None = None,
        at_work: Callable[[float], bool] | None = None,
    ) -> Reply:
        """Send a request and return its reply at once; `Reply.head` waits for the answer.

        `first_byte_timeout_s` runs from there to the complete head, `idle_timeout_s` between two
        reads of the body. `on_write` is called when a connection is there, in the very step in
        which the first byte is written (each time, should it be sent once more); what it raises
        passes, nothing is written then. `anew` makes the body of a second try, of the same length.
        `at_work` is asked whether a body that is silent for longer, by so many seconds, is waited on.

        Raises:
            UpstreamError: CONNECT, NO_WAY, TLS or OURS; nothing has been sent then.
            ValueError: method, target or a header cannot be written on the wire.
        """
        head = request_head(method, self._prefix + target, self._fixed, headers, len(body))
        without_body = method == "HEAD"
        connection = self._take_idle()
        kept = connection is not None
        if connection is None:
            connection = await self._connect(sent=False)
        else:
            self._reused += 1
        self._about_to_write(connection, on_write)
        return Reply(
            self,
            connection.start(head, body, without_body=without_body),
            sent_at=connection.sent_at,
            first_byte_s=first_byte_timeout_s,
            idle_s=idle_timeout_s,
            resend=(head, anew or (lambda: body), without_body) if kept else None,
            on_write=on_write,
            at_work=at_work,
        )

    async def again(
        self,
        head: bytes,
        body: Callable[[], bytes],
        without_body: bool,  # noqa: FBT001
        on_write: Callable[[], None] | None,
    ) -> Exchange:
        """For `Reply`: the same request once more, on a connection of its own."""
        self._retries += 1
        connection = await self._connect(sent=True)
        self._about_to_write(connection, on_write)
        return connection.start(head, body(), without_body=without_body)

    async def request(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: bytes = b"",
        *,
        first_byte_timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
    ) -> Reply:
        """Send a request and return once the response head is complete.

        Whatever ends the wait otherwise, cancellation included, drops the connection.

        Raises:
            UpstreamError: see `Failure`.
            ValueError: method, target or a header cannot be written on the wire.
        """
        reply = await self.send(
            method,
            target,
            headers,
            body,
            first_byte_timeout_s=first_byte_timeout_s,
            idle_timeout_s=idle_timeout_s,
        )
        try:
            await reply.head()
        except BaseException:
            reply.close()
            raise
        return reply

    async def close(self) -> None:
        """Drop every connection, busy ones too, and wait until they are gone."""
        self._closed = True
        for connection in tuple(self._open):
            connection.fail(Failure.RESET, "The gate closed its connections to this engine.")
        if self._open:
            self._gone = self._gone or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._gone)  # a second closer waits on the same future

    # ---- connections ------------------------------------------------------------------------

    async def _connect(self, *, sent: bool) -> Connection:
        if self._closed:
            raise RuntimeError("the client is closed")
        loop = asyncio.get_running_loop()
        connection = Connection(loop, self, self._high_water)
        self._open.add(connection)
        self._created += 1
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._way.connect(lambda: connection)
        except TimeoutError:
            self._forget(connection)
            message = f"No connection to the engine within {self._connect_timeout_s:g} s."
            raise UpstreamError(Failure.NO_WAY, message, sent=sent, answered=False) from None
        except OSError as error:
            self._forget(connection)
            why, kind = error.strerror or type(error).__name__, why_none(error)
            message = f"No connection to the engine: {why}."
            if kind is Failure.OURS:
                message = (
                    f"This gate can open no connection to the engine: {why}. Raise `ulimit -n`."
                )
            raise UpstreamError(kind, message, sent=sent, answered=False) from error
        except BaseException:
            self._forget(connection)
            raise
        if not connection.usable:
            message = "The engine closed the connection as soon as it was made."
            raise UpstreamError(Failure.CONNECT, message, sent=sent, answered=False)
        return connection

    def _about_to_write(self, connection: Connection, on_write: Callable[[], None] | None) -> None:
        if on_write is None:
            return
        try:
            on_write()
        except BaseException:
            self.reusable(connection)  # nothing was written to it
            raise

    def _forget(self, connection: Connection) -> None:
        connection.close()
        self.lost(connection)

    def _take_idle(self) -> Connection | None:
        self._drop_old()
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.usable:
                return connection
        return None

    def _drop_old(self) -> None:
        if not self._idle:
            return
        horizon = asyncio.get_running_loop().time() - self._keepalive_s
        while self._idle:
            oldest = next(iter(self._idle))
            if oldest.idle_since > horizon:
                return
            del self._idle[oldest]
            oldest.close()

    def reusable(self, connection: Connection) -> None:
        """See `connection.Owner`."""
        if self._closed:
            connection.close()
            return
        connection.idle_since = connection.loop.time()
        self._idle[connection] = None
        self._drop_old()

    def lost(self, connection: Connection) -> None:
        """See `connection.Owner`."""
        self._idle.pop(connection, None)
        self._open.discard(connection)
        if self._gone is not None and not self._open and not self._gone.done():
            self._gone.set_result(None)
