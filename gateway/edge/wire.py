"""The pieces of a stream, framed and written straight to the client's socket.

A general response object spends more on a piece than all else that is done with it. Here a piece is one
chunk (RFC 9112 §7.1), or, to a client of HTTP/1.0, its bare bytes until the connection closes. Head and
end stay with the response: its first piece goes out through it, with the head, before any goes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web


class Wire:
    """One stream to one client, after its first piece."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._protocol = request.protocol
        self._chunked = request.writer.chunked  # type: ignore[attr-defined]  # of every HTTP/1 writer

    def put(self, data: bytes) -> bool:
        """Write a piece that is not empty; whether the client takes more at once.

        Raises ConnectionResetError where it is gone.
        """
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return not self._protocol.writing_paused

    @property
    def empty(self) -> bool:
        """Whether the client has taken all that was written."""
        transport = self._protocol.transport
        return transport is not None and not transport.get_write_buffer_size()
