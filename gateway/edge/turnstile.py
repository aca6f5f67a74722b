"""How many requests are worked on in one turn of the event loop, and whose is next.

Thousands of clients may write within the same millisecond, and thousands of those that wait to be counted
may lose their patience in the next one. The loop runs all that is ready before it looks at its sockets
again: all streams, and the pages by which an operator would see why, would stand still for as long as all
of that takes. So before each long step (a body is parsed, understood and counted; a counted one is put in
the queue) a request passes here, a few in each turn. Where few come nobody waits, nor costs a turn.

Clients take turns: **whatever others send, of each client that waits here one passes before another's
second does.**
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from gateway.edge import body

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.web import BaseRequest

    from gateway.policy.schema import Limits

    Waiter = tuple[asyncio.Future[None], int]

EACH = 64 << 10
"""What a request costs beside its bytes, in bytes: some 0.35 ms, as long as 70 KB take to be parsed and looked
through."""

A_TURN = 1 << 20
"""Bytes in one turn, and one request more: 5 ms for small requests as for large ones. A larger one than that
passes alone."""

LOST = 32
"""Connections whose end is seen in one turn: 0.2 ms each, where a request waits on them."""


class Turnstile:
    """See the module. Loop-confined."""

    def __init__(self) -> None:
        self._left = A_TURN  # in this turn
        self._lines: dict[str, deque[Waiter]] = {}
        """Who waits, the client whose turn is next first. Who has left meanwhile is passed over."""
        self._next: asyncio.Handle | None = None
        self.turns = 0
        """So many turns have ended here: another number, another turn of the loop."""

    async def through(self, client: str, size: int) -> int:
        """Wait until a request of this client, with so many bytes to look at, may be worked on. In which turn."""
        cost = EACH + size
        if not self._lines and self._left > 0:
            self._left -= cost
            self._set()
            return self.turns
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append((waiter, cost))
        self._set()
        await waiter
        return self.turns

    async def read(self, request: BaseRequest, client: str, limits: Limits) -> bytes:
        """The body of a request, read in its turn: what has not come by then comes when it is wanted. Raises
        as `body.read`."""
        turn = await self.through(client, request.content_length or 0)
        data = await body.read(request, limits.body_bytes, limits.body_s)
        await self.again(turn, client, len(data))
        return data

    async def again(self, turn: int, client: str, size: int) -> None:
        """Likewise, for one that passed, or was worked on, in that turn; in the same one it need not."""
        if turn != self.turns:
            await self.through(client, size)

    def _set(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Another turn of the loop has begun."""
        self._next = None
        self.turns += 1
        self._left = A_TURN
        while self._lines and self._left > 0:
            client = next(iter(self._lines))
            line = self._lines.pop(client)
            waiter, cost = line.popleft()
            if line:
                self._lines[client] = line  # behind all others
            if not waiter.done():  # else it was cancelled
                waiter.set_result(None)
                self._left -= cost
        if self._left < A_TURN:
            self._set()


class Portions:
    """Calls that may come by the thousand in one turn of the loop, made `most` in each, in their order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made = 0  # in this turn
        self._put_off: deque[Callable[[], None]] = deque()
        self._next: asyncio.Handle | None = None

    def call(self, what: Callable[[], None]) -> None:
        """Call it now, or in a later turn."""
        if self._made >= self._most or self._put_off:
            self._put_off.append(what)
        else:
            self._made += 1
            self._set()
            what()

    def _set(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._next = None
        self._made = min(len(self._put_off), self._most)
        if self._made:
            self._set()  # before anything of it can fail
        for _ in range(self._made):
            self._put_off.popleft()()
