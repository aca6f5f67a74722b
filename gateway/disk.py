"""Work on a disk that may hang, past the loop and past the end of the process.

A network disk that is away answers nothing, for hours: neither an error nor a file. A thread that waits
for it cannot be ended. One of the loop's own pool would be missed there by others, and waited for when the
process ends, so that SIGTERM would end nothing. These are threads that nobody waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
P = ParamSpec("P")

WITHIN_S = 5.0
"""What a small file may take on a disk that works: one that is busy with others' writes takes a second or
two for an fsync. Below the time a stop has beside `drain_s` (`workers.crew.ENDS_S`)."""


class Clerk:
    """Does one thing after the other, each in a thread. What hangs is left behind; until it comes back
    nothing else is begun, so that one thread hangs and not one more each time."""

    def __init__(self, name: str, within_s: float = WITHIN_S) -> None:
        self._name = name
        self._within_s = within_s
        self._at: asyncio.Future[None] | None = None

    @property
    def answers(self) -> bool:
        """Whether nothing hangs, as far as is known."""
        return self._at is None

    async def do(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """What `work` returns or raises; OSError (ETIMEDOUT) where that takes longer than `within_s`."""
        try:
            async with asyncio.timeout(self._within_s):
                while self._at is not None:
                    await asyncio.shield(self._at)
                return await self._begin(work, *args, **named)
        except TimeoutError as error:
            if error.errno is not None:  # it is the work's own
                raise
            why = f"the disk gave no answer within {self._within_s:g} s"
            raise OSError(errno.ETIMEDOUT, why) from None

    async def _begin(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        self._at = done = loop.create_future()
        came: list[T] = []
        failed: list[BaseException] = []

        def finished() -> None:
            self._at = None
            done.set_result(None)

        def run() -> None:
            try:
                came.append(work(*args, **named))
            except BaseException as error:  # noqa: BLE001  # it is whose who asked
                failed.append(error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(finished)

        threading.Thread(target=run, name=self._name, daemon=True).start()
        await asyncio.shield(done)
        if failed:
            raise failed.pop()
        return came.pop()
