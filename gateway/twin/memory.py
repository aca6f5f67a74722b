"""A job's KV: where it lies, how it grows, when it is shared and when it is given back.

Each job holds pool tokens of its own (`private`, whole pages) and a locked path of cache blocks,
`shared` tokens; together they cover its `filled` tokens. Sharing a block moves it from the first to the
second without touching the pool, unless an equal block was there already: then the copy is freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.twin.pool import KvPool
from gateway.twin.radix import Block, RadixCache

if TYPE_CHECKING:
    from gateway.twin.jobs import Job


class Memory:
    """The pool and the cache of one engine, seen by its jobs."""

    def __init__(self, capacity: int, page: int, block: int, *, radix: bool) -> None:
        self.pool = KvPool(capacity, page)
        self.cache = RadixCache(self.pool, block, enabled=radix)
        self._paths: dict[str, list[Block]] = {}

    @property
    def used(self) -> int:
        """Pool tokens in use; cached prefixes nobody uses do not count."""
        return self.pool.used - self.cache.evictable

    @property
    def obtainable(self) -> int:
        """Tokens free, or free after evicting every unlocked block."""
        return self.pool.free + self.cache.evictable

    def match(self, job: Job) -> list[Block]:
        """The cached start of what `job` has to compute; one token is always computed."""
        return self.cache.match(job.blocks, job.target - 1)

    def attach(self, job: Job, path: list[Block]) -> None:
        """Give `job` a path that the caller has locked."""
        self._paths[job.rid] = path
        job.shared = job.own_filled = len(path) * self.cache.block

    def private(self, job: Job) -> int:
        """Pool tokens `job` holds outside the radix cache."""
        return self.pool.pages(job.filled - job.shared)

    def shortage(self, job: Job, tokens: int) -> int:
        """Pool tokens `job` lacks to hold `tokens` more."""
        own = job.filled - job.shared
        return self.pool.pages(own + tokens) - self.pool.pages(own)

    def make_room(self, tokens: int) -> bool:
        """Evict until `tokens` are free; whether they are."""
        if tokens > self.pool.free:
            self.cache.evict(tokens - self.pool.free)
        return tokens <= self.pool.free

    def grow(self, job: Job, tokens: int) -> bool:
        """Give `job` KV for `tokens` more; False, and nothing taken, when there is no room. It is
        in no batch."""
        if not self.take(self.shortage(job, tokens)):
            return False
        job.own_filled += tokens
        return True

    def take(self, tokens: int) -> bool:
        """Take `tokens` of the pool, evicting if need be; False, and nothing taken, without room."""
        if not self.make_room(tokens):
            return False
        self.pool.take(tokens)
        return True

    def share(self, job: Job) -> None:
        """Put the full prompt blocks that `job` has computed into the cache."""
        if not self.cache.enabled:
            return
        path = self._paths[job.rid]
        size = self.cache.block
        whole = min(job.filled, job.prompt) // size
        for key in job.blocks[len(path) : whole]:
            node, new = self.cache.adopt(path[-1] if path else None, key)
            path.append(node)
            job.shared += size
            if not new:
                self.pool.give(size)

    def release(self, job: Job, now: float) -> None:
        """Free what `job`, in no batch any more, holds. Its shared blocks stay, evictable once
        nobody uses them."""
        self.pool.give(self.private(job))
        self.cache.unlock(self._paths.pop(job.rid, []), now)
        job.shared = job.own_filled = 0
