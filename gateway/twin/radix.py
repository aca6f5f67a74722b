"""The radix cache: prompt blocks whose KV outlives their request, shared by equal prefixes.

A trie of block ids. A request locks the path it uses; an unlocked block is evictable, least
recently used leaf first. The tokens of every block in the trie are held in the pool; evicting gives
them back. What a request computes beyond its last full block, and all of its output, stays private
to it and is freed at its end: the twin does not know the ids of generated text, so a follow-up turn
hits up to the end of the previous prompt, a little less than in SGLang.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.twin.pool import KvPool


@dataclass(eq=False, slots=True)
class Block:
    """One block of the trie. `locks` counts the requests whose path runs through it."""

    key: int
    parent: Block | None
    children: dict[int, Block] = field(default_factory=dict)
    locks: int = 0
    used_at: float = 0.0


class RadixCache:
    """Blocks of `block` tokens over one pool. `enabled=False` is SGLang's --disable-radix-cache."""

    def __init__(self, pool: KvPool, block: int, *, enabled: bool = True) -> None:
        if block % pool.page:
            message = f"a cache block of {block} tokens is not whole pages of {pool.page}"
            raise ValueError(message)
        self.block = block
        self.enabled = enabled
        self.evictable = 0  # tokens
        self.held = 0  # tokens in the trie, locked or not
        self.evicted_total = 0
        self._pool = pool
        self._root = Block(key=0, parent=None)
        self._heap: list[tuple[float, int, Block]] = []
        self._order = 0

    def match(self, blocks: tuple[int, ...], longest: int) -> list[Block]:
        """The cached blocks that start `blocks`, at most `longest` tokens of them."""
        path: list[Block] = []
        node = self._root
        if not self.enabled:
            return path
        for key in blocks[: max(0, longest) // self.block]:
            found = node.children.get(key)
            if found is None:
                break
            path.append(found)
            node = found
        return path

    def lock(self, path: list[Block]) -> None:
        """Keep the blocks of `path` (a prefix of the trie) from eviction."""
        for node in path:
            if node.locks == 0:
                self.evictable -= self.block
            node.locks += 1

    def unlock(self, path: list[Block], now: float) -> None:
        """Undo one `lock` of the same path, last used now."""
        for node in path:
            if node.locks <= 0:
                raise RuntimeError("a cache block was unlocked more often than locked")
            node.locks -= 1
            node.used_at = now
            if node.locks == 0:
                self.evictable += self.block
                self._offer(node)

    def adopt(self, parent: Block | None, key: int) -> tuple[Block, bool]:
        """Put one freshly computed block under `parent` (None: the root), locked once.

        Returns the block and whether it is new; when an equal block was there already, the
        caller's copy is a duplicate and its pool tokens are the caller's to give back.
        """
        above = parent or self._root
        node = above.children.get(key)
        new = node is None
        if node is None:
            node = Block(key=key, parent=parent)
            above.children[key] = node
            self.held += self.block
            self.evictable += self.block
        self.lock([node])
        return node, new

    def evict(self, tokens: int) -> int:
        """Free at least `tokens` if that much is evictable. Returns the tokens freed."""
        freed = 0
        while freed < tokens and self._heap:
            used_at, _, node = heapq.heappop(self._heap)
            if node.locks or node.children or node.used_at != used_at or not self._attached(node):
                continue
            siblings = (node.parent or self._root).children
            del siblings[node.key]
            if node.parent is not None and not node.parent.locks:
                self._offer(node.parent)
            freed += self.block
        self.held -= freed
        self.evictable -= freed
        self.evicted_total += freed
        self._pool.give(freed)
        return freed

    def flush(self) -> None:
        """Drop every unlocked block."""
        self.evict(self.evictable)

    def _attached(self, node: Block) -> bool:
        return (node.parent or self._root).children.get(node.key) is node

    def _offer(self, node: Block) -> None:
        if not node.children:
            self._order += 1
            heapq.heappush(self._heap, (node.used_at, self._order, node))
