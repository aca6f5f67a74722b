"""Cancel a coroutine at exactly its k-th suspension, for every k until it gets through.

Throwing at random moments finds what luck finds. Here the suspensions are counted, so a test can
go through all of them and knows when it has.
"""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator


class Cancelled:
    """What `cancelled_at` returns where it did cancel."""


@types.coroutine
def cancelled_at(
    work: Coroutine[Any, Any, Any],
    at: int,
    *,
    late: bool,
    look: Callable[[Coroutine[Any, Any, Any]], None] = lambda _: None,
) -> Generator[Any, Any, Any]:
    """Run `work` and throw CancelledError at its `at`-th suspension (from 1).

    `late` throws only when what it waited for has come, as when a task is cancelled in the very
    turn in which its future is done. `look` is called with `work` where it stands at that moment.
    Returns Cancelled if it went off, else the result of `work`.
    """
    step = 0
    throw: BaseException | None = None
    fired = False
    while True:
        try:
            waited = work.send(None) if throw is None else work.throw(throw)
        except StopIteration as stop:
            return Cancelled if fired else stop.value
        except asyncio.CancelledError:
            if not fired:
                raise
            return Cancelled
        throw = None
        step += 1
        if step == at:
            look(work)
        if step == at and not late:
            if waited is not None:  # as a task does with what it waits for
                waited._asyncio_future_blocking = False
                waited.cancel()
            throw, fired = asyncio.CancelledError(), True
            continue
        try:
            yield waited
        except BaseException as error:  # noqa: BLE001 - whatever the loop throws goes on
            throw = error
        if step == at:
            throw, fired = asyncio.CancelledError(), True
