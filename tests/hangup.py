"""Resetting a connection from the test's own side."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def hang_up(transport: asyncio.WriteTransport) -> None:
    """Reset it, whatever is still to be written. One that was closed and has written all is let be:
    asyncio's own, once flushed, has no loop to abort on."""
    if not transport.is_closing() or transport.get_write_buffer_size():
        transport.abort()
