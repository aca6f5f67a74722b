"""Background tasks that are named, referenced and never silently lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

_live: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start `work` as a task that the loop cannot garbage-collect half-way.

    An exception nobody awaits is handed to the loop's exception handler at once, not when the
    task object happens to die.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    _live.add(task)
    task.add_done_callback(_done)
    return task


def _done(task: asyncio.Task[Any]) -> None:
    _live.discard(task)
    if task.cancelled() or (error := task.exception()) is None:
        return
    task.get_loop().call_exception_handler(
        {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
    )
