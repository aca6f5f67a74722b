"""A job's KV: where it lies, how it grows, when it is shared and when it is given back.

Each job holds `private` pool tokens (whole pages) and a locked path of cache blocks, `shared`
tokens; together they cover its `filled` tokens. Sharing a block moves it from the first to the
second without touching the pool, unless an equal block was there already: then the copy is freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.twin.pool import KvPool
from gateway.twin.radix import Block, RadixCache

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        job.shared = job.filled = len(path) * self.cache.block

    def shortage(self, job: Job, tokens: int) -> int:
        """Pool tokens `job` lacks to hold `tokens` more."""
        return self.pool.pages(job.filled + tokens - job.shared) - job.private

    def make_room(self, tokens: int) -> bool:
        """Evict until `tokens` are free; whether they are."""
        if tokens > self.pool.free:
            self.cache.evict(tokens - self.pool.free)
        return tokens <= self.pool.free

    def grow(self, job: Job, tokens: int) -> bool:
        """Give `job` KV for `tokens` more; False, and nothing taken, when there is no room."""
        need = self.shortage(job, tokens)
        if not self.make_room(need):
            return False
        self.pool.take(need)
        job.private += need
        job.filled += tokens
        return True

    def fits_decode(self, jobs: Iterable[Job]) -> bool:
        """Can each of `jobs` grow by one token? Evicts cached prefixes to make it so."""
        return self.make_room(sum(self.shortage(job, 1) for job in jobs))

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
            job.private -= size
            if not new:
                self.pool.give(size)

    def release(self, job: Job, now: float) -> None:
        """Free what `job` holds. Its shared blocks stay, evictable once nobody uses them."""
        self.pool.give(job.private)
        self.cache.unlock(self._paths.pop(job.rid, []), now)
        job.private = job.shared = job.filled = 0
