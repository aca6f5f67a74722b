"""Questions to the workers' control planes, over their sockets, all at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from gateway.workers.order import control_socket

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ANSWER_S = 2.0
"""Longest wait for one worker's answer, which is made from memory in milliseconds. Below the 10 s that
Prometheus gives a scrape, and what a person takes for slow."""

RELOAD_S = 20.0
"""The same where files are read: a policy, keys and a certificate, on a disk that is busy."""

NO_ANSWER = "does not answer"


@dataclass(frozen=True, slots=True)
class Said:
    """One worker's answer; `status` 0: none came, and `body` says why."""

    number: int
    status: int
    body: bytes


class Asking:
    """Of all workers. To be made where a loop runs; `close` it."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._of = [
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(control_socket(folder, number)), limit=0),
                auto_decompress=False,
            )
            for number in range(size)
        ]

    async def close(self) -> None:
        """Let go of connections."""
        for session in self._of:
            await session.close()

    def has_a_way(self, number: int) -> bool:
        """Whether the socket of a worker is where it was made: who cleans the folder of temporary
        files may have taken it, and then silence says nothing of the worker."""
        return control_socket(self._folder, number).exists()

    async def all(
        self, numbers: Sequence[int], path: str, *, post: bool = False, within_s: float = ANSWER_S
    ) -> list[Said]:
        """What each of them says to `path`."""
        return list(
            await asyncio.gather(
                *(self._one(number, path, post=post, within_s=within_s) for number in numbers)
            )
        )

    def stream(
        self, number: int, method: str, path: str, headers: dict[str, str]
    ) -> aiohttp.client._RequestContextManager:
        """A GET or HEAD whose answer is passed on as it comes, however long that takes."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S)
        url = f"http://worker{path}"
        return self._of[number].request(method, url, headers=headers, timeout=timeout)

    async def _one(self, number: int, path: str, *, post: bool, within_s: float) -> Said:
        timeout = aiohttp.ClientTimeout(total=within_s)
        method = "POST" if post else "GET"
        try:
            async with self._of[number].request(
                method, f"http://worker{path}", timeout=timeout
            ) as answer:
                return Said(number, answer.status, await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError):
            return Said(number, 0, NO_ANSWER.encode())
