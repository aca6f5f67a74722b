"""A pooled HTTP/1.1 client for one server, as small as a gate needs it.

Own code, since relaying is what this project is for and most of a request's cost is here: in a trial
this shape took half the CPU of a general client per request and per chunk. No limit on connections
(admission is the only queue there may be), no total timeout (an answer takes what it takes), no
redirects, cookies, decompression or proxies.

`send` writes a request and returns its `Reply` at once; `await reply.head()` waits for the answer.
They are apart so that whoever stops waiting still holds the reply, and can see its end.
"""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from gateway.upstream.connection import Connection
from gateway.upstream.errors import Failure, UpstreamError
from gateway.upstream.headers import request_head
from gateway.upstream.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Iterable

KEEPALIVE_S = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn, SGLang's server,
closes it."""

OK = 200


@dataclass(slots=True)
class Stats:
    """Connections of one client."""

    created: int = 0
    reused: int = 0
    retried: int = 0  # requests sent again since a kept connection turned out to be dead


class Client:
    """Requests to one server. `base_url` is its root, http or https."""

    def __init__(
        self,
        base_url: str,
        *,
        connect_s: float = 5.0,
        keepalive_s: float = KEEPALIVE_S,
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            msg = f"{base_url!r} is not an http or https URL"
            raise ValueError(msg)
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._authority = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._ssl = (
            (ssl or ssl_module.create_default_context()) if parts.scheme == "https" else None
        )
        self._connect_s = connect_s
        self._keepalive_s = keepalive_s
        self._pool: list[Connection] = []
        self._open: set[Connection] = set()
        self.stats = Stats()

    async def send(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        *,
        first_byte_s: float | None = None,
        idle_s: float | None = None,
    ) -> Reply:
        """Write a request and return its reply. Raises UpstreamError when there is no connection.

        `first_byte_s` limits the wait for the head of the answer, `idle_s` each silence after it;
        seconds, None for no limit. Raises ValueError for headers that may not be sent.
        """
        if method == "HEAD":
            msg = "HEAD is not sent upstream: its answer has no body to frame"
            raise ValueError(msg)
        head = request_head(method, self._prefix + target, self._authority, headers, len(body))
        request = head + body

        async def again(reply: Reply) -> None:
            self.stats.retried += 1
            connection = await self._connect()
            connection.send(request, reply)

        reply = Reply(first_byte_s=first_byte_s, idle_s=idle_s, again=again)
        connection = self._kept() or await self._connect()
        connection.send(request, reply)
        return reply

    async def request(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        *,
        first_byte_s: float | None = None,
        idle_s: float | None = None,
    ) -> Reply:
        """`send`, then wait for the head. A cancelled or failed wait closes the connection."""
        reply = await self.send(
            method, target, headers, body, first_byte_s=first_byte_s, idle_s=idle_s
        )
        try:
            await reply.head()
        except BaseException:
            reply.close()
            raise
        return reply

    async def post_json(
        self,
        target: str,
        body: object,
        headers: Iterable[tuple[str, str]] = (),
        *,
        timeout_s: float,
        limit: int = 64 << 20,
    ) -> Any:  # noqa: ANN401 - JSON
        """The parsed body of a 200. Raises UpstreamError for everything else."""
        sent = [("content-type", "application/json"), *headers]
        data = orjson.dumps(body)
        return await self._json("POST", target, sent, data, timeout_s=timeout_s, limit=limit)

    async def get_json(
        self,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        *,
        timeout_s: float,
        limit: int = 8 << 20,
    ) -> Any:  # noqa: ANN401 - JSON
        """The parsed body of a 200. Raises UpstreamError for everything else."""
        return await self._json("GET", target, headers, b"", timeout_s=timeout_s, limit=limit)

    async def close(self) -> None:
        """Drop every connection."""
        for connection in list(self._open):
            connection.drop()
        self._pool.clear()
        await asyncio.sleep(0)  # let the transports close

    # ---- inside --------------------------------------------------------------------------------

    async def _json(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: bytes,
        *,
        timeout_s: float,
        limit: int,
    ) -> Any:  # noqa: ANN401 - JSON
        reply: Reply | None = None
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self.request(method, target, headers, body)
                data = await reply.read_all(limit)
        except TimeoutError:
            message = f"{target} was silent for {timeout_s:g} s"
            raise UpstreamError(Failure.TIMEOUT, message, sent=True) from None
        finally:
            if reply is not None:
                reply.close()
        if reply.status != OK:
            message = f"{target} answered {reply.status}"
            raise UpstreamError(
                Failure.STATUS, message, status=reply.status, sent=True, answered=True
            )
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            message = f"{target} answered something that is not JSON"
            raise UpstreamError(Failure.PROTOCOL, message, sent=True, answered=True) from None

    def _kept(self) -> Connection | None:
        """The connection used last, if one is young enough: the server has not closed that one."""
        oldest = asyncio.get_running_loop().time() - self._keepalive_s
        while self._pool:
            connection = self._pool.pop()
            if connection.usable and connection.idle_since >= oldest:
                connection.reused = True
                self.stats.reused += 1
                return connection
            connection.drop()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        where = f"{self._host}:{self._port}"
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._idle, self._gone),
                    self._host,
                    self._port,
                    ssl=self._ssl,
                )
        except TimeoutError:
            message = f"{where} accepted no connection within {self._connect_s:g} s"
            raise UpstreamError(Failure.TIMEOUT, message) from None
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise UpstreamError(Failure.REFUSED, f"no connection to {where}: {reason}") from None
        self._open.add(connection)
        self.stats.created += 1
        return connection

    def _idle(self, connection: Connection) -> None:
        connection.idle_since = asyncio.get_running_loop().time()
        self._pool.append(connection)

    def _gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._pool:
            self._pool.remove(connection)
