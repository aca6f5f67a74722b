"""Adapters that servers got, or lost, while they ran.

What a server serves is read at its start. LoRA adapters are loaded and unloaded without one
(/load_lora_adapter), by people who then expect to ask for them. So its list is read again where somebody asks
for an adapter that it did not have, or for the list itself: from the HTTP process, past the scheduler, and once
in AGAIN_S however many ask.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.tasks import spawn
from gateway.upstream.ask import AskError
from gateway.upstream.discover import adapters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.edge.backend import Backend

AGAIN_S = 1.0
"""A person who has loaded an adapter asks for it no sooner; a client that makes names up costs a server a question a
second."""

WAIT_S = 2.0
"""For an answer that takes a millisecond, unless the server's HTTP process is at work on large prompts."""


class Names:
    """Reads the lists again, for all who ask meanwhile."""

    def __init__(self) -> None:
        self._read_at: dict[Backend, float] = {}
        self._reading: dict[Backend, asyncio.Task[None]] = {}

    async def for_model(self, fleet: Iterable[Backend], model: str | None) -> None:
        """Before a request for `model` is told that nobody serves it, where that is an adapter of a model that
        is served."""
        if model is None or ":" not in model:
            return
        backends = [one for one in fleet if one.ready]
        if not any(one.serves(model) for one in backends):
            base = model.partition(":")[0]
            await self.read(one for one in backends if one.serves(base))

    async def read(self, backends: Iterable[Backend]) -> None:
        """Read the lists of those of these servers that take adapters and have not been read just now."""
        taking = [one for one in backends if one.facts is not None and one.facts.takes_adapters]
        reading = [task for one in taking if (task := self._task(one)) is not None]
        if reading:
            await asyncio.wait(reading, timeout=WAIT_S)

    def _task(self, backend: Backend) -> asyncio.Task[None] | None:
        now = backend.now()
        for one in [one for one, at in self._read_at.items() if now - at >= AGAIN_S]:
            del self._read_at[one]
        if backend in self._read_at:
            return self._reading.get(backend)
        self._read_at[backend] = now
        task = self._reading[backend] = spawn(_read(backend), f"adapters of {backend.name}")
        task.add_done_callback(lambda done: self._over(backend, done))
        return task

    def _over(self, backend: Backend, task: asyncio.Task[None]) -> None:
        """A list was read, or did not come; a later reading may be under way."""
        if self._reading.get(backend) is task:
            del self._reading[backend]


async def _read(backend: Backend) -> None:
    before = backend.facts
    try:
        found = await adapters(backend.client, api_key=backend.api_key, timeout_s=WAIT_S)
    except AskError:
        return  # what is known of it stays
    if before is not None and backend.facts is before:  # and not of another start
        backend.facts = replace(before, adapters=found)
