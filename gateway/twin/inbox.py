"""What the engine said about one request, in order, for the handler that serves it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.twin.jobs import Finished, Progress


class Inbox:
    """A queue with one reader. When the scheduler dies nothing more comes: the reader waits until
    its socket is cut, as in SGLang."""

    def __init__(self) -> None:
        self._events: deque[Progress | Finished] = deque()
        self._news = asyncio.Event()

    def put(self, event: Progress | Finished) -> None:
        """Deliver one event."""
        self._events.append(event)
        self._news.set()

    async def get(self) -> Progress | Finished:
        """The next event."""
        while not self._events:
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()
